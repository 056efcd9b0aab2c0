"""What a flow decides, and how a decision becomes a record.

Guarantees: pure; the id of a command's record names its effect, so that two leaders that decide the same thing write
the same identity; every record carries ``detail.by`` {flow, version, as_of, term}; ``what`` is one sentence for people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protocol.record import DETAIL_MAX_BYTES, Event, Json, Reason, Record, Trace, canonical, digest, is_identifier

STEP_MAX: Final = 100
"""Commands a step: one append."""
WHO: Final = "leader"
MISSING_SHOWN: Final = 100
RAW_MAX: Final = DETAIL_MAX_BYTES // 8
"""Bytes of what an agent tried that go on record."""
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class Pend:
    """Make a task known: it waits for its dependencies."""

    task: str
    detail: Mapping[str, Json]
    parent: str
    what: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Dispatch an attempt of a task to a role."""

    task: str
    attempt: int
    role: str
    agent: str
    detail: Mapping[str, Json]
    parent: str
    what: str


@dataclass(frozen=True, slots=True)
class Decide:
    """A decision on record, of the id ``DEC_<action>_<mark>``; ``task``: whom it is about."""

    action: str
    why: str
    mark: str
    task: str = ""
    detail: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finish:
    """The flow is through for the ``n``-th time. ``missing``: (task, reason, cause) of what was not done."""

    status: str
    why: str
    n: int
    missing: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Violate:
    """An agent tried what it may not: a violation of the id ``PV_<reason>_<mark>`` with what it tried, ``raw``."""

    reason: Reason
    why: str
    mark: str
    task: str
    raw: Json


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to a person; ``mark`` makes its id one of a kind: ``ASK_<mark>``."""

    mark: str
    text: str
    detail: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """A message to a running agent's mailbox; ``mark`` makes its id one of a kind: ``INFO_msg_<mark>``."""

    mark: str
    agent: str
    text: str
    detail: Mapping[str, Json] = field(default_factory=dict)


Command = Pend | Assign | Decide | Finish | Violate | Ask | Message


@dataclass(frozen=True, slots=True)
class By:
    """Who decided, and on what: goes into every command's record."""

    flow: str
    version: int
    as_of: str
    term: int

    def to_json(self) -> dict[str, Json]:
        return {"flow": self.flow, "version": self.version, "as_of": self.as_of, "term": self.term}


def to_record(command: Command, *, session: str, by: By, time: int, traceparent: str | None = None) -> Record:
    """The command's record. ``time``: Unix seconds as the leader sees them (they decide nothing)."""
    event: Event = "decision"
    parent = command.parent if isinstance(command, (Pend, Assign)) else session
    detail: dict[str, Json] = {} if isinstance(command, (Finish, Violate)) else {**command.detail}
    match command:
        case Pend():
            name, event, what = command.task, "task_pending", command.what
        case Assign():
            name, event, what = command.task, "task_assigned", command.what
            detail |= {"role": command.role, "attempt": command.attempt, "agent": command.agent}
        case Decide():
            name = _id("DEC_", f"{command.action}_{command.mark}")
            what = f"{command.action.replace('_', ' ')}{f' {command.task}' if command.task else ''}: {command.why}"
            detail |= {"action": command.action, "why": command.why} | ({"task": command.task} if command.task else {})
        case Finish():
            name = _id("DEC_", f"finish_{session}_{command.n}")
            what = f"the session is through ({command.status}): {command.why}"
            detail = {"action": "finish", "why": command.why, "status": command.status, "n": command.n}
            detail |= _missing(command)
        case Violate():
            name, event, parent = _id("PV_", f"{command.reason}_{command.mark}"), "protocol_violation", command.task
            what = f"{command.reason}: {command.why}"
            detail = {"reason": command.reason, "message": command.why, "task": command.task, "raw": _raw(command.raw)}
        case Ask():
            name, event, what = _id("ASK_", command.mark), "info", command.text
            detail |= {"kind": "question", "text": command.text}
        case _:
            name, event, what = _id("INFO_", f"msg_{command.mark}"), "info", f"to {command.agent}: {command.text}"
            detail |= {"kind": "message", "to": command.agent, "text": command.text}
    detail["by"] = by.to_json()
    # Built without validation: everything in it was checked when the plan was, and the store's law judges it anyway.
    return Record.model_construct(
        id=name,
        who=WHO,
        time=time,
        event=event,
        what=sentence(what),
        detail=detail,
        trace=Trace.model_construct(parent_id=parent, session_id=session, traceparent=traceparent, tracestate=None),
    )


def sentence(text: str, most: int = 300) -> str:
    """``text`` as ``what`` may be: one line, no control characters, not too long, never empty."""
    line = " ".join(_UNPRINTABLE.sub(" ", text).split())
    return (line if len(line) <= most else line[: most - 1] + "…") or "-"


def _id(kind: str, rest: str) -> str:
    """An id of its kind; what does not fit or may not stand in one becomes a digest (the same for the same effect)."""
    name = kind + rest
    return name if is_identifier(name) else kind + rest.split("_", 1)[0] + "_" + digest(rest)


def _raw(value: Json) -> Json:
    """What was tried, whole where it fits into a record."""
    text = canonical(value)
    return value if len(text) <= RAW_MAX else {"cut": text[:RAW_MAX].decode("utf-8", "ignore"), "bytes": len(text)}


def _missing(command: Finish) -> dict[str, Json]:
    listed: list[dict[str, Json]] = []
    room = DETAIL_MAX_BYTES // 4
    for task, reason, cause in command.missing[:MISSING_SHOWN]:
        row = {"task": task, "reason": reason[:500]} | ({"cause": cause} if cause else {})
        room -= sum(len(v) for v in row.values()) * 4
        if room < 0:
            break
        listed.append(row)
    return {"missing": listed, "missing_count": len(command.missing)}
