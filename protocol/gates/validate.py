"""Gate 3: the seven fields, the 17 events, the limits.

Guarantees: a ``Record`` that comes out is storable as it is; a refusal names every offending field by its path. Never
changes anything. The keys that an event needs in ``detail`` are judged at gate 4: a record with any event and an empty
``detail`` passes here.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from protocol.errors import GateRefused
from protocol.gates.strict import flaws
from protocol.record import EVENTS, ID_MAX, TIME_MAX, WHAT_MAX, WHO_MAX, Json, Record

_LETTERS = "1 to {} of A-Z a-z 0-9 _ - . : / #"
_WANTED = {
    "id": "text of " + _LETTERS.format(ID_MAX),
    "who": "text of " + _LETTERS.format(WHO_MAX) + " @",
    "time": f"whole Unix seconds, an integer from 0 to {TIME_MAX}",
    "what": f"one sentence: 1 to {WHAT_MAX:,} characters on one line, without control characters",
    "detail": "an object",
    "trace": "an object with parent_id and session_id",
    "trace.parent_id": "the parent task's id, or null",
    "trace.session_id": "text of " + _LETTERS.format(ID_MAX),
    "trace.traceparent": "text of at most 200 characters",
    "trace.tracestate": "text of at most 1,024 characters",
}


def validate(value: Json) -> Record:
    """The record, if it is one by gate 3. Raises GateRefused (gate 3) whose ``problems`` name every offending field."""
    if not isinstance(value, dict):
        message = f"a record is a JSON object, not {type(value).__name__!r}"
        raise GateRefused(message, gate=3, kind="not_an_object", mend="send one object")
    try:
        record = Record.model_validate(value)
    except ValidationError as error:
        problems = _problems(error, value)
        detail = value.get("detail")
        if isinstance(detail, dict):
            problems += flaws(detail, "detail")
        raise _refused(problems) from None
    found = flaws(record.detail, "detail")
    if found:
        raise _refused(found)
    return record


def _refused(problems: list[tuple[str, str]]) -> GateRefused:
    path, message = problems[0]
    more = f" (and {len(problems) - 1} more: {', '.join(p for p, _ in problems[1:4])})" if len(problems) > 1 else ""
    return GateRefused(f"{path}: {message}{more}", gate=3, path=path, problems=tuple(problems), kind="invalid")


def _problems(error: ValidationError, value: dict[str, Any]) -> list[tuple[str, str]]:
    """One problem a path, in the order of the contract's fields."""
    out: dict[str, str] = {}
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        path = ".".join(str(part) for part in item["loc"] if part != "[key]") or "$"
        if path in out:
            continue
        kind = item["type"]
        if kind == "missing":
            out[path] = "missing"
        elif kind == "extra_forbidden":
            room = "`trace` holds parent_id, session_id, traceparent, tracestate and nothing else"
            out[path] = room if path.startswith("trace.") else "no field of a record; a record has exactly seven"
        elif path == "event":
            out[path] = _event_message(value.get("event"))
        elif path.startswith("detail."):
            out[path] = "a key that is not text"
        elif kind == "string_unicode":
            out[path] = "has a lone surrogate: not storable as UTF-8"
        else:
            out[path] = f"{_shown(_at(value, path))} is not {_WANTED.get(path, 'right')}"
    return list(out.items())


def _at(value: Json, path: str) -> Json:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:50]}… ({len(text)} characters)"


def _event_message(event: Json) -> str:
    words = ", ".join(EVENTS)
    if not isinstance(event, str):
        return f"{_shown(event)} is not an event; the events are {words}"
    near = get_close_matches(event.strip().lower()[:40], EVENTS, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"{_shown(event)} is not an event: {hint}The events are {words}"
        if hint
        else (f"{_shown(event)} is not an event; the events are {words}")
    )
