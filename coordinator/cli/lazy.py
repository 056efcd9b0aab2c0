"""The table of commands, and the group that imports one only when it is called.

Guarantees: the list of commands with their one line of help is shown without importing any of them. Every command
understands ``--json`` and ``--debug``, before or after its name. Never decides anything about a command but where it
lives.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click

from coordinator.cli.app import App

RECORDS: Final = "Records"
FLEET: Final = "The fleet"

COMMANDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "create-task-space": (RECORDS, "spaces:create_task_space", "Make a task space."),
    "list-tasks": (RECORDS, "spaces:list_tasks", "List the task spaces there are."),
    "init-state": (RECORDS, "states:init_state", "Make a local state file."),
    "repair-json": (RECORDS, "gates:repair_json", "Gate 1 alone: print the repaired JSON."),
    "normalize-record": (RECORDS, "gates:normalize_record", "Gates 1 to 3: print the seven-field record."),
    "validate-record": (RECORDS, "gates:validate_record", "Gates 3 and 4 on what is there, unchanged."),
    "schema": (RECORDS, "gates:schema", "Print the published JSON Schema of a record."),
    "add-record": (RECORDS, "records:add_record", "All gates, then append records once."),
    "read-records": (RECORDS, "records:read_records", "Read records, oldest first, and the next cursor."),
    "generate-summary": (RECORDS, "digest:generate_summary", "Count events, tasks, verdicts; what is open."),
    "detect-anomalies": (RECORDS, "anomalies:detect_anomalies", "Find what is wrong with a log."),
    "arbitrate": (RECORDS, "arbitrate:arbitrate", "Resolve conflicting results by the rules."),
    "merge-outputs": (RECORDS, "digest:merge_outputs", "Merge what was delivered, or say what stands in the way."),
    "check-status": (RECORDS, "digest:check_status", "Show the phase, agents, tasks by state, what waits."),
    "workspace": (RECORDS, "workspace:workspace", "Put, get, list small files of a space's areas."),
    "rebuild": (RECORDS, "rebuild:rebuild", "Make the projections anew from the log."),
    "kit": (RECORDS, "kit:kit", "The protocol as a skill for outside agents."),
    "up": (FLEET, "fleet:up", "Run a whole fleet on this machine."),
    "leader": (FLEET, "fleet:leader", "Run one leader process."),
    "manager": (FLEET, "fleet:manager", "Run one manager process."),
    "run": (FLEET, "run:run", "Start a session, follow it, exit by its outcome."),
    "status": (FLEET, "looks:status", "Show what is going on."),
    "watch": (FLEET, "looks:watch", "Show what is going on, live."),
    "workers": (FLEET, "looks:workers", "List the workers and how they are."),
    "roles": (FLEET, "looks:roles", "List the roles of the fleet, or check role files."),
    "skills": (FLEET, "skills:skills", "List, check, make or run skills."),
    "session": (FLEET, "sessions:session", "List, show, cancel, rename … sessions."),
    "task": (FLEET, "tasks:task", "Settle a task that is blocked or lost."),
    "agents": (FLEET, "agents:agents", "List the agents of a session and how they are."),
    "agent": (FLEET, "agents:agent", "End an agent."),
    "answer": (FLEET, "tasks:answer", "Answer a question that an agent asked."),
    "message": (FLEET, "agents:message", "Send a message to an agent."),
    "say": (FLEET, "agents:say", "Speak up in a session."),
    "export": (FLEET, "export:export", "Write a session's conversations as files."),
    "import": (FLEET, "export:import_", "Read conversations back from files."),
    "config": (FLEET, "doctor:config", "Show the settings in force."),
    "doctor": (FLEET, "doctor:doctor", "Find what is wrong with this installation or fleet."),
}
"""Name -> (section, module:attribute under ``coordinator.cli``, help)."""


def shared_options() -> list[click.Option]:
    """``--json`` and ``--debug``, understood everywhere."""

    def set_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.ensure_object(App).json = True

    def set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.ensure_object(App).debug = True

    return [
        click.Option(
            ["--json"], is_flag=True, expose_value=False, is_eager=True, callback=set_json, help="One JSON document."
        ),
        click.Option(
            ["--debug"], is_flag=True, expose_value=False, is_eager=True, callback=set_debug, help="Show tracebacks."
        ),
    ]


class Command(click.Command):
    """A command with the shared options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(shared_options())


class Group(click.Group):
    """A group of commands with the shared options, on itself and on each of them."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(shared_options())


class LazyGroup(Group):
    """The top: knows its commands by the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = COMMANDS.get(cmd_name)
        if found is None:
            return None
        module, _, attribute = found[1].partition(":")
        command = getattr(import_module(f"coordinator.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"no such command {name!r}{hint}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in (RECORDS, FLEET):
            rows = [(name, text) for name, (of, _, text) in COMMANDS.items() if of == section]
            with formatter.section(section):
                formatter.write_dl(rows)
