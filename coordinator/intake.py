"""The way of outside text into a log: all four gates, then one append each.

Guarantees: what passes is appended once, what is refused leaves a ``protocol_violation`` with the raw text, and one
refusal never hides the others. Never changes what a gate let through.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coordinator.spaceview import SpaceLog
from protocol.errors import GateRefused
from protocol.gates import default_new_id, pass_gates, repair
from protocol.ports import Appended, Clock
from protocol.record import DETAIL_MAX_BYTES, Json, Record, Trace, canonical, digest

WHO: Final = "gates"


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of one record of the input: ``added``, ``already`` or ``refused``; ``entry`` is the record's, of a
    refused one the violation's."""

    outcome: str
    id: str = ""
    entry: str = ""
    reason: str = ""
    message: str = ""
    changes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {"outcome": self.outcome, "id": self.id, "entry": self.entry}
        if self.outcome == "refused":
            out |= {"reason": self.reason, "message": self.message}
        if self.changes:
            out["changes"] = list(self.changes)
        return out


async def take_in(
    log: SpaceLog,
    space: str,
    raw: bytes,
    *,
    strict: bool = False,
    detail_max_bytes: int = DETAIL_MAX_BYTES,
    clock: Clock = time.time,
    random: Callable[[], str] = lambda: secrets.token_hex(8),
) -> list[Taken]:
    """Let ``raw`` (one record, or a JSON list of them) through the gates into ``space``; one outcome a record.

    ``strict``: what would have to be repaired or normalised is refused. Raises StoreError.
    """
    meta = await log.meta(space)
    session = meta.get("session") or space
    now = int(clock())
    out: list[Taken | None] = []
    ready: list[tuple[int, Record]] = []
    violations: list[tuple[int, Record]] = []
    for at, one in enumerate(split(raw)):
        out.append(None)
        try:
            record, report = pass_gates(
                one,
                now=now,
                session=session,
                new_id=default_new_id(random),
                strict=strict,
                detail_max_bytes=detail_max_bytes,
            )
            changes = (*report.repairs, *map(str, report.changes))
            if strict and changes:
                raise GateRefused(
                    f"strict: {changes[0]}", gate=1 if report.repairs else 2, problems=tuple(("$", c) for c in changes)
                )
        except GateRefused as refusal:
            message = "; ".join(f"{path}: {words}" for path, words in refusal.problems)
            out[at] = Taken("refused", reason=refusal.reason, message=message)
            violations.append((at, violation(one, refusal, session=session, now=now, most=detail_max_bytes)))
        else:
            out[at] = Taken("?", id=record.id, changes=changes)
            ready.append((at, record))
    for at, outcome in await _append(log, space, violations):
        out[at] = _with(out[at], outcome.entry)
    if ready and meta:
        await log.open_space(space)  # a settled space is not swept: nobody would notice that its agents fell silent
    for at, outcome in await _append(log, space, ready):
        before = out[at]
        assert before is not None, "every record of the input has its place"
        out[at] = Taken(outcome.outcome, before.id, outcome.entry, outcome.reason, outcome.message, before.changes)
    return [taken for taken in out if taken is not None]


def split(raw: bytes) -> list[bytes | dict[str, Json]]:
    """The records of an input: the objects of a JSON list, else the whole text as one."""
    head = raw.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head.startswith(b"["):
        return [raw]
    try:
        value, _ = repair(raw)
    except GateRefused:
        return [raw]  # the gates say why
    if not isinstance(value, list) or not value:
        return [raw]
    return [one if isinstance(one, dict) else canonical(one) for one in value]


def violation(raw: bytes | dict[str, Json], refusal: GateRefused, *, session: str, now: int, most: int) -> Record:
    """The record that keeps what a gate refused. The same text refused for the same reason is one record."""
    text = (raw if isinstance(raw, bytes) else canonical(raw)).decode("utf-8", "replace")
    detail: dict[str, Json] = {
        "reason": refusal.reason,
        "message": refusal.message[:2_000],
        "problems": [{"path": path, "message": words} for path, words in refusal.problems[:50]],
    }
    room = most - len(canonical(detail)) - 200
    kept = text
    while len(canonical(kept)) > room:
        kept = kept[: min(len(kept) * room // len(canonical(kept)), len(kept) - 1)]
    if kept != text:
        detail |= {"raw_chars": len(text), "raw_sha": digest(text)}
    return Record(
        id=f"PV_{digest(refusal.reason, text)}",
        who=WHO,
        time=now,
        event="protocol_violation",
        what=f"{refusal.reason}: a record was refused",
        detail=detail | {"raw": kept},
        trace=Trace(parent_id=None, session_id=session),
    )


def _with(taken: Taken | None, entry: str) -> Taken:
    assert taken is not None, "every record of the input has its place"
    return Taken(taken.outcome, taken.id, entry, taken.reason, taken.message, taken.changes)


async def _append(log: SpaceLog, space: str, places: list[tuple[int, Record]]) -> list[tuple[int, Appended]]:
    """Append all at once (on a file that is one replace); each place with its outcome."""
    if not places:
        return []
    outcomes = await log.append(space, [record for _, record in places])
    return [(at, outcome) for (at, _), outcome in zip(places, outcomes, strict=True)]
