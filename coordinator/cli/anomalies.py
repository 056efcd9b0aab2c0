"""``detect-anomalies``: what is wrong with a log."""

from __future__ import annotations

from collections import Counter

import click

from coordinator.cli.app import App, pass_app
from coordinator.cli.lazy import Command
from coordinator.cli.render import counts, plain
from coordinator.cli.store import Target, open_target, target_options


@click.command("detect-anomalies", cls=Command, short_help="Find what is wrong with a log.")
@click.option("--stuck-s", type=click.FloatRange(0), default=900.0, show_default=True, metavar="S",
              help="A task that stands in a state for longer is stuck.")  # fmt: skip
@click.option("--fail", is_flag=True, help="Exit 1 if there is something.")
@target_options
@pass_app
def detect_anomalies(app: App, target: Target, stuck_s: float, fail: bool) -> int:
    """Find what is wrong with a space's log.

    Format faults, silent agents, time that runs backwards, tasks stuck in a state, workspace, transition and delegation
    violations, duplicate identities, entries without their twin in the state. Changes nothing.
    """
    from coordinator.anomalies import Anomaly, find_anomalies
    from coordinator.doubt import look
    from protocol.stores.redis_projections import RedisProjections

    async def work() -> list[Anomaly]:
        async with open_target(app, target) as opened:
            store = opened.store
            projections = RedisProjections(store.client, store.keys, store.scripts) if store else None
            seen = await look(opened.log, projections, opened.space)
            return find_anomalies(
                seen.rows, seen.tasks, seen.ids, now_ms=seen.now_ms, lost_s=app.settings.lost_s, stuck_s=stuck_s,
                detail_max_bytes=app.settings.detail_max_bytes,
            )  # fmt: skip

    found = app.run(work())
    by_kind = Counter(one.kind for one in found)
    lines = [
        plain(f"{one.kind}: {one.message}  [{', '.join(one.records[:5])} @ {', '.join(one.entries[:3])}]")
        for one in found
    ]
    app.emit(
        {"anomalies": [one.to_json() for one in found], "counts": dict(by_kind)}, "\n".join(lines) or "nothing is wrong"
    )
    if found:
        app.note(counts(by_kind))
    return 1 if found and fail else 0
