"""``workspace put|get|list``: the areas of a space, as one agent may see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from coordinator.cli.app import App, pass_app, read_input, write_text
from coordinator.cli.lazy import Group
from coordinator.cli.render import table
from coordinator.cli.store import Opened, Target, open_target, target_options

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=Group, short_help="Put, get, list small files of a space's areas.")
def workspace() -> None:
    """Put, get, list small files of a space's areas: private/AGENT/…, summaries/…, shared/…, and the queue.

    What --as AGENT may not do is refused and leaves a protocol_violation.
    """


def agent_option(command: F) -> F:
    return click.option("--as", "who", required=True, metavar="AGENT", help="The agent that asks, by its name.")(
        command
    )


def _of(opened: Opened, who: str) -> Any:
    from coordinator.workspaces import Workspaces

    return Workspaces(opened.log, opened.areas, opened.space, who)


@workspace.command("put", short_help="Write a file.")
@click.argument("place", metavar="AREA/PATH")
@click.argument("source", metavar="[FILE]", required=False)
@agent_option
@target_options
@pass_app
def put(app: App, target: Target, place: str, source: str | None, who: str) -> None:
    """Write FILE (default and -: stdin) to AREA/PATH; to `queue`: propose tasks, as JSON."""
    data = read_input(source, "the file")

    async def work() -> dict[str, Any]:
        async with open_target(app, target) as opened:
            return (await _of(opened, who).put(place, data)).to_json()  # type: ignore[no-any-return]

    done = app.run(work())
    word = "written" if done["outcome"] == "added" else "like that already"
    app.emit(done, f"{word}: {done['path']}  {done['entry']}".rstrip())


@workspace.command("get", short_help="Print a file.")
@click.argument("place", metavar="AREA/PATH")
@click.option("-o", "--output", default="-", metavar="FILE", help="Where it goes. Default: stdout.")
@agent_option
@target_options
@pass_app
def get(app: App, target: Target, place: str, output: str, who: str) -> None:
    """Print the file at AREA/PATH; of `queue`: the tasks, as JSON."""

    async def work() -> str:
        async with open_target(app, target) as opened:
            return str(await _of(opened, who).get(place))

    text = app.run(work())
    if app.json:
        app.emit({"path": place, "text": text})
    else:
        write_text(output, text)


@workspace.command("list", short_help="List an area.")
@click.argument("place", metavar="AREA[/PATH]")
@agent_option
@target_options
@pass_app
def listing(app: App, target: Target, place: str, who: str) -> None:
    """List what an area (or a folder in it) holds; of `queue`: the tasks."""

    async def work() -> list[dict[str, Any]]:
        async with open_target(app, target) as opened:
            return list(await _of(opened, who).listing(place))

    rows = app.run(work())
    heads = tuple(rows[0]) if rows else ()
    app.emit(rows, table(heads, [tuple(row.values()) for row in rows]) or "nothing there")
