"""``task …`` and ``answer``: a person settles what is blocked, lost or waiting. Each is a record with who did it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from coordinator.cli.app import App, pass_app, read_text
from coordinator.cli.lazy import Command, Group
from coordinator.cli.store import Target, open_target, target_options
from coordinator.person import Done, Person

F = TypeVar("F", bound=Callable[..., Any])


def person_options(command: F) -> F:
    """``--as`` and ``--why``."""
    command = click.option("--why", default="", help="The reason, for the record.")(command)
    return click.option("--as", "who", default="", metavar="NAME", help="Who you are on record. Default: your login.")(
        command
    )


def settle(app: App, target: Target, who: str, do: Callable[[Person, str], Awaitable[Done]]) -> None:
    """Run one deed of a person and say what became of it."""

    async def work() -> Done:
        async with open_target(app, target) as opened:
            return await do(opened.person(who), opened.space)

    done = app.run(work())
    said = "" if done.outcome == "added" else " (that was done before)"
    then = f"; attempt {done.attempt} is with {done.role}" if done.attempt is not None else ""
    app.emit(done.to_json(), f"{done.action} {done.task}: {done.outcome} at {done.entry}{then}{said}")


@click.group(cls=Group, short_help="Settle a task that is blocked or lost.")
def task() -> None:
    """Settle a task that is blocked or lost; recorded with who did it."""


@task.command("retry", short_help="Try it again with the same role.")
@click.argument("task_id", metavar="ID")
@person_options
@target_options
@pass_app
def retry(app: App, target: Target, task_id: str, who: str, why: str) -> None:
    """Try task ID again with the same role; its tries are counted anew."""
    settle(app, target, who, lambda person, space: person.retry(space, task_id, why))


@task.command("reassign", short_help="Give it to another role.")
@click.argument("task_id", metavar="ID")
@click.option("--role", required=True, help="The role that is to do it.")
@person_options
@target_options
@pass_app
def reassign(app: App, target: Target, task_id: str, role: str, who: str, why: str) -> None:
    """Give task ID to another role."""
    settle(app, target, who, lambda person, space: person.reassign(space, task_id, role, why))


@task.command("cancel", short_help="Give it up.")
@click.argument("task_id", metavar="ID")
@person_options
@target_options
@pass_app
def cancel(app: App, target: Target, task_id: str, who: str, why: str) -> None:
    """Cancel task ID; what runs of it is stopped."""
    settle(app, target, who, lambda person, space: person.cancel(space, task_id, why))


@task.command("accept", short_help="Complete it by hand.")
@click.argument("task_id", metavar="ID")
@click.option("--result", metavar="TEXT", help="The result: JSON, or else plain text.")
@click.option("--result-file", metavar="FILE", help="The result from a file, - for stdin.")
@person_options
@target_options
@pass_app
def accept(
    app: App, target: Target, task_id: str, result: str | None, result_file: str | None, who: str, why: str
) -> None:
    """Complete task ID by hand, with a result if one is given."""
    import orjson

    if result is not None and result_file is not None:
        raise click.UsageError("give one of --result and --result-file")
    text = read_text(result_file, "the result") if result_file is not None else result
    value: object = None
    if text is not None:
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            value = text
    settle(app, target, who, lambda person, space: person.accept(space, task_id, value, why))


@click.command("answer", cls=Command, short_help="Answer a question that an agent asked.")
@click.argument("question")
@click.argument("text")
@click.option("--as", "who", default="", metavar="NAME", help="Who you are on record. Default: your login.")
@target_options
@pass_app
def answer(app: App, target: Target, question: str, text: str, who: str) -> None:
    """Answer QUESTION (its id, ASK_…) with TEXT (- for stdin); the agent that asked goes on."""
    words = read_text("-", "the answer") if text == "-" else text
    settle(app, target, who, lambda person, space: person.answer(space, question, words))
