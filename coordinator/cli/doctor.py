"""``config`` and ``doctor``: the settings in force, and what is wrong with this installation or fleet."""

from __future__ import annotations

from typing import Any

import click

from coordinator.cli.app import App, pass_app
from coordinator.cli.lazy import Command
from coordinator.cli.render import table


@click.command(cls=Command, short_help="Show the settings in force.")
@click.option("--crash-points", is_flag=True, help="List the values of ROLECALL_CRASH_AT.")
@pass_app
def config(app: App, crash_points: bool) -> None:
    """Show the settings in force and where each comes from; secrets are hidden."""
    if crash_points:
        from protocol.kit.crash import POINTS

        rows = [{"point": name, "when": when} for name, when in POINTS.items()]
        app.emit(rows, table(("point", "when"), list(POINTS.items())))
        return
    from protocol.kit.embedded import find_running
    from protocol.kit.settings import hide_password

    shown = app.settings.shown()
    settings = [{"name": name, "value": value, "source": source} for name, value, source in shown]
    server: dict[str, Any] | None = None
    found = find_running(app.settings.data_dir)
    if found is not None:
        server = {"url": hide_password(found.url), "pid": found.pid, "directory": str(found.directory)}
    text = table(("setting", "value", "from"), shown, most=100)
    if server is not None:
        text += f"\n\nembedded server: {server['url']}  pid {server['pid']}  {server['directory']}"
    elif app.settings.redis_url is None:
        text += f"\n\nembedded server: not running; its data would be in {str(app.settings.data_dir / 'server')!r}"
    app.emit({"settings": settings, "embedded": server}, text)


@click.command(cls=Command, short_help="Find what is wrong with this installation or fleet.")
@pass_app
def doctor(app: App) -> int:
    """Check this installation and, where its server runs, the fleet. Exits 1 if something is wrong."""
    from coordinator.checkup import examine

    checks = app.run(examine(app.settings, app.env, app.cwd / "state"))
    rows = [check.to_json() for check in checks]
    text = "\n".join(
        f"{'ok  ' if check.ok else 'BAD '} {check.check}{'' if check.ok else f': {check.mend}'}" for check in checks
    )
    app.emit(rows, text)
    return 0 if all(check.ok for check in checks) else 1
