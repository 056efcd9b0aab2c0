"""Cursors: what ``since`` may be, and where a read begins.

Guarantees: a cursor (stream id, with its ``-``) means the entries after it; a time means "arrived later than that
moment" (whole seconds: from the start of that second, so that the boundary second is read again); 0 or negative means
everything; anything else is refused. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from protocol.errors import Refused

_CURSOR: Final = re.compile(r"(\d{1,19})-(\d{1,19})\Z")
_NUMBER: Final = re.compile(r"-?\d{1,17}(\.\d{1,9})?\Z")
MILLISECONDS_FROM: Final = 100_000_000_000
"""A number from here on is milliseconds: as seconds it would be the year 5138."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a read begins: ``at`` (ms, seq), exclusive or not. ``cursor`` tells a cursor from a time."""

    ms: int
    seq: int
    exclusive: bool
    cursor: bool

    @property
    def redis(self) -> str:
        """The start argument of XRANGE."""
        return f"{'(' if self.exclusive else ''}{self.ms}-{self.seq}"

    def before(self, ms: int, seq: int) -> bool:
        """True where the entry (ms, seq) lies after this start."""
        return (ms, seq) > (self.ms, self.seq) if self.exclusive else (ms, seq) >= (self.ms, self.seq)


BEGINNING: Final = Start(0, 0, exclusive=False, cursor=False)


def parse_since(since: str | int | float) -> Start:
    """Where to begin for ``since``. Raises Refused for what is neither a cursor nor a time."""
    if isinstance(since, bool):
        raise _refused(since)
    text = str(since).strip()
    if match := _CURSOR.match(text):
        return Start(int(match[1]), int(match[2]), exclusive=True, cursor=True)
    moment = parse_moment_ms(text)
    if moment is None:
        raise _refused(since)
    ms, whole_seconds = moment
    if ms <= 0:
        return BEGINNING
    if whole_seconds:
        return Start(ms, 0, exclusive=False, cursor=False)
    return Start(ms, 2**63 - 1, exclusive=True, cursor=False)


def parse_moment_ms(text: str) -> tuple[int, bool] | None:
    """(milliseconds, given in whole seconds) of Unix seconds, milliseconds or ISO 8601; None for anything else."""
    if _NUMBER.match(text):
        value = float(text) if "." in text else int(text)
        if value >= MILLISECONDS_FROM:
            return int(value), False
        return round(value * 1000), value == int(value)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = moment.timestamp()
    return round(seconds * 1000), moment.microsecond == 0


def entry_key(entry: str) -> tuple[int, int]:
    """(ms, seq) of a stream id, for ordering."""
    ms, _, seq = entry.partition("-")
    return int(ms), int(seq or 0)


def _refused(since: object) -> Refused:
    return Refused(
        f"since={since!r} is neither a cursor nor a time", reason="bad_cursor", path="since",
        mend="give a cursor like 1719600000000-0, Unix seconds, milliseconds, ISO 8601, or 0 for everything",
    )  # fmt: skip
