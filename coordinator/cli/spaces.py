"""``create-task-space`` and ``list-tasks``: the spaces there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from coordinator.cli.app import App, pass_app
from coordinator.cli.lazy import Command
from coordinator.cli.render import clock, table

store_option = click.option(
    "--store", type=click.Choice(["redis", "file"]), help="Where. Default: the fleet's Redis, else files in ./state."
)


@click.command("create-task-space", cls=Command, short_help="Make a task space.")
@click.argument("name")
@click.option("--policy", type=click.Choice(["hold", "reassign"]), default="hold", show_default=True,
              help="What happens to a lost task.")  # fmt: skip
@click.option("--title", default="", help="A title; may be in any language.")
@click.option("--shared", type=click.Path(path_type=Path), help="A folder of text files: the shared knowledge.")
@store_option
@pass_app
def create_task_space(app: App, name: str, policy: str, title: str, shared: Path | None, store: str | None) -> None:
    """Make the task space NAME in the fleet's store, or without a server as the state file ./state/NAME.json.

    It may hold records of several sessions; no flow runs there. Making it twice changes nothing and says so.
    """
    from coordinator.cli.store import state_path
    from coordinator.localspaces import hand_meta, knowledge
    from protocol.keys import check_name

    check_name(name, "space")
    files = knowledge(app.cwd / shared) if shared is not None else []
    kind = chosen(app, store)

    async def work() -> bool:
        async with _at(app, kind, name) as (log, areas):
            created = await log.create(name, meta=hand_meta(name, title, policy))
            if files:
                from coordinator.cli.store import person_name
                from coordinator.workspaces import Workspaces

                # Whoever sits here is a person, whatever the login is called.
                mine = Workspaces(log, areas, name, f"person_{person_name().removeprefix('person_')}")
                for path, data in files:
                    await mine.put(f"shared/{path}", data)
            return bool(created)

    created = app.run(work())
    value: dict[str, object] = {"space": name, "created": created}
    text = f"{'made' if created else 'already there:'} space {name}"
    if kind == "file":
        value["state"] = f"state/{state_path(app, name).name}"
        text += f" (--state {value['state']})"
    if files:
        value["shared"] = len(files)
        text += f", {len(files)} files of shared knowledge"
    app.emit(value, text)


@click.command("list-tasks", cls=Command, short_help="List the task spaces there are.")
@store_option
@pass_app
def list_tasks(app: App, store: str | None) -> None:
    """List the task spaces there are, the last changed first; sessions have a space each."""
    from coordinator.cli.store import open_store, state_path
    from coordinator.localspaces import local_spaces

    kind = chosen(app, store)
    here = local_spaces(state_path(app, "x").parent)

    async def work() -> list[dict[str, Any]]:
        async with open_store(app) as opened:
            return list(await opened.inspector.spaces())

    rows = app.run(work()) if kind == "redis" else here
    shown = [
        (row["space"], row["kind"], row["records"], clock(int(str(row["created_ms"])) / 1000),
         row.get("problem") or row["title"])
        for row in rows
    ]  # fmt: skip
    app.emit({"spaces": rows}, table(("space", "kind", "records", "created", "title"), shown) or "no space yet")
    if kind == "redis" and here and not store:
        app.note(f"{len(here)} more in ./state: list-tasks --store file")


def chosen(app: App, store: str | None) -> str:
    """``redis`` where it was asked for, is named in the settings or runs here; else ``file``."""
    from protocol.kit import embedded

    if store is not None:
        return store
    there = app.settings.redis_url is not None or embedded.find_running(app.settings.data_dir) is not None
    return "redis" if there else "file"


@asynccontextmanager
async def _at(app: App, kind: str, name: str) -> AsyncIterator[tuple[Any, Any]]:
    """The log and the areas where the space is to be."""
    from coordinator.cli.store import open_store, state_path
    from protocol.stores.file_areas import FileAreas
    from protocol.stores.jsonfile import JsonFile
    from protocol.stores.redis_workspaces import RedisAreas

    if kind == "file":
        file = JsonFile(state_path(app, name))
        yield file, FileAreas(file)
        return
    async with open_store(app) as opened:
        yield opened.log, RedisAreas(opened.client, opened.keys, opened.log)
