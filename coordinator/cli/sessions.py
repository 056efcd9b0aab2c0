"""``session …``: sessions, listed, shown, followed, settled."""

from __future__ import annotations

from typing import Any, Literal

import click

from coordinator.cli.app import App, pass_app
from coordinator.cli.lazy import Group
from coordinator.cli.render import clock, counts, table
from coordinator.cli.store import Opened, Target, open_target


@click.group(cls=Group, short_help="List, show, cancel, rename … sessions.")
def session() -> None:
    """List, show, follow, cancel, resume, archive, rename sessions. ID may be left out: the last one."""


@session.command("list", short_help="The sessions, the newest first.")
@click.option("--archived", is_flag=True, help="The archived ones too.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@pass_app
def list_sessions(app: App, archived: bool, limit: int) -> None:
    """List the sessions, the newest first."""
    from coordinator.cli.store import open_store

    async def work() -> list[dict[str, Any]]:
        async with open_store(app) as store:
            return await store.inspector.sessions(archived=archived, limit=limit)

    rows = app.run(work())
    shown = [(r["session"], r["phase"], counts(r["tasks"]), clock(r["created_ms"] / 1000), r["title"]) for r in rows]
    app.emit(rows, table(("session", "phase", "tasks", "started", "title"), shown) or "no session yet")


@session.command("show", short_help="One session, whole.")
@click.argument("session_id", metavar="[ID]", default="")
@pass_app
def show(app: App, session_id: str) -> None:
    """Show one session: its phase, its tasks, what waits for a person."""

    async def work() -> dict[str, Any]:
        async with open_target(app, Target(session_id)) as opened:
            assert opened.store is not None, "sessions live in a fleet"
            return await opened.store.inspector.session(opened.space)

    found = app.run(work())
    app.emit(found, session_text(found))


@session.command("log", short_help="The records of one session.")
@click.argument("session_id", metavar="[ID]", default="")
@click.option("--since", default="0", metavar="X", help="A cursor or a time.")
@click.option("--follow", is_flag=True, help="Go on with what arrives, until Ctrl-C.")
@pass_app
def log(app: App, session_id: str, since: str, follow: bool) -> None:
    """Show the records of one session, one a line; with --json {"entry", "record"} a line."""
    from coordinator.cli.records import print_following
    from coordinator.cli.render import record_line
    from coordinator.follow import EVERYTHING

    async def work() -> None:
        async with open_target(app, Target(session_id)) as opened:
            if follow:
                await print_following(app, opened, since, EVERYTHING, as_json=False)
                return
            cursor, more = since, True
            while more:
                page = await opened.log.read(opened.space, since=cursor, limit=1000)
                for entry, record in zip(page.entries, page.records, strict=True):
                    found = record.to_json()
                    app.line({"entry": entry, "record": found}, record_line(entry, found))
                cursor, more = page.next, page.more

    app.run(work())


@session.command("cancel", short_help="Stop it; what is there stays.")
@click.argument("session_id", metavar="ID")
@click.option("--why", default="", help="The reason, for the record.")
@click.option("--as", "who", default="", metavar="NAME", help="Who you are on record. Default: your login.")
@pass_app
def cancel(app: App, session_id: str, why: str, who: str) -> None:
    """Cancel a session: nothing new starts, what runs is stopped, what was delivered stays on record."""
    _deed(app, session_id, "cancel", why, who)


@session.command("resume", short_help="Lead it on after a finish.")
@click.argument("session_id", metavar="ID")
@click.option("--budget-tokens", type=click.IntRange(1), metavar="N", help="The most tokens from now on.")
@click.option("--budget-money", type=click.FloatRange(0, min_open=True), metavar="X", help="The most it may cost.")
@click.option("--why", default="", help="The reason, for the record.")
@click.option("--as", "who", default="", metavar="NAME", help="Who you are on record. Default: your login.")
@pass_app
def resume(
    app: App, session_id: str, budget_tokens: int | None, budget_money: float | None, why: str, who: str
) -> None:
    """Lead a finished session on: what was settled since is taken up and merged again. Its guards count anew."""
    from coordinator.cli.run import budget_guards

    _deed(app, session_id, "resume", why, who, budget_guards(budget_tokens, budget_money))


@session.command("archive", short_help="Hide it from the list.")
@click.argument("session_id", metavar="ID")
@pass_app
def archive(app: App, session_id: str) -> None:
    """Archive a session: it leaves the list; nothing is deleted."""
    _meta(app, session_id, {"status": "archived"})


@session.command("rename", short_help="Give it another title.")
@click.argument("session_id", metavar="ID")
@click.argument("title")
@pass_app
def rename(app: App, session_id: str, title: str) -> None:
    """Give a session another TITLE (one line, at most 60 characters are shown)."""
    line = " ".join(title.split())
    if not line or len(line) > 200 or not line.isprintable():
        raise click.UsageError("a title is one line of 1 to 200 characters")
    _meta(app, session_id, {"title": line})


def _deed(
    app: App,
    session_id: str,
    action: Literal["cancel", "resume"],
    why: str,
    who: str,
    guards: dict[str, int | float] | None = None,
) -> None:
    async def work() -> dict[str, Any]:
        async with open_target(app, Target(session_id)) as opened:
            assert opened.store is not None, "sessions live in a fleet"
            done = await opened.store.person(who).session(opened.space, action, why, guards)
            return done.to_json()

    done = app.run(work())
    app.emit(done, f"{action} {session_id}: {done['outcome']} at {done['entry']}")


def _meta(app: App, session_id: str, values: dict[str, str]) -> None:
    async def work(opened: Opened) -> None:
        assert opened.store is not None, "sessions live in a fleet"
        await opened.store.log.set_meta(opened.space, values)

    async def run() -> None:
        async with open_target(app, Target(session_id)) as opened:
            await work(opened)

    app.run(run())
    app.emit({"session": session_id, **values}, f"{session_id}: " + ", ".join(f"{k} {v}" for k, v in values.items()))


def session_text(found: dict[str, Any]) -> str:
    """One session for a terminal."""
    head = [f"{found['session']}  {found['phase']}  {found['title']}".rstrip()]
    if found["flow"]:
        head.append(f"flow {found['flow']}, {found['records']} records, started {clock(found['created_ms'] / 1000)}")
    rows = [(t["task"], t["state"], t["attempt"], t["role"], t["owner"]) for t in found["task_list"]]
    parts = ["\n".join(head), table(("task", "state", "attempt", "role", "held by"), rows) or "no task yet"]
    used = found["usage"]
    if used["by"]:
        heads = ("role", "model", "calls", "prompt tokens", "answer tokens", "cost")
        by = [
            (u["role"], u["model"], u["calls"], u["prompt_tokens"], u["completion_tokens"], u.get("cost", ""))
            for u in used["by"]
        ]
        total = f"{used['total_tokens']} tokens used" + (f", cost {used['cost']:g}" if used["cost"] else "")
        limits = ", ".join(f"{used['budget'][name]:g} {name}" for name in ("tokens", "money") if name in used["budget"])
        parts.append(f"{total}{f' (budget: {limits})' if limits else ''}\n{table(heads, by)}")
    waits = found["waiting_for_person"]
    if waits:
        shown = [(w["task"], w["state"], w.get("reason", ""), w["mend"]) for w in waits]
        parts.append("waiting for a person\n" + table(("task", "state", "why", "what to do"), shown))
    return "\n\n".join(parts)
