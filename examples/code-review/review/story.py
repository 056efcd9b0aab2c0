"""The log of a review, read as it grows -> what a person is told, line by line.

Guarantees: pure; every record counts once, also when it is read twice; a record that tells nothing new to a person
tells nothing. Numbers shown on the way are a preview: what counts is the merge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from review.found import Found, Key
from review.plan import REVIEW, SCANS
from review.target import Slice

Kind = Literal["slice", "verified", "lost", "takeover", "trouble", "model", "internal"]


class Record(Protocol):
    """What is read of a record of the log."""

    @property
    def id(self) -> str: ...
    @property
    def who(self) -> str: ...
    @property
    def time(self) -> int: ...
    @property
    def event(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def detail(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that a person is told. ``internal`` ones are for --verbose alone."""

    kind: Kind
    text: str


@dataclass(slots=True)
class Holder:
    """Who works on a task, and which attempt it is."""

    worker: str
    attempt: int


@dataclass(slots=True)
class Story:
    """A review so far. ``total`` counts the plan's tasks, the verifiers' included."""

    slices: Sequence[Slice]
    total: int
    done: set[str] = field(default_factory=set)
    busy: dict[str, Holder] = field(default_factory=dict)
    """Tasks in processing."""
    found: dict[Key, Found] = field(default_factory=dict)
    reports: Counter[str] = field(default_factory=Counter)
    """Reports per scan task."""
    lost: dict[str, Holder] = field(default_factory=dict)
    """Tasks whose worker was lost and that nobody has taken over yet."""
    worded_by: Mapping[str, Any] = field(default_factory=dict)
    """What the reviewer's delivery says of its model: ``endpoint``, ``fingerprint``."""
    dead: set[str] = field(default_factory=set)
    """Workers that were lost in the middle of something."""
    _errors: dict[str, str] = field(default_factory=dict)
    """What the last failed attempt of a task said."""
    _seen: set[str] = field(default_factory=set)

    def take(self, entry: str, record: Record) -> list[Line]:
        """Fold one record of the log; the lines that it gives."""
        if entry in self._seen:
            return []
        self._seen.add(entry)
        lines = [Line("internal", f"{entry} {record.event} {record.id} {record.who}: {record.what}")]
        if record.event == "task_processing":
            lines += self._begun(record)
        elif record.event == "task_completed":
            lines += self._completed(record)
        elif record.event == "task_agent_lost":
            lines += self._lost(record)
        elif record.event == "task_failed":
            error = record.detail.get("error")
            self._errors[record.id] = str(error.get("message", "")) if isinstance(error, Mapping) else ""
        elif record.event in ("task_retrying", "task_blocked"):
            self.busy.pop(record.id, None)
            lines += self._trouble(record)
        return lines

    @property
    def standing(self) -> list[Found]:
        return sorted((one for one in self.found.values() if one.stands), key=lambda one: one.rank)

    @property
    def scanned(self) -> int:
        """Slices of which every scan is in."""
        return sum(self.done.issuperset(scans_of(part)) for part in self.slices)

    def slice_of(self, task: str) -> Slice | None:
        """The slice that a scan or its verification is about."""
        number = task.removesuffix(".verify").rpartition("-")[2]
        return next((part for part in self.slices if str(part.number) == number), None)

    def _begun(self, record: Record) -> list[Line]:
        attempt = _attempt(record)
        holder = Holder(str(record.detail.get("worker", record.who)), attempt)
        self.busy[record.id] = holder
        before = self.lost.pop(record.id, None)
        if before is None:
            return []
        return [Line("takeover", f"{record.id} reassigned to {holder.worker} (attempt {attempt})")]

    def _completed(self, record: Record) -> list[Line]:
        self.busy.pop(record.id, None)
        self.lost.pop(record.id, None)
        if record.id in self.done:
            return []
        self.done.add(record.id)
        part = self.slice_of(record.id)
        if "verdict" in record.detail:
            self._judge(record.detail.get("items"))
            return self._verified(part) if part else []
        items = record.detail.get("result")
        if record.id == REVIEW:
            model = record.detail.get("model")
            self.worded_by = model if isinstance(model, Mapping) else {}
            return [Line("model", "the summary is worded")]
        if part is None:
            return []
        self._find(record.id, items.get("items") if isinstance(items, Mapping) else None)
        return self._scanned(part)

    def _find(self, task: str, items: Any) -> None:
        for item in items if isinstance(items, list) else ():
            key = (item["file"], item["line"], item["rule"])
            one = self.found.setdefault(key, Found(*key, message=item["message"], severity=item["severity"]))
            one.found_by = sorted({*one.found_by, item["tool"]})
            self.reports[task] += 1

    def _judge(self, items: Any) -> None:
        for item in items if isinstance(items, list) else ():
            one = self.found.get((item["file"], item["line"], item["rule"]))
            if one is not None:
                one.judged(item["verdict"], item.get("reasons", ()))

    def _scanned(self, part: Slice) -> list[Line]:
        """A line once every scan of the slice is in."""
        if not self.done.issuperset(scans_of(part)):
            return []
        names = {file.name for file in part.files}
        here = sorted((one for one in self.found.values() if one.file in names), key=lambda one: one.unjudged_rank)
        both = sum(len(one.found_by) > 1 for one in here)
        counts = f"{len(here)} findings" + (f", {both} by both tools" if both else "")
        worst = f"; {here[0].severity}: {here[0].place} {here[0].rule}" if here else ""
        return [Line("slice", f"{part.title}: {counts}{worst}")]

    def _verified(self, part: Slice) -> list[Line]:
        """A line once every scan of the slice is verified."""
        if not self.done.issuperset(f"{task}.verify" for task in scans_of(part)):
            return []
        names = {file.name for file in part.files}
        here = [one for one in self.found.values() if one.file in names]
        stand = sum(one.stands for one in here)
        return [Line("verified", f"{part.title}: {stand} stand, {len(here) - stand} rejected")]

    def _lost(self, record: Record) -> list[Line]:
        before = self.busy.pop(record.id, None)
        agent = str(record.detail.get("agent", record.who))
        worker = str(record.detail.get("worker") or (before.worker if before else agent))
        told = worker in self.dead
        self.dead.add(worker)
        self.lost[record.id] = Holder(worker, _attempt(record))
        return [Line("lost", f"it held {record.id} too" if told else f"{worker} is dead; it held {record.id}")]

    def _trouble(self, record: Record) -> list[Line]:
        reason = self._errors.get(record.id) or str(record.detail.get("reason", record.what))
        if record.event == "task_blocked":
            return [Line("trouble", f"{record.id} is blocked: {reason}")]
        if not record.detail.get("delay_s"):
            return []
        return [Line("trouble", f"{record.id} is tried again in {record.detail['delay_s']:.0f} s: {reason}")]


def scans_of(part: Slice) -> list[str]:
    """The scans of one slice."""
    return [f"{start}-{part.number}" for start, *_ in SCANS]


def _attempt(record: Record) -> int:
    value = record.detail.get("attempt", 1)
    return value if isinstance(value, int) else 1
