"""``create-task-space`` and ``list-tasks``: the spaces there are."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.app import App, pass_app
from coordinator.cli.lazy import Command
from coordinator.cli.render import clock, table


@click.command("create-task-space", cls=Command, short_help="Make a task space.")
@click.argument("name")
@click.option("--policy", type=click.Choice(["hold", "reassign"]), default="hold", show_default=True,
              help="What happens to a lost task.")  # fmt: skip
@click.option("--title", default="", help="A title; may be in any language.")
@click.option("--shared", type=click.Path(path_type=Path), help="A folder of shared knowledge (a later version).")
@click.option("--store", type=click.Choice(["redis", "file"]), default="redis", show_default=True)
@pass_app
def create_task_space(app: App, name: str, policy: str, title: str, shared: Path | None, store: str) -> None:
    """Make the task space NAME in the fleet's store.

    It may hold records of several sessions; no flow runs there. Making it twice changes nothing and says so.
    """
    from coordinator.cli.store import open_store
    from protocol.errors import ConfigError
    from protocol.keys import check_name

    if shared is not None or store == "file":
        what = "--shared" if shared is not None else "--store file"
        raise ConfigError(f"{what} is not part of this version", mend="leave it out")
    check_name(name, "space")

    async def work() -> bool:
        async with open_store(app) as opened:
            meta = {"kind": "hand", "policy": policy, "session": name, "title": title or name}
            return await opened.log.create(name, meta=meta)

    created = app.run(work())
    app.emit({"space": name, "created": created}, f"{'made' if created else 'already there:'} space {name}")


@click.command("list-tasks", cls=Command, short_help="List the task spaces there are.")
@pass_app
def list_tasks(app: App) -> None:
    """List the task spaces there are, the last changed first; sessions have a space each."""
    from coordinator.cli.store import open_store

    async def work() -> list[dict[str, object]]:
        async with open_store(app) as opened:
            return list(await opened.inspector.spaces())

    rows = app.run(work())
    shown = [
        (row["space"], row["kind"], row["records"], clock(int(str(row["created_ms"])) / 1000), row["title"])
        for row in rows
    ]
    app.emit({"spaces": rows}, table(("space", "kind", "records", "created", "title"), shown) or "no space yet")
