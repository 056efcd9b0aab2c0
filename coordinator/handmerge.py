"""A merge on command: a space merged by hand, or only shown.

Guarantees: the same pure merge and the same append as the manager's; with ``dry_run`` nothing is written; an event
that came in between makes it compute again. Never forces what was not forced.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.merge import Merged
from coordinator.merging import TIMES, Merging
from coordinator.spaceview import SpaceLog
from protocol.errors import StoreError
from protocol.ports import ArtifactStore, KnownRoles


@dataclass(frozen=True, slots=True)
class ByHand:
    """What a merge on command came to. ``written`` is False for a dry run, and where there was no news."""

    merged: Merged
    written: bool


async def merge_by_hand(
    log: SpaceLog, artifacts: ArtifactStore, roles: KnownRoles, space: str, *, force: bool = False,
    dry_run: bool = False,
) -> ByHand:  # fmt: skip
    """Merge ``space``. Raises MergeRefused with what stands in the way, StoreError."""
    merging = Merging(log, artifacts, roles)
    for _ in range(TIMES):
        matter, entries = await merging.read(space)
        merged = await merging.compute(space, entries, force=force)
        if any(record.id == merged.merge_id for _, record in entries):
            return ByHand(merged, written=False)
        if dry_run or await merging.write(space, entries, merged, as_of=matter):
            return ByHand(merged, written=not dry_run)
    raise StoreError(f"{space!r} changes faster than it can be merged", op="merge", mend="try again in a moment")
