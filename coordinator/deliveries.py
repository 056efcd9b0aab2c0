"""What a merge is made from: deliveries, verdicts, and how the tasks stand. Pure values.

Guarantees: two results are the same exactly where ``comparable`` gives the same value; a task's alternatives are those
that share its ``question``. Never reads a log (``coordinator.mergeinputs`` does) and decides nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from protocol.record import Json, canonical

VerdictWord = Literal["confirmed", "partial", "rejected"]
Status = Literal["confirmed", "partial", "unverified", "rejected"]
VERDICTS: Final[tuple[VerdictWord, ...]] = ("confirmed", "partial", "rejected")
RANK: Final[Mapping[str, int]] = {"confirmed": 0, "partial": 1, "unverified": 2, "rejected": 3}
"""Best first."""

_LAST_PART: Final = re.compile(r"(.+)(?:_[A-Za-z]|[/#][^/#]+)\Z", re.DOTALL)
_DIGITS: Final = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Delivery:
    """A task's accepted result. ``order`` is its place in server order (any sortable tuple); ``time`` is what the
    writer claimed (Unix seconds) and decides nothing. ``prefix``: what its alternatives share, None where nobody said.
    """

    task: str
    who: str
    time: int
    result: Json
    order: tuple[Json, ...]
    prefix: str | None = None
    role: str | None = None
    merge_key: tuple[str, ...] | None = None
    plan_index: int | None = None
    title: str = ""

    @property
    def question(self) -> str:
        """What the task is a try at: its prefix, or for a hand-written task the prefix in its id."""
        return self.prefix or prefix_of(self.task)


@dataclass(frozen=True)
class Verdict:
    """A verifier's judgement of a delivery. ``items``: the judgements of single items of a list result, each with
    the fields of the task's merge key, ``verdict`` and ``reasons``."""

    task: str
    verdict: VerdictWord
    who: str
    time: int
    order: tuple[Json, ...]
    reasons: tuple[str, ...] = ()
    items: tuple[Mapping[str, Json], ...] = ()


@dataclass(frozen=True)
class MergeInputs:
    """All that a merge depends on.

    ``standing``: (task, state, reason) of every task that has no delivery, a state of the protocol or ``gone`` (it was
    delivered, but its artifact is no longer there); ``verifiers``: the tasks that only judge others; ``plan_order``:
    tasks as the plan has them, empty where there is none; ``missing``: (task, reason) of what the flow says was not
    done; ``prefixes``: what the tasks without a delivery are tries at; ``aside``: (task, why) of what was completed
    and is no result to merge; ``policy``: see ``coordinator.arbitrate``.
    """

    deliveries: tuple[Delivery, ...]
    verdicts: tuple[Verdict, ...] = ()
    standing: tuple[tuple[str, str, str], ...] = ()
    plan_order: tuple[str, ...] = ()
    policy: Mapping[str, Json] = field(default_factory=dict)
    root: str = ""
    session: str = ""
    verifiers: frozenset[str] = frozenset()
    missing: tuple[tuple[str, str], ...] = ()
    finish_status: str = ""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    aside: tuple[tuple[str, str], ...] = ()


def prefix_of(task: str) -> str:
    """The prefix of a hand-written task id: without a last part that is one letter after ``_``, or that follows ``/``
    or ``#`` (``TASK_001_a``, ``TASK_001/left``, ``TASK_001#2`` -> ``TASK_001``); one part, not more."""
    found = _LAST_PART.match(task)
    return found.group(1) if found else task


def natural(task: str) -> tuple[tuple[int, str], ...]:
    """A sort key in which ``T2`` comes before ``T10``: the order in which people expect to find tasks listed."""
    parts = _DIGITS.split(task)
    key = tuple((len(p.lstrip("0")), p.lstrip("0")) if i % 2 else (0, p) for i, p in enumerate(parts))
    return (*key, (0, task))


def plain_text(text: str) -> str:
    """``text`` as it is compared: Unicode NFC, no white space at the ends of lines or after the last one. Everything
    else is content."""
    unified = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join([line.rstrip() for line in unified.split("\n")]).rstrip("\n")


def comparable(result: Json) -> tuple[Literal["empty", "text", "json"], str]:
    """What of a result is compared: nothing of an empty one (null, missing, ""), a text in NFC with trimmed line
    ends, of anything else the canonical JSON in NFC. An empty list or object is a result: it was looked, and nothing
    was found."""
    if result is None:
        return "empty", ""
    if isinstance(result, str):
        text = plain_text(result)
        return ("text", text) if text else ("empty", "")
    return "json", unicodedata.normalize("NFC", canonical(result).decode())
