"""``status``, ``watch``, ``workers``, ``roles``: what is going on, once or live."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from coordinator.cli.app import App, pass_app
from coordinator.cli.lazy import Command, Group
from coordinator.cli.render import age, counts, table

Row = Mapping[str, Any]


@click.command(cls=Command, short_help="Show what is going on.")
@pass_app
def status(app: App) -> None:
    """Show sessions, tasks by state, workers, and what waits for a person."""
    from coordinator.cli.store import open_store

    async def work() -> dict[str, Any]:
        async with open_store(app) as store:
            return await store.inspector.status()

    found = app.run(work())
    app.emit(found, status_text(found))


@click.command(cls=Command, short_help="Show what is going on, live.")
@click.option("--every", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, metavar="SECONDS")
@click.option("--times", type=click.IntRange(1), help="Stop after so many looks.")
@click.option("--verbose", is_flag=True, help="Show the last words of every agent that is writing.")
@pass_app
def watch(app: App, every: float, times: int | None, verbose: bool) -> None:
    """Show the same as ``status`` again and again, until Ctrl-C. With --json one document a line."""
    import asyncio
    import sys

    from coordinator.cli.live import last_words
    from coordinator.cli.store import open_store
    from protocol.errors import StoreUnreachable

    async def work() -> None:
        async with open_store(app) as store:
            looks = 0
            while True:
                try:
                    found = await store.inspector.status()
                    if verbose:
                        found["writing"] = await last_words(store, found["sessions"])
                    clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
                    app.line(found, f"{clear}{time.strftime('%H:%M:%S')}\n{status_text(found)}\n")
                except StoreUnreachable as error:
                    app.note(f"{error.message}; trying again")
                looks += 1
                if looks == times:
                    return
                await asyncio.sleep(every)

    app.run(work())


@click.command(cls=Command, short_help="List the workers and how they are.")
@pass_app
def workers(app: App) -> None:
    """List workers, leaders and managers: live, stalled (the event loop hangs) or dead."""
    from coordinator.cli.store import open_store

    async def work() -> list[dict[str, Any]]:
        async with open_store(app) as store:
            return await store.inspector.workers()

    rows = app.run(work())
    app.emit(rows, workers_text(rows))


@click.group(cls=Group, invoke_without_command=True, short_help="List the roles of the fleet, or check role files.")
@click.pass_context
def roles(ctx: click.Context) -> None:
    """List the roles that workers have published, with their live workers and backlog."""
    if ctx.invoked_subcommand is not None:
        return
    from coordinator.cli.store import open_store

    app = ctx.ensure_object(App)

    async def work() -> list[dict[str, Any]]:
        async with open_store(app) as store:
            return await store.inspector.roles()

    rows = app.run(work())
    heads = ("role", "kind", "executor", "workers", "backlog", "what it is for")
    shown = [(r["role"], r["kind"], r["executor"], r["workers"], r["backlog"], r["description"]) for r in rows]
    nobody = "no role was published yet: `rolecall up` or `arq workers.roles.ROLE` starts one"
    app.emit(rows, table(heads, shown) or nobody)


@roles.command("check", short_help="Check role files, without a fleet.")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@pass_app
def roles_check(app: App, files: tuple[Path, ...]) -> int:
    """Check role FILES (or directories); without one those of ROLECALL_ROLES and those that ship.

    Names each bad file with its line and what is wrong; exits 2 if there is one.
    """
    from protocol.kit.rolefiles import load_roles

    missing = next((file for file in files if not file.exists()), None)
    if missing is not None:
        raise click.UsageError(f"there is no {str(missing)!r}")
    loaded = load_roles(files, shipped=Path()) if files else load_roles(app.settings.roles_path)
    rows = [
        {"role": r.id, "name": r.name, "kind": r.kind, "executor": r.executor, "path": str(r.path), "digest": r.digest}
        for r in loaded.roles.values()
    ]
    problems = [str(problem) for problem in loaded.problems]
    value = {"roles": rows, "problems": problems, "warnings": list(loaded.warnings)}
    app.emit(
        value,
        table(("role", "kind", "executor", "file"), [(r["role"], r["kind"], r["executor"], r["path"]) for r in rows]),
    )
    for text in (*loaded.warnings, *problems):
        app.note(text)
    return 2 if problems else 0


def status_text(found: Row) -> str:
    """The whole picture for a terminal."""
    heads = ("session", "phase", "tasks", "title")
    rows = [(s["session"], s["phase"], counts(s["tasks"]), s["title"]) for s in found["sessions"][:15]]
    parts = [table(heads, rows) or "no session yet: rolecall run GOAL"]
    more = len(found["sessions"]) - len(rows)
    if more > 0:
        parts.append(f"… and {more} more: rolecall session list")
    parts.append(workers_text(found["workers"]))
    if found.get("writing"):
        words = [(w["session"], w["agent"], w["text"]) for w in found["writing"][:15]]
        parts.append(table(("session", "agent", "is writing"), words))
    if found["waiting_for_person"]:
        waits = [(w["space"], w["task"], w["state"], w["mend"]) for w in found["waiting_for_person"][:15]]
        parts.append("waiting for a person\n" + table(("space", "task", "state", "what to do"), waits))
    return "\n\n".join(parts)


def workers_text(rows: list[dict[str, Any]]) -> str:
    """The workers as a table."""
    heads = ("worker", "state", "last beat", "loop", "in hand", "")
    shown = [
        (
            r["worker"],
            r["state"],
            f"{age(r['last_beat_s'])} ago",
            age(r["loop_age_s"]),
            r["in_hand"],
            r.get("reason", " "),
        )
        for r in rows
    ]
    return table(heads, shown) or "no worker beats: `rolecall up` starts a fleet on this machine"
