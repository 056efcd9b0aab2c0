"""``up``, ``leader``, ``manager``: the processes of a fleet."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coordinator.cli.app import App, pass_app, read_text
from coordinator.cli.lazy import Command
from protocol.errors import ConfigError, RoleError

if TYPE_CHECKING:
    from coordinator.up import FleetEvent
    from protocol.kit.rolefiles import Loaded

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(cls=Command, short_help="Run a whole fleet on this machine.")
@click.option("--roles", "wanted", default="", metavar="A=2,B=1", help="Worker processes per role; a name alone is 1.")
@click.option("--plan", "plans", multiple=True, metavar="FILE", help="Start the roles that this plan names.")
@click.option("--leaders", type=click.IntRange(0, 100), default=1, show_default=True)
@click.option("--managers", type=click.IntRange(0, 100), default=1, show_default=True)
@click.option("--logs", type=click.Path(path_type=Path), help="A folder for one log file a process. Default: stderr.")
@pass_app
def up(app: App, wanted: str, plans: tuple[str, ...], leaders: int, managers: int, logs: Path | None) -> int:
    """Run a whole fleet on this machine: leaders, managers and workers as processes of their own.

    Uses the embedded server unless REDIS_URL is set. What dies is started again (with a growing pause) and its death
    is reported at once. Ctrl-C drains within ROLECALL_GRACE_S, a second one kills. Without --roles and --plan: one
    worker of every role that there is.
    """
    from protocol.kit.rolefiles import load_roles

    loaded = load_roles(app.settings.roles_path)
    for text in (*loaded.warnings, *map(str, loaded.problems)):
        app.note(text)
    roles = chosen_roles(loaded, parse_counts(wanted), [plan_roles(path) for path in plans])
    return app.run(_up(app, roles, leaders, managers, logs))


async def _up(app: App, roles: Mapping[str, int], leaders: int, managers: int, logs: Path | None) -> int:
    from coordinator.up import Fleet

    def tell(event: FleetEvent) -> None:
        if app.json:
            value = {"event": event.kind, "text": event.text, "child": event.child, "pid": event.pid}
            app.line(value | ({"start": event.start} if event.start else {}), "")
        else:
            app.note(event.text)

    fleet = Fleet(app.settings, roles, leaders=leaders, managers=managers, env=app.env, output=logs, on_event=tell)
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, fleet.ask_stop)
    try:
        async with fleet:
            if await fleet.ready():
                app.note(f"the fleet is up: {len(fleet.children)} processes; Ctrl-C drains it")
            await fleet.wait()
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    return 0


@click.command(cls=Command, short_help="Run one leader process.")
@pass_app
def leader(app: App) -> int:
    """Run one leader: it leads the sessions whose lease it holds. Any number may run, on any host."""
    from coordinator.cli.store import server_url
    from coordinator.processes import run_leader

    return app.run(run_leader(app.settings, server_url(app), app.env))


@click.command(cls=Command, short_help="Run one manager process.")
@pass_app
def manager(app: App) -> int:
    """Run one manager: it buries the dead, reassigns, fires alarms, merges. Any number may run, on any host."""
    from coordinator.cli.store import server_url
    from coordinator.processes import run_manager

    return app.run(run_manager(app.settings, server_url(app), app.env))


def parse_counts(text: str) -> dict[str, int]:
    """``a=2,b`` -> {"a": 2, "b": 1}. Raises ConfigError."""
    out: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, number = part.partition("=")
        if sign and not (number.strip().isascii() and number.strip().isdigit()):
            raise ConfigError(
                f"--roles: {part!r} has no number of processes", mend="write it like reviewer=2,verifier=1"
            )
        name = name.strip()
        if name in out:
            raise ConfigError(f"--roles names {name!r} twice", mend="name each role once")
        out[name] = int(number) if sign else 1
    return out


def plan_roles(path: str) -> Sequence[str]:
    """The roles that a plan file names. Raises PlanRefused or ConfigError."""
    from coordinator.planfile import read

    return list(read(read_text(path, "the plan"), name=path).roles)


def chosen_roles(loaded: Loaded, counts: Mapping[str, int], plans: Sequence[Sequence[str]]) -> dict[str, int]:
    """Worker processes per role id. Raises RoleError for an unknown role."""
    out: dict[str, int] = {}
    for roles in plans:
        for role in roles:
            out.setdefault(loaded.need(role).id, 1)
    for role, count in counts.items():
        out[loaded.need(role).id] = count
    if not counts and not plans:
        out = dict.fromkeys(sorted(loaded.roles), 1)
    if not out:
        raise RoleError("there is no role to start", mend="put role files into a directory and set ROLECALL_ROLES")
    return out
