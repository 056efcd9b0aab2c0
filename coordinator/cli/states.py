"""``init-state``: a new state file."""

from __future__ import annotations

import click

from coordinator.cli.app import App, pass_app
from coordinator.cli.lazy import Command


@click.command("init-state", cls=Command, short_help="Make a local state file.")
@click.option("--task-space", "name", required=True, metavar="NAME", help="The name of the space in it.")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where it goes.")
@click.option("--title", default="", help="A title; may be in any language.")
@click.option("--force", is_flag=True, help="Make it anew, whatever is there: what it held is gone.")
@pass_app
def init_state(app: App, name: str, output: str, title: str, force: bool) -> int:
    """Make a new local state file: one task space, without a server. Refuses to write over a file without --force."""
    from coordinator.localspaces import hand_meta
    from protocol.errors import Refused
    from protocol.keys import check_name
    from protocol.stores.jsonfile import JsonFile

    check_name(name, "space")
    path = app.cwd / output
    if path.exists() and not force:
        raise Refused(
            f"{output!r} is there already", reason="exists", mend="name another file, or --force to make it anew"
        )

    async def work() -> bool:
        return await JsonFile(path).create(name, meta=hand_meta(name, title), replace=force)

    if not app.run(work()):
        raise Refused(f"{output!r} is there already", reason="exists", mend="it was made a moment ago")
    app.emit({"space": name, "state": output, "created": True}, f"made {output}: space {name}")
    return 0
