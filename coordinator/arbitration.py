"""Arbitration on command: what a merge would decide, and the conflicts put on record.

Guarantees: the same rules and the same answer as the merge (``coordinator.arbitrate``); each conflict becomes one
``decision`` with both sides and the reason, once: the same conflict settled the same way is the same record. A dry run
writes nothing. Never changes a task and never merges.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from coordinator.merge import Merged
from coordinator.merging import Merging
from coordinator.spaceview import SpaceLog
from protocol.errors import AppendRefused
from protocol.ports import ArtifactStore, Clock, KnownRoles
from protocol.record import Json, Record, Trace, canonical, digest

WHAT_CHARS = 500


@dataclass(frozen=True, slots=True)
class Arbitrated:
    """Every decision and why; of the conflicts the records (id, outcome, entry) unless it was a dry run."""

    merged: Merged
    decisions: tuple[dict[str, Json], ...]
    recorded: tuple[dict[str, Json], ...]

    def to_json(self) -> dict[str, Json]:
        return {
            "decisions": list(self.decisions),
            "recorded": list(self.recorded),
            "kept": list(self.merged.merge_order),
        }


async def arbitrate_by_hand(
    log: SpaceLog, artifacts: ArtifactStore, roles: KnownRoles, space: str, *, who: str, dry_run: bool = False,
    clock: Clock = time.time,
) -> Arbitrated:  # fmt: skip
    """Decide what stands against what in ``space``, whether or not everything is delivered. Raises StoreError."""
    merging = Merging(log, artifacts, roles)
    _, entries = await merging.read(space)
    merged = await merging.compute(space, entries, force=True)
    session = entries[-1][1].session if entries else space
    records = [
        Record(
            id=f"DEC_{digest(canonical(detail))}", who=who, time=int(clock()), event="decision",
            what=f"{detail['kept']} is kept of {', '.join(detail['tasks'])}"[:WHAT_CHARS], detail=detail,
            trace=Trace(parent_id=None, session_id=session),
        )
        for detail in conflicts(merged)
    ]  # fmt: skip
    recorded: list[dict[str, Json]] = []
    if records and not dry_run:
        for record, outcome in zip(records, await log.append(space, records), strict=True):
            if outcome.outcome == "refused":
                raise AppendRefused(outcome.message, reason=outcome.reason)
            recorded.append({"id": record.id, "outcome": outcome.outcome, "entry": outcome.entry})
    return Arbitrated(merged, tuple(merged.decisions), tuple(recorded))


def conflicts(merged: Merged) -> list[dict[str, Json]]:
    """The ``detail`` of each conflict's decision: the sides with their verdicts and digests, what is kept and why."""
    decided = merged.decided
    return [
        {
            "action": "arbitrate", "by": "the rules of the merge", "why": conflict.why, "prefix": conflict.prefix,
            "tasks": list(conflict.tasks), "kept": conflict.kept,
            "sides": [
                {
                    "task": task, "who": decided.deliveries[task].who, "verdict": decided.status[task],
                    "result": digest(canonical(decided.deliveries[task].result)),
                }
                for task in conflict.tasks
            ],
        }
        for conflict in decided.conflicts
    ]  # fmt: skip
