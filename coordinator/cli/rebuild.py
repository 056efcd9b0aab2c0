"""``rebuild``: the projections of a space made anew from its log."""

from __future__ import annotations

import click

from coordinator.cli.app import App, pass_app
from coordinator.cli.lazy import Command
from coordinator.cli.render import cut, table
from coordinator.cli.store import Target, open_target, target_options


@click.command(cls=Command, short_help="Make the projections anew from the log.")
@click.option("--check", is_flag=True, help="Only compare: change nothing, exit 1 if something differs.")
@target_options
@pass_app
def rebuild(app: App, target: Target, check: bool) -> int:
    """Make a space's projections (task states, ids, indexes, what waits) anew from its log, and put them in place.

    The log is the truth and is never changed. With --check they are only compared.
    """
    from coordinator.rebuild import Rebuilding, Rebuilt, rebuild_file
    from protocol.stores.jsonfile import JsonFile
    from protocol.stores.redis_projections import RedisProjections

    async def work() -> Rebuilt:
        async with open_target(app, target) as opened:
            if isinstance(opened.log, JsonFile):
                return await rebuild_file(opened.log, opened.space, check=check)
            assert opened.store is not None, "a log on a server comes with its store"
            store = opened.store
            return await Rebuilding(RedisProjections(store.client, store.keys, store.scripts), opened.space).run(
                check=check
            )

    done = app.run(work())
    rows = [(d.projection, cut(d.key, 40), cut(d.live, 50), d.rebuilt) for d in done.differences[:50]]
    text = table(("projection", "key", "as it is", "as the log says"), rows)
    said = "put in place" if done.written else "differ" if done.differences else "equal"
    app.emit(done.to_json(), f"{text}\n{done.records} records: {said}".lstrip())
    if done.faults:
        app.note(f"{done.faults} entries are no records: see detect-anomalies")
    return 1 if check and done.differences else 0
