"""Gate 2: safe defaults and spellings, each change listed. Pure: time, session and ids are passed in.

Guarantees: a record that is right comes out equal, with no change listed. Nothing is invented that changes the meaning:
``who`` and ``event`` have no default, an unknown event stays as it is (gate 3 refuses it), an outcome is never filled
in. No eighth field leaves this gate. Never judges values: that is gate 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from protocol.errors import GateRefused
from protocol.gates.report import Change
from protocol.record import EVENT_TABLE, TIME_MAX, Json

FIELDS: Final = ("id", "who", "time", "event", "what", "detail", "trace")
_FIELD_SET: Final = frozenset(FIELDS)
_DIGITS: Final = re.compile(r"[0-9]{9,13}(?:\.[0-9]+)?\Z")
_ISO: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ].*)?\Z", re.DOTALL)
_MS_MAX: Final = 10_000_000_000_000
"""Above this even milliseconds make no date before 2286: neither seconds nor milliseconds, so gate 3 refuses it."""


def default_new_id(random: Callable[[], str]) -> Callable[[str], str]:
    """A maker of ids from a source of random text (``[A-Za-z0-9]``, some 16 characters): prefix -> id."""
    return lambda prefix: prefix + random()


def normalise(
    value: Json, *, now: int, session: str, new_id: Callable[[str], str], strict: bool = False
) -> tuple[dict[str, Json], list[Change]]:
    """A record with the seven fields filled in and spelled right, and every change.

    ``now`` is in Unix seconds; ``session`` is the space's current session; ``new_id`` gets the event's prefix
    (``TASK_``, ``HB_``, …). ``strict``: an unknown field is refused instead of moved under ``detail``. ``value`` itself
    is not touched. Raises GateRefused (gate 2) for what is no object, and for fields that can't be placed.
    """
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise GateRefused(
            f"a record is a JSON object, not {kind!r}", gate=2, kind="not_an_object", mend="send one object"
        )
    changes: list[Change] = []
    out: dict[str, Json] = {field: value[field] for field in FIELDS if field in value}
    strangers = [] if value.keys() <= _FIELD_SET else _other_case(value, out, changes)
    _event(out, changes)
    rule = EVENT_TABLE.get(out["event"]) if isinstance(out.get("event"), str) else None
    if _blank(out.get("id")):
        made = new_id(rule.prefix if rule else "REC_")
        changes.append(Change("id", out.get("id"), made, "a new id"))
        out["id"] = made
    _time(out, now, changes)
    if _blank(out.get("what")) and rule is not None:
        changes.append(Change("what", out.get("what"), rule.words, "the event in words"))
        out["what"] = rule.words
    _detail(out, changes)
    _trace(out, session, changes)
    if strangers:
        _place(value, strangers, out, strict, changes)
    return {field: out[field] for field in FIELDS if field in out}, changes


def _blank(value: Json) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _other_case(value: dict[object, Json], out: dict[str, Json], changes: list[Change]) -> list[object]:
    """Map keys that differ from a field only in case; the rest are strangers."""
    strangers: list[object] = []
    for key in value:
        if key in _FIELD_SET:
            continue
        lower = key.casefold() if isinstance(key, str) else ""
        if lower not in _FIELD_SET:
            strangers.append(key)
        elif lower in out:
            changes.append(Change(str(key), value[key], None, f"dropped: the field {lower!r} is there"))
        else:
            out[lower] = value[key]
            changes.append(Change(lower, None, value[key], f"taken from {key!r}"))
    return strangers


def _place(
    value: dict[object, Json], strangers: list[object], out: dict[str, Json], strict: bool, changes: list[Change]
) -> None:
    """Unknown keys go under ``detail``; refused in strict mode and where they contradict it."""
    problems: list[tuple[str, str]] = []
    detail = out["detail"]
    moved: dict[object, Json] = {}
    for key in strangers:
        path = key if isinstance(key, str) else repr(key)
        if strict:
            problems.append((path, "no field of a record; a record has exactly seven"))
        elif not isinstance(detail, dict):
            problems.append((path, "no field of a record, and `detail` is no object that could hold it"))
        elif key in detail and not _same(detail[key], value[key]):
            problems.append((path, f"no field of a record, and `detail` has another value under {path!r}"))
        else:
            moved[key] = value[key]
            changes.append(Change(path, value[key], None, f"no field of a record: moved to detail.{path}"))
    if problems:
        path, message = problems[0]
        raise GateRefused(f"{path!r}: {message}", gate=2, path=path, problems=tuple(problems), kind="unknown_field")
    if moved:
        out["detail"] = {**detail, **moved}


def _same(one: Json, other: Json) -> bool:
    return type(one) is type(other) and bool(one == other)


def _event(out: dict[str, Json], changes: list[Change]) -> None:
    event = out.get("event")
    if not isinstance(event, str) or event in EVENT_TABLE:
        return
    word = event.strip().lower()
    if word in EVENT_TABLE:
        out["event"] = word
        changes.append(Change("event", event, word, "case and white space"))


def _time(out: dict[str, Json], now: int, changes: list[Change]) -> None:
    before = out.get("time")
    if type(before) is int and before <= TIME_MAX:
        return
    if before is None:
        out["time"] = now
        changes.append(Change("time", None, now, "the time of arrival"))
        return
    seconds, note = _seconds(before)
    if seconds is not None:
        out["time"] = seconds
        changes.append(Change("time", before, seconds, note))


def _seconds(value: Json) -> tuple[int | None, str]:
    """Whole Unix seconds for what a writer may have meant, and how; None where that is not certain."""
    note = "whole seconds"
    if isinstance(value, str):
        text = value.strip()
        if _ISO.match(text):
            return _from_iso(text)
        if not _DIGITS.match(text):
            return None, ""
        note = "digits as text"
        value = float(text) if "." in text else int(text)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MS_MAX:
        return None, ""
    seconds = int(value)
    if seconds > TIME_MAX:
        return seconds // 1000, "milliseconds"
    return seconds, note


def _from_iso(text: str) -> tuple[int | None, str]:
    try:
        moment = datetime.fromisoformat(text)
        note = "ISO 8601"
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
            note = "ISO 8601 without a zone, read as UTC"
        seconds = int(moment.timestamp())
    except (ValueError, OverflowError):
        return None, ""
    return (seconds, note) if seconds >= 0 else (None, "")


def _detail(out: dict[str, Json], changes: list[Change]) -> None:
    detail = out.get("detail")
    if isinstance(detail, dict):
        return
    if detail is None:
        out["detail"] = {}
        changes.append(Change("detail", None, {}, "empty"))
    elif isinstance(detail, str) and out.get("event") == "task_completed":
        out["detail"] = {"result": detail}
        changes.append(Change("detail", detail, out["detail"], "text is the result"))


def _trace(out: dict[str, Json], session: str, changes: list[Change]) -> None:
    trace = out.get("trace")
    if trace is None:
        out["trace"] = {"parent_id": None, "session_id": session}
        changes.append(Change("trace", None, out["trace"], "no parent, the current session"))
        return
    if not isinstance(trace, dict):
        return
    parent = trace.get("parent_id", "")
    if parent is not None and _blank(parent):
        changes.append(Change("trace.parent_id", trace.get("parent_id"), None, "no parent"))
        trace = {"parent_id": None, **{key: value for key, value in trace.items() if key != "parent_id"}}
    if _blank(trace.get("session_id")):
        changes.append(Change("trace.session_id", trace.get("session_id"), session, "the current session"))
        trace = {**trace, "session_id": session}
    out["trace"] = trace
