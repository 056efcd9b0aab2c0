"""A space as it stands, for those who doubt it: the log's entries, the projections, the store's clock.

Guarantees: the entries are read first, up to one point, and the projections after them. Reads only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.projection import Raw
from protocol.stores.jsonfile import JsonFile
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_projections import RedisProjections, raw_of
from protocol.tasks import TaskState


@dataclass(frozen=True, slots=True)
class Doubted:
    """The log's entries, oldest first, and what the space's state says of them."""

    rows: list[Raw]
    tasks: Mapping[str, TaskState]
    ids: Mapping[str, str]
    now_ms: int


async def look(log: RedisLog | JsonFile, projections: RedisProjections | None, space: str) -> Doubted:
    """Read a whole space. ``projections`` for a log on a server."""
    if isinstance(log, JsonFile):
        ledger = log.whole(space)
        rows: list[Raw] = [(row["entry"], row["record"]) for row in ledger.rows]
        return Doubted(rows, ledger.states(), ledger.ids, log.now())
    assert projections is not None, "a log on a server has its projections there"
    rows = []
    upto = await projections.last(space)
    async for page in projections.rows(space, upto):
        rows += [raw_of(entry, fields) for entry, fields in page]
    return Doubted(rows, await log.task_states(space), await projections.ids(space), await log.now_ms())
