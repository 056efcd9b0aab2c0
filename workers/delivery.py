"""From the outcome of an attempt to the records that say so, and what follows from them.

Guarantees: pure: time and randomness are passed in; every outcome but a dropped one has records; whether a failure is
tried again is decided by ``protocol.retry`` alone. Never appends, never arms.

::

    Delivered ──► task_completed
    Failed ─────► task_failed ──► task_retrying (attempt + 1, armed) | task_blocked
    Parked ─────► info ASK_… ──► task_pending with waiting_for
    HandedBack ─► task_retrying (attempt + 1, due at once; costs no try)
    Dropped ────► nothing
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocol.ports import Delivered, Dispatch, Failed, HandedBack, Outcome, Parked
from protocol.record import WHAT_MAX, Event, Json, Record, Trace
from protocol.retry import DELAYS_S, TRIES, Retry, decide

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
MESSAGE_MAX: Final = 4_000
"""Characters of an error's message that go on record."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How often and after which waits a failed attempt is tried again."""

    tries: int = TRIES
    delays_s: tuple[float, ...] = DELAYS_S


@dataclass(frozen=True, slots=True)
class Letter:
    """What is appended for one attempt. ``outcome`` is the metrics' word; ``attempt`` the next one and ``arm_s`` the
    seconds until it is due where a retry follows (0: at once), None where none does."""

    records: tuple[Record, ...]
    outcome: str
    attempt: int
    arm_s: float | None = None


def letter_of(dispatch: Dispatch, outcome: Outcome, *, now_s: int, random: float, rules: Rules) -> Letter:
    """The letter of ``outcome``. ``now_s`` is Unix seconds, ``random`` in [0, 1)."""

    def record(event: Event, what: str, detail: dict[str, Json], attempt: int, name: str = "") -> Record:
        parent = dispatch.task if name else dispatch.parent
        verifies = detail.get("verifies")
        if event == "task_completed" and detail.get("verdict") is not None and isinstance(verifies, str):
            parent = verifies  # a verdict hangs under the task that it judges
        return Record(
            id=name or dispatch.task, who=dispatch.agent, time=now_s, event=event, what=_sentence(what),
            detail={**detail, "attempt": attempt},
            trace=Trace(parent_id=parent, session_id=dispatch.session, traceparent=dispatch.traceparent),
        )  # fmt: skip

    task, attempt, after = dispatch.task, dispatch.attempt, dispatch.attempt + 1
    match outcome:
        case Delivered():
            what = outcome.what or f"{task} completed"
            return Letter(
                (record("task_completed", what, _of_task(dispatch, outcome.detail), attempt),), "completed", attempt
            )
        case Failed():
            error: dict[str, Json] = {
                "kind": outcome.kind, "message": _storable(outcome.message[:MESSAGE_MAX]),
                "retryable": outcome.retryable,
            }  # fmt: skip
            detail = {**outcome.detail, "error": error}
            failed = record("task_failed", f"{task} failed: {outcome.kind}: {outcome.message}", detail, attempt)
            ruling = decide(
                dispatch.tries + 1, kind=outcome.kind, retryable=outcome.retryable, retry_after_s=outcome.retry_after_s,
                limit=rules.tries, delays_s=rules.delays_s, random=random,
            )  # fmt: skip
            if isinstance(ruling, Retry):
                more: dict[str, Json] = {"delay_s": ruling.delay_s, "reason": ruling.reason}
                again = record("task_retrying", f"{task} is tried again in {ruling.delay_s:g} s", more, after)
                return Letter((failed, again), "retrying", after, ruling.delay_s)
            more = {"requires_human_intervention": True, "reason": ruling.reason, "error": error}
            blocked = record("task_blocked", f"{task} waits for a person: {ruling.reason}", more, attempt)
            return Letter((failed, blocked), "blocked", attempt)
        case Parked():
            told = dict(outcome.detail)
            usage = {"usage": told.pop("usage")} if "usage" in told else {}
            asked: dict[str, Json] = {
                **told, "kind": "question", "question": outcome.question, "text": outcome.text,
                "to": outcome.to, "task": task, "agent": dispatch.agent,
            }  # fmt: skip
            question = record("info", outcome.text, asked, attempt, outcome.question)
            waits: dict[str, Json] = {
                "role": dispatch.role, "agent": dispatch.agent, "waiting_for": outcome.question, **usage,
            }  # fmt: skip
            parked = record("task_pending", f"{task} waits for the answer to {outcome.question}", waits, attempt)
            return Letter((question, parked), "waiting", attempt)
        case HandedBack():
            back: dict[str, Json] = {**outcome.detail, "delay_s": 0, "reason": f"handed back: {outcome.reason}"}
            again = record("task_retrying", f"{task} was handed back: {outcome.reason}", back, after)
            return Letter((again,), "handed_back", after, 0.0)
        case _:
            return Letter((), "cancelled", attempt)


def _of_task(dispatch: Dispatch, given: Mapping[str, Json]) -> dict[str, Json]:
    """A delivery's detail: what the runner gave, and what a merge needs to know of the task."""
    detail: dict[str, Json] = dict(given)
    for key in ("prefix", "merge_key"):
        if key in dispatch.detail:
            detail.setdefault(key, dispatch.detail[key])
    detail.setdefault("role", dispatch.role)
    return detail


def _sentence(text: str) -> str:
    return _storable(_CONTROL.sub(" ", text).strip()[:WHAT_MAX]) or "no words"


def _storable(text: str) -> str:
    """``text`` without lone surrogates: an error may quote what was refused for them."""
    return text.encode("utf-8", "replace").decode()
