"""A merge on command: a space merged by hand, or only shown.

Guarantees: the same pure merge and the same append as the manager's; with ``dry_run`` nothing is written; an event
that came in between makes it compute again. Never forces what was not forced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import orjson

from coordinator.merge import Merged, merge
from coordinator.mergeinputs import from_records, needed_artifacts
from coordinator.merging import Merging
from protocol.errors import StoreError
from protocol.record import Json, Record
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_log import RedisLog

PAGE: Final = 1_000
TIMES: Final = 20


@dataclass(frozen=True, slots=True)
class ByHand:
    """What a merge on command came to. ``written`` is False for a dry run, and where there was no news."""

    merged: Merged
    written: bool


async def read_all(log: RedisLog, space: str) -> list[tuple[str, Record]]:
    """Every record of a space with its entry. For what needs the whole log, once per command."""
    out: list[tuple[str, Record]] = []
    last = "0-0"
    while page := await log.tail(space, last, PAGE):
        out += page
        last = page[-1][0]
    return out


async def merge_by_hand(
    log: RedisLog, artifacts: Artifacts, space: str, *, force: bool = False, dry_run: bool = False
) -> ByHand:
    """Merge ``space``. Raises MergeRefused with what stands in the way, StoreError."""
    for _ in range(TIMES):
        meta = await log.meta(space)
        matter = meta.get("matter", "0-0")
        entries = await read_all(log, space)
        merged = merge(
            from_records(entries, resolve=await _content(artifacts, space, (r for _, r in entries))), force=force
        )
        if any(record.id == merged.merge_id for _, record in entries):
            return ByHand(merged, written=False)
        if dry_run or await Merging(log, artifacts).write(space, entries, merged, as_of=matter):
            return ByHand(merged, written=not dry_run)
    raise StoreError(f"{space!r} changes faster than it can be merged", op="merge", mend="try again in a moment")


async def _content(artifacts: Artifacts, space: str, records: Iterable[Record]) -> dict[str, Json]:
    """The results that were too large for their records."""
    out: dict[str, Json] = {}
    for sha256 in needed_artifacts(records):
        try:
            out[sha256] = orjson.loads(await artifacts.get(space, sha256))
        except StoreError as error:
            if error.retryable:
                raise
            # It is gone for good: the merge lists its task as not delivered.
    return out
