"""``add-record`` and ``read-records``: the way into a log and out of it."""

from __future__ import annotations

from typing import Any

import click

from coordinator.cli.app import App, pass_app, read_input
from coordinator.cli.lazy import Command
from coordinator.cli.store import Opened, Target, open_target, target_options


@click.command("add-record", cls=Command, short_help="All gates, then append records once.")
@click.option("--record", "source", metavar="FILE", help="A record, or a JSON list of them. Default and -: stdin.")
@click.option("--strict", is_flag=True, help="Refuse what would have to be repaired or normalised.")
@target_options
@pass_app
def add_record(app: App, target: Target, source: str | None, strict: bool) -> int:
    """Let records through all four gates and append them, each once.

    Says `added` or `already there` with the entry id. A refusal names its reason and leaves a protocol_violation
    with the raw text; nothing else of the input is lost. Exits 1 if any was refused.
    """
    from coordinator.intake import take_in

    raw = read_input(source)

    async def work() -> list[dict[str, Any]]:
        async with open_target(app, target) as opened:
            return [
                one.to_json()
                for one in await take_in(
                    opened.log,
                    opened.space,
                    raw,
                    strict=strict,
                    detail_max_bytes=app.settings.detail_max_bytes,
                )
            ]

    outcomes = app.run(work())
    for outcome in outcomes:
        for change in outcome.get("changes", ()):
            app.note(f"{outcome['id'] or 'record'}: {change}")
    app.emit(outcomes if len(outcomes) != 1 else outcomes[0], "\n".join(map(outcome_text, outcomes)))
    refused = [outcome for outcome in outcomes if outcome["outcome"] == "refused"]
    for outcome in refused:
        app.note(f"rolecall: {outcome['id'] or 'the record'} refused ({outcome['reason']}): {outcome['message']}")
    return 1 if refused else 0


@click.command("read-records", cls=Command, short_help="Read records, oldest first, and the next cursor.")
@click.option("--since", default="0", metavar="X", help="A cursor, Unix seconds, milliseconds or ISO 8601; 0: all.")
@click.option("--by-time", is_flag=True, help="Compare the writer's time with --since (strictly later).")
@click.option("--who", default="", metavar="W", help="Only of this agent; a prefix with * at its end.")
@click.option("--event", default="", metavar="E", help="Only this event.")
@click.option("--session", default="", metavar="S", help="Only of this session; without --space its own space.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, metavar="N")
@click.option("--follow", is_flag=True, help="Go on with what arrives, one {entry, record} a line, until Ctrl-C.")
@click.option("--state", metavar="FILE", help="A state file instead of the fleet's store.")
@click.option("--space", default="", metavar="NAME", help="A task space. Default: the session's, or the last session.")
@pass_app
def read_records(
    app: App,
    since: str,
    by_time: bool,
    who: str,
    event: str,
    session: str,
    limit: int,
    follow: bool,
    state: str | None,
    space: str,
) -> None:
    """Read records of a space, oldest first: {"records", "entries", "next", "more"}.

    `next` is the cursor for the next --since: following it never skips a record and never repeats one.
    """
    from pathlib import Path

    from coordinator.follow import Filter
    from protocol.record import EVENTS

    if event and event not in EVENTS:
        raise click.UsageError(f"--event {event!r} is none of: {', '.join(EVENTS)}")
    if space and state:
        raise click.UsageError("give one of --space and --state")
    target = Target(space or session, Path(state) if state else None)
    wanted = Filter(who=who, event=event, session=session, by_time=by_time)

    async def work() -> None:
        async with open_target(app, target) as opened:
            if follow:
                await print_following(app, opened, since, wanted, as_json=True)
                return
            page = await opened.log.read(
                opened.space,
                since=since,
                who=who,
                event=event,
                session=session,
                limit=limit,
                by_time=by_time,
            )
            app.emit(page.to_json())

    app.run(work())


async def print_following(app: App, opened: Opened, since: str, wanted: Any, *, as_json: bool) -> None:
    """One record a line, for ever: ``{"entry", "record"}`` or, for people, a sentence."""
    from coordinator.cli.app import dump
    from coordinator.cli.render import record_line
    from coordinator.follow import follow, follow_file
    from protocol.stores.jsonfile import JsonFile

    if isinstance(opened.log, JsonFile):
        records = follow_file(opened.log, opened.space, since=since, wanted=wanted)
    else:
        assert opened.store is not None, "a log on the server comes with its store"
        store = opened.store
        records = follow(
            opened.log, store.blocking, store.keys, opened.space, since=since, wanted=wanted, tell=app.note
        )
    async for entry, record in records:
        found = record.to_json()
        value = {"entry": entry, "record": found}
        app.line(value, dump(value) if as_json else record_line(entry, found))


def outcome_text(outcome: dict[str, Any]) -> str:
    """``added  1719600000000-0  TASK_001``"""
    word = {"added": "added", "already": "already there", "refused": "refused"}[outcome["outcome"]]
    return "  ".join(filter(None, (word, outcome["entry"], outcome["id"])))
