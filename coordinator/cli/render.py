"""Text for people: tables that line up also with wide characters, ages, records as one line.

Guarantees: what comes from records is shown without control characters, so that no text can drive the terminal.
Never decides what is shown, never prints.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


def plain(value: object) -> str:
    """``value`` on one line, without characters that drive a terminal."""
    return _CONTROL.sub(" ", str(value))


def width(text: str) -> int:
    """Columns that ``text`` takes in a terminal."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def cut(text: str, columns: int) -> str:
    """``text`` in at most ``columns`` columns, with an ellipsis where something is missing."""
    text = plain(text)
    if width(text) <= columns:
        return text
    out, used = [], 0
    for char in text:
        used += width(char)
        if used > columns - 1:
            break
        out.append(char)
    return "".join(out) + "…"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, most: int = 60) -> str:
    """A plain table; no cell is wider than ``most`` columns but the last."""
    shown = [[plain("-" if cell is None or cell == "" else cell) for cell in row] for row in rows]
    if not shown:
        return ""
    cells = [[*(cut(cell, most) for cell in row[:-1]), row[-1]] for row in [list(heads), *shown]]
    widths = [max(width(row[i]) for row in cells) for i in range(len(heads))]
    lines = ["  ".join(cell + " " * (widths[i] - width(cell)) for i, cell in enumerate(row)).rstrip() for row in cells]
    return "\n".join(lines)


def age(seconds: float | None) -> str:
    """``3 s``, ``12 min``, ``5 h``, ``2 d``."""
    if seconds is None:
        return "-"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s" if seconds >= 10 or seconds <= 0 else f"{seconds:.1f} s"


def clock(seconds: float) -> str:
    """A moment in local time, to the second."""
    return datetime.fromtimestamp(seconds, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def counts(numbers: Mapping[str, int]) -> str:
    """``3 completed, 1 blocked``, the most first."""
    return ", ".join(f"{n} {plain(name)}" for name, n in sorted(numbers.items(), key=lambda kv: (-kv[1], kv[0])) if n)


def record_line(entry: str, record: Mapping[str, Any]) -> str:
    """One record as one line: arrival, who, event, id, what."""
    stamp, _, _ = entry.partition("-")
    when = clock(int(stamp) / 1000)[11:] if stamp.isdigit() and len(stamp) >= 12 else entry
    attempt = record["detail"].get("attempt")
    tail = f" #{attempt}" if isinstance(attempt, int) and attempt > 1 else ""
    return (
        f"{when}  {cut(record['who'], 24)}  {record['event']}  {cut(record['id'], 40)}{tail}  {plain(record['what'])}"
    )
