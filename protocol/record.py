"""The record: exactly seven fields, 17 events, ids. The contract's one model.

Guarantees: a ``Record`` that exists is valid by gate 3 (fields, events, limits); its canonical JSON is the same for
the same value everywhere. Never does I/O and never reads a clock: time and randomness are passed in.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Final, Literal, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

Json = Any
"""A JSON value: None, bool, int, float (finite), str, list or dict with text keys."""

Event = Literal[
    "task_started", "task_pending", "task_assigned", "task_processing", "task_completed", "task_failed",
    "task_retrying", "task_blocked", "task_agent_lost", "task_merged",
    "heartbeat", "checkpoint", "summary", "decision", "protocol_violation", "info", "error",
]  # fmt: skip
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
TASK_EVENTS: Final[frozenset[str]] = frozenset(e for e in EVENTS if e.startswith("task_"))

Reason = Literal[
    "superseded_attempt", "illegal_transition", "duplicate_id", "foreign_workspace", "not_the_owner",
    "upward_delegation", "gate_1", "gate_2", "gate_3", "gate_4", "too_large",
]  # fmt: skip
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)

ID_MAX: Final = 200
WHO_MAX: Final = 128
WHAT_MAX: Final = 2_000
DETAIL_MAX_BYTES: Final = 262_144
ATTEMPT_MAX: Final = 2**53 - 1
"""The server's scripts count in doubles; at an attempt a microsecond it takes 285 years to come here."""
TIME_MAX: Final = 99_999_999_999
"""Unix seconds up to the year 5138: anything above is milliseconds by mistake."""

ID_PATTERN: Final = r"^[A-Za-z0-9_\-.:/#]{1,200}$"
WHO_PATTERN: Final = r"^[A-Za-z0-9_\-.:/#@]{1,128}$"
WHAT_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f]+$"
NAME_PATTERN: Final = r"^[A-Za-z0-9_\-]{1,64}$"
"""Names of spaces, roles and agents where they become part of a key."""
_ID: Final = re.compile(ID_PATTERN.replace("$", r"\Z"))
_WHO: Final = re.compile(r"[A-Za-z0-9_\-.:/#@]{1,200}\Z")
_NAME: Final = re.compile(NAME_PATTERN.replace("$", r"\Z"))


@dataclass(frozen=True, slots=True)
class EventRule:
    """One row of the event table: who writes it, what ``detail`` needs, which task state follows."""

    event: Event
    written_by: str
    needs: tuple[str, ...]
    state: str | None
    prefix: str
    words: str


def _rule(event: Event, by: str, needs: tuple[str, ...], state: str | None, prefix: str, words: str) -> EventRule:
    return EventRule(event, by, needs, state, prefix, words)


EVENT_TABLE: Final[Mapping[str, EventRule]] = {
    rule.event: rule
    for rule in (
        _rule("task_started", "leader (a session's root), an outside agent",
              (), "started", "TASK_", "task started"),
        _rule("task_pending", "leader (dependencies open); worker (parked)",
              ("role|waiting_for",), "pending", "TASK_", "task is pending"),
        _rule("task_assigned", "leader; manager on takeover; a person",
              ("role", "attempt"), "assigned", "TASK_", "task assigned"),
        _rule("task_processing", "the worker that claimed it",
              ("attempt", "worker"), "processing", "TASK_", "task is being worked on"),
        _rule("task_completed", "worker",
              ("result|artifact|verdict",), "completed", "TASK_", "task completed"),
        _rule("task_failed", "worker",
              ("error",), "failed", "TASK_", "task failed"),
        _rule("task_retrying", "worker or manager",
              ("attempt", "delay_s", "reason"), "retrying", "TASK_", "task will be tried again"),
        _rule("task_blocked", "worker or manager",
              ("requires_human_intervention", "reason"), "blocked", "TASK_", "task is blocked"),
        _rule("task_agent_lost", "manager",
              ("agent", "last_seen"), "lost", "TASK_", "the agent of this task is lost"),
        _rule("task_merged", "manager",
              (), "merged", "MERGE_", "results merged"),
        _rule("heartbeat", "an active agent",
              ("current_task", "status", "progress"), None, "HB_", "heartbeat"),
        _rule("checkpoint", "any agent",
              ("last_check|last_check_time",), None, "CP_", "checkpoint moved"),
        _rule("summary", "manager",
              (), None, "SUM_", "summary"),
        _rule("decision", "manager, leader, a person",
              ("action", "by", "why"), None, "DEC_", "decision"),
        _rule("protocol_violation", "store, gates, manager",
              ("reason", "raw|artifact"), None, "PV_", "protocol violation"),
        _rule("info", "anyone",
              (), None, "INFO_", "information"),
        _rule("error", "anyone",
              (), None, "ERR_", "error"),
    )
}  # fmt: skip
"""The one event table; ``a|b`` in ``needs`` means at least one of them. A parked task has ``waiting_for``."""


Identifier = Annotated[StrictStr, Field(min_length=1, max_length=ID_MAX, pattern=ID_PATTERN)]
Who = Annotated[StrictStr, Field(min_length=1, max_length=WHO_MAX, pattern=WHO_PATTERN)]
What = Annotated[StrictStr, Field(min_length=1, max_length=WHAT_MAX, pattern=WHAT_PATTERN)]


class Trace(BaseModel):
    """Where a record belongs: the parent *task*, the session, and (optionally) a W3C trace context; nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    parent_id: Identifier | None
    session_id: Identifier
    traceparent: Annotated[StrictStr, Field(max_length=200)] | None = None
    tracestate: Annotated[StrictStr, Field(max_length=1_024)] | None = None

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {"parent_id": self.parent_id, "session_id": self.session_id}
        if self.traceparent is not None:
            out["traceparent"] = self.traceparent
        if self.tracestate is not None:
            out["tracestate"] = self.tracestate
        return out


class Record(BaseModel):
    """One record: seven fields, no eighth. ``time`` is Unix seconds as the writer saw them; it decides nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Identifier
    who: Who
    time: Annotated[StrictInt, Field(ge=0, le=TIME_MAX)]
    event: Event
    what: What
    detail: dict[StrictStr, Any]
    trace: Trace

    @property
    def attempt(self) -> int:
        """``detail.attempt``, 1 where it is missing."""
        value = self.detail.get("attempt", 1)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else 1

    @property
    def is_task(self) -> bool:
        """True for the task events, which are identified by (id, event, attempt); a merge stands under its own id."""
        return self.event in TASK_EVENTS and not (self.event == "task_merged" and self.id.startswith("MERGE_"))

    @property
    def session(self) -> str:
        return self.trace.session_id

    def to_json(self) -> dict[str, Json]:
        """The seven fields as plain values, in the order of the contract."""
        return {
            "id": self.id, "who": self.who, "time": self.time, "event": self.event, "what": self.what,
            "detail": self.detail, "trace": self.trace.to_json(),
        }  # fmt: skip


_CANONICAL: Final = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
)


def canonical(value: Json) -> bytes:
    """Canonical JSON: sorted keys, no white space, UTF-8. Integers of any size stay exact.

    Raises ValueError for what is no JSON (NaN, Infinity, keys that are not text, lone surrogates).
    """
    try:
        out = orjson.dumps(value, option=_CANONICAL)
    except TypeError as error:  # an integer past 64 bits, or no JSON
        return _canonical_slow(value, str(error))
    if b"null" in out and _not_finite(value):
        raise ValueError("not a JSON value: NaN or Infinity")
    return out


def _canonical_slow(value: Json, why: str) -> bytes:
    def check(item: Json) -> None:
        if isinstance(item, dict):
            for key, child in item.items():
                if not isinstance(key, str):
                    raise ValueError(f"not a JSON value: the key {key!r} is not text")
                check(child)
        elif isinstance(item, list):
            for child in item:
                check(child)

    try:
        check(value)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except (TypeError, ValueError, RecursionError):
        raise ValueError(f"not a JSON value: {why}") from None


def _not_finite(value: Json) -> bool:
    """orjson writes NaN and Infinity as null: looked for only where there is a null."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
        elif isinstance(item, float) and not isfinite(item):
            return True
    return False


def digest(*parts: bytes | str) -> str:
    """32 hexadecimal digits of BLAKE2b: short enough for a key, long enough that no two inputs share it."""
    sha = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "big"))
        sha.update(data)
    return sha.hexdigest()


def sameness(record: Record) -> str:
    """The digest by which two records under one identity are the same: event, task, attempt, canonical ``detail``
    without ``by``; never ``time``, ``who`` or ``what``."""
    detail = {k: v for k, v in record.detail.items() if k != "by"} if "by" in record.detail else record.detail
    return digest(record.event, record.id, str(record.attempt), canonical(detail))[:16]


def word(value: Json) -> str:
    """``value`` where it is a text of the alphabet of ``who`` (roles, agents, tasks, questions, starts), else ''."""
    return value if isinstance(value, str) and _WHO.match(value) else ""


def is_identifier(value: str) -> bool:
    """True where ``value`` may be a record's ``id`` or ``session_id``."""
    return bool(_ID.match(value))


def is_name(value: str) -> bool:
    """True where ``value`` may name a space, role or agent in a key."""
    return bool(_NAME.match(value))


def event_words(event: str) -> str:
    """The event in words: the default of a missing ``what``."""
    return EVENT_TABLE[event].words


def missing_detail(record: Record) -> list[str]:
    """The paths in ``detail`` that the event table asks for and the record lacks (a verdict needs ``verifies``)."""
    out = [
        f"detail.{need}"
        for need in EVENT_TABLE[record.event].needs
        if not any(part in record.detail for part in need.split("|"))
    ]
    return out
