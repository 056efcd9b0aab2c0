"""``kit``: the protocol's skill for agents that can run a command."""

from __future__ import annotations

import click

from coordinator.cli.app import App, pass_app
from coordinator.cli.lazy import Command


@click.command(cls=Command, short_help="The protocol as a skill for outside agents.")
@click.option("--to", metavar="DIR", help="Copy the skill's folder into DIR, such as .claude/skills.")
@click.option("--prompt", "kind", metavar="KIND", help="Print the prompt of a master, verifier or manager.")
@pass_app
def kit(app: App, to: str | None, kind: str | None) -> None:
    """Say where the skill `rolecall-protocol` is, copy it, or print a workflow prompt.

    The skill tells any agent that can run a command how to take part in a task space.
    """
    from protocol.kit.outside import FOLDER, NAME, copy_to, prompt

    if to is not None and kind is not None:
        raise click.UsageError("give one of --to and --prompt")
    if kind is not None:
        text = prompt(kind, fleet=False)
        app.emit({"kind": kind, "prompt": text}, text)
        return
    if to is None:
        app.emit({"skill": NAME, "path": str(FOLDER)}, str(FOLDER))
        return
    target = copy_to(app.cwd / to)
    app.emit({"skill": NAME, "path": str(target), "copied": True}, f"copied to {target}")
