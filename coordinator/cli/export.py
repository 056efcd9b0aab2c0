"""``export`` and ``import``: conversations as files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.agents import fleet_of
from coordinator.cli.app import App, pass_app
from coordinator.cli.lazy import Command
from coordinator.cli.store import Target, open_store, open_target

if TYPE_CHECKING:
    from coordinator.cli.store import Store
    from coordinator.exporting import Sources


@click.command("export", cls=Command, short_help="Write a session's conversations as files.")
@click.argument("session_id", metavar="[SESSION]", default="")
@click.option("--to", "to", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The directory.")
@click.option("--follow", is_flag=True, help="Keep the directory up to date until the session is over.")
@click.option("--all", "everything", is_flag=True, help="Every session, the archived ones too.")
@pass_app
def export(app: App, session_id: str, to: Path, follow: bool, everything: bool) -> None:
    """Write the conversations of SESSION (its own and each agent's) into DIR; without SESSION the last one.

    DIR may hold others: they stay, and so do keys that nobody here knows. A file is replaced in one step, and only
    where its content changes.
    """
    if everything and (session_id or follow):
        raise click.UsageError("--all goes with neither a SESSION nor --follow")

    async def work() -> None:
        from coordinator.convfolder import Folder
        from coordinator.exporting import Exporter, mirror

        folder = Folder(to)
        if everything:
            async with open_store(app) as store:
                rows = await store.inspector.sessions(archived=True, limit=1_000_000)
                for name in (row["session"] for row in reversed(rows)):
                    _said(app, name, to, folder.write(await Exporter(name, sources(app, store)).docs()))
            return
        async with open_target(app, Target(session_id)) as opened:
            store = fleet_of(opened)
            exporter = Exporter(opened.space, sources(app, store))
            if not follow:
                _said(app, opened.space, to, folder.write(await exporter.docs()))
                return
            async for changed in mirror(exporter, folder.write, store.blocking):
                _said(app, opened.space, to, changed)

    app.run(work())


@click.command("import", cls=Command, short_help="Read conversations back from files.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="In place of what was imported under the same name before.")
@pass_app
def import_(app: App, folder: Path, force: bool) -> int:
    """Read every conversation of DIR into the store, as `export` (or another program) wrote them.

    They can be listed, read and exported again; no flow leads them. One that lives here is never overwritten. Exits 1
    if any was refused; the others are in.
    """

    async def work() -> list[dict[str, Any]]:
        from coordinator.convfolder import Folder
        from coordinator.exporting import Exporter
        from coordinator.importing import Imported, bring_in

        found, problems = Folder(folder).read()
        done = [Imported(problem.session, "refused", problem.message) for problem in problems]
        async with open_store(app) as store:
            parts = sources(app, store)

            async def live(space: str) -> Any:
                return await Exporter(space, parts).docs()

            done += [await bring_in(docs, parts.imports, store.log, live, force=force) for docs in found]
        return [one.to_json() for one in done]

    rows = app.run(work())
    app.emit(rows, "\n".join(f"{row['session']}  {row['outcome']}" for row in rows))
    refused = [row for row in rows if row["outcome"] == "refused"]
    for row in refused:
        app.note(f"rolecall: {row['session']} refused: {row['message']}")
    return 1 if refused else 0


def sources(app: App, store: Store) -> Sources:
    """What conversations are read from."""
    from coordinator.exporting import Sources
    from protocol.stores.redis_artifacts import Artifacts
    from protocol.stores.redis_conversations import RedisConversations
    from protocol.stores.redis_imports import Imports

    return Sources(
        client=store.client, keys=store.keys, log=store.log,
        conversations=RedisConversations(store.client, store.keys, store.scripts),
        artifacts=Artifacts(store.client, store.keys, store.scripts), roles=store.roles,
        imports=Imports(store.client, store.keys, store.scripts, store.log), lang=app.settings.lang,
        roles_path=app.settings.roles_path, tell=partial(app.note),
    )  # fmt: skip


def _said(app: App, session: str, to: Path, changed: list[str]) -> None:
    value = {"session": session, "to": str(to), "files": changed}
    app.line(value, f"{session}: {len(changed)} files changed in {to}")
