"""Records on the wire: as the scripts take them, as the log gives them back.

Guarantees: what is written is read back equal, integers of any size included; nothing is validated here (what is in the
log has passed the gates). Pure but for its place beside the adapters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import orjson

from protocol.keys import SpaceKeys
from protocol.record import Record, Trace, canonical, digest, sameness, word
from protocol.tasks import command_identity, delay_ms, is_about_agent, target_state
from protocol.workspaces import mark_of

_LONG_NUMBER: Final = re.compile(rb"\d{19}")


def space_keys(keys: SpaceKeys) -> list[str]:
    """The keys of the scripts that write to a space, in their order."""
    return [keys.log, keys.tasks, keys.ids, keys.meta, keys.outbox, keys.due, keys.held, keys.names, keys.beats]


SEPARATOR: Final = b"\x1f"
"""Between the parts of one argument: JSON escapes it, and no other part's alphabet has it."""


def packed(record: Record, owner: str) -> bytes:
    """One record as ``append.lua`` takes it: 17 parts in one argument (packing and parsing many small arguments was
    what a batch cost most)."""
    detail = record.detail
    attempt: object = ""
    target = extra = role = agent = ""
    if record.is_task and not is_about_agent(record):
        attempt, target = record.attempt, target_state(record)
        role, agent = word(detail.get("role")), word(detail.get("agent"))
        if target == "processing":
            extra = word(detail.get("worker"))
        elif target == "waiting":
            extra = word(detail.get("waiting_for"))
        elif target == "retrying":
            extra = str(delay_ms(detail.get("delay_s")))
        elif target == "lost":
            agent = ""
    elif record.event == "decision":
        action = word(detail.get("action"))
        question = word(detail.get("question"))
        extra = "|".join((action, word(detail.get("task")), question, word(detail.get("role"))))
    elif record.event == "task_merged":
        extra = f"{record.trace.parent_id or ''}|{word(detail.get('as_of'))}"
    parts = (
        record.id,
        record.who,
        record.time,
        record.event,
        record.what,
        json_text(detail),
        json_text(record.trace.to_json()),
        record.session,
        sameness(record),
        attempt,
        owner,
        role,
        agent,
        target,
        "c" if command_identity(record) else "",
        extra,
        mark_of(record),
    )
    return join(parts)


def join(parts: Sequence[object]) -> bytes:
    """Parts joined into one argument."""
    return SEPARATOR.join(p if isinstance(p, bytes) else str(p).encode() for p in parts)


def json_text(value: Mapping[str, Any]) -> bytes:
    """JSON as it is stored: key order kept, UTF-8; integers of any size exact."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return canonical(value)


def record_of(flat: Sequence[bytes]) -> Record:
    """The record of a log entry (flat field, value list as a script returns it)."""
    return record_of_map(dict(zip(flat[::2], flat[1::2], strict=True)))


def record_of_map(fields: Mapping[bytes, bytes]) -> Record:
    """The record of a log entry. What the store wrote has passed the gates: nothing is validated again. What somebody
    wrote past the store and is no record is shown as a violation, so that it stops no reader."""
    try:
        return _record_of(fields)
    except (KeyError, ValueError, TypeError, AttributeError):
        return _foreign(fields)


def _foreign(fields: Mapping[bytes, bytes]) -> Record:
    raw = {_shown(name): _shown(value) for name, value in fields.items()}
    detail = {"reason": "gate_3", "message": "no record: written past the store", "raw": raw}
    return Record.model_construct(
        id=f"PV_{digest(repr(sorted(raw.items())))}", who="store", time=0, event="protocol_violation",
        what="gate_3: an entry that is no record", detail=detail,
        trace=Trace.model_construct(parent_id=None, session_id="unknown", traceparent=None, tracestate=None),
    )  # fmt: skip


def _shown(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _record_of(fields: Mapping[bytes, bytes]) -> Record:
    trace = orjson.loads(fields[b"trace"])
    return Record.model_construct(
        id=fields[b"id"].decode(),
        who=fields[b"who"].decode(),
        time=int(fields[b"time"]),
        event=cast("Any", fields[b"event"].decode()),
        what=fields[b"what"].decode(),
        detail=loads(fields[b"detail"]),
        trace=Trace.model_construct(
            parent_id=trace.get("parent_id"),
            session_id=trace["session_id"],
            traceparent=trace.get("traceparent"),
            tracestate=trace.get("tracestate"),
        ),
    )


def loads(data: bytes) -> dict[str, Any]:
    """The value of stored JSON. orjson reads an integer past 64 bits as a float: those go the exact, slower way."""
    return cast("dict[str, Any]", json.loads(data) if _LONG_NUMBER.search(data) else orjson.loads(data))
