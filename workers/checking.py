"""What a worker's records pass before they leave: the gates, and the artifact store for what is too large.

Guarantees: no record leaves that gates 3 and 4 would refuse; a result beyond the detail limit becomes an artifact with
its digest and size. Never changes a result's content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.errors import GateRefused, StoreFull
from protocol.gates import check_schema
from protocol.keys import Keys
from protocol.kit.metrics import Metrics
from protocol.kit.settings import Settings
from protocol.ports import Dispatch
from protocol.record import Record, canonical
from protocol.stores.client import Client
from protocol.stores.redis_artifacts import Artifacts
from workers.rolesource import RoleSource


class Checker:
    """The gates of one worker."""

    def __init__(self, source: RoleSource, client: Client, keys: Keys, settings: Settings, metrics: Metrics) -> None:
        self._source = source
        self._artifacts = Artifacts(client, keys)
        self._limit = settings.detail_max_bytes
        self._metrics = metrics

    async def check(self, dispatch: Dispatch, records: Sequence[Record]) -> tuple[Record, ...]:
        """The records as they may be stored. Raises GateRefused."""
        return tuple([await self._one(dispatch, record) for record in records])

    async def _one(self, dispatch: Dispatch, record: Record) -> Record:
        if record.event == "task_completed" and "result" in record.detail and _large(record.detail, self._limit):
            record = await self._spill(dispatch, record)
        check_schema(record, detail_max_bytes=self._limit)
        return record

    async def _spill(self, dispatch: Dispatch, record: Record) -> Record:
        try:
            kept = await self._artifacts.put(dispatch.space, canonical(record.detail["result"]))
            # Named before the record is written: a crash in between leaves bytes, never a record without its result.
            await self._artifacts.name(dispatch.space, kept, dispatch)
        except StoreFull as full:
            if full.retryable:  # the server's memory, not a limit of ours: it is waited for
                raise
            raise GateRefused(str(full), gate=4, path="detail.result") from full
        detail = {k: v for k, v in record.detail.items() if k != "result"}
        detail["artifact"] = {"sha256": kept.sha256, "size": kept.size, "type": "application/json"}
        return record.model_copy(update={"detail": detail})


def _large(detail: Mapping[str, Any], limit: int) -> bool:
    """True where the detail is beyond the limit; small details are not measured exactly. What is no JSON is for the
    gate to refuse."""
    try:
        return len(canonical(detail)) > limit - 1_024
    except ValueError:
        return False
