"""A session's log in memory, under the very law of `protocol.tasks`, and a stub fleet that plays the workers.

Guarantees: what the law refuses is refused here too; entries are strictly increasing. For tests without a socket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coordinator import flows
from coordinator.commands import By, Command, to_record
from coordinator.status import Marks, phase
from coordinator.view import View
from protocol.ports import Appended
from protocol.record import Json, Record, Trace
from protocol.stores.redis_log import Step
from protocol.tasks import (
    TaskState,
    apply,
    apply_decision,
    command_identity,
    is_about_agent,
    judge,
    judge_decision,
)

SPACE = "conv_20261130_120000_001"


class MemoryLog:
    """One space's log. ``ms`` is the server's clock; a test moves it."""

    def __init__(self) -> None:
        self.ms = 1_000_000
        self.entries: list[tuple[str, Record]] = []
        self.tasks: dict[str, TaskState] = {}
        self.ids: dict[str, str] = {}
        self.snap: bytes | None = None
        self.kind = "session"
        self.lease: tuple[int, str] | None = None

    def add(self, *records: Record, owner: str = "") -> list[Appended]:
        """Append as a writer without a lease does: one outcome a record."""
        return [self._one(record, owner) for record in records]

    def record(
        self,
        event: str,
        task: str,
        detail: Mapping[str, Json] | None = None,
        *,
        who: str = "stub",
        parent: str | None = None,
    ) -> Record:
        trace = Trace(parent_id=parent, session_id=SPACE)
        return Record(id=task, who=who, time=1, event=event, what=event, detail=dict(detail or {}), trace=trace)  # type: ignore[arg-type]

    async def meta(self, space: str) -> dict[str, str]:
        return {"kind": self.kind}

    async def tail(self, space: str, after: str, count: int) -> list[tuple[str, Record]]:
        return [(e, r) for e, r in self.entries if _key(e) > _key(after)][:count]

    async def get(self, space: str, entry: str) -> Record | None:
        return next((r for e, r in self.entries if e == entry), None)

    async def append_step(self, space: str, records: Sequence[Record], *, term: int, holder: str) -> Step:
        if self.lease is not None and (term, holder) != self.lease:
            return Step(ok=False, refused_term=True)
        kept = (dict(self.tasks), dict(self.ids), list(self.entries))
        outcomes: list[Appended] = []
        for at, record in enumerate(records):
            outcome = self._one(record, "")
            if outcome.outcome == "refused":
                self.tasks, self.ids, self.entries = kept
                return Step(ok=False, refused_at=at, reason=outcome.reason, message=outcome.message)
            outcomes.append(outcome)
        return Step(ok=True, outcomes=tuple(outcomes))

    async def snapshot(self, space: str) -> bytes | None:
        return self.snap

    async def set_snapshot(self, space: str, data: bytes) -> None:
        self.snap = data

    def _one(self, record: Record, owner: str) -> Appended:
        entry = f"{self.ms}-{len(self.entries)}"
        if record.is_task and not is_about_agent(record):
            ruling = judge(self.tasks.get(record.id), record, owner)
            if ruling.outcome == "refused":
                return Appended("refused", "", ruling.reason or "", ruling.message)
            if ruling.outcome == "already":
                return Appended("already", ruling.entry)
            self.tasks[record.id] = apply(self.tasks.get(record.id), record, entry)
        else:
            if record.id in self.ids:
                assert command_identity(record), f"{record.id} written twice"
                return Appended("already", self.ids[record.id])
            if record.event == "decision":
                action, task = record.detail["action"], record.detail.get("task", "")
                if task:
                    ruling = judge_decision(self.tasks.get(task), action, task, record.detail.get("question", ""))
                    if ruling.outcome == "refused":
                        return Appended("refused", "", ruling.reason or "", ruling.message)
                    self.tasks[task] = apply_decision(self.tasks[task], action, record.detail.get("role", ""))
            self.ids[record.id] = entry
        self.entries.append((entry, record))
        return Appended("added", entry)


class Play:
    """A session played to its end: the flow decides, stub workers do what the test says."""

    def __init__(self, root: Mapping[str, Json], *, roles: Sequence[str] | None = None) -> None:
        self.log = MemoryLog()
        self.view = View(SPACE)
        self.view.roles = None if roles is None else {r: {"description": r} for r in roles}
        self.runs: list[str] = []
        self.fail: dict[str, int] = {}
        """Task -> how many of its attempts fail (then it completes); -1: it is blocked at once."""
        self.deliver: dict[str, Callable[[Record], Mapping[str, Json]] | Mapping[str, Json]] = {}
        self.hold: set[str] = set()
        """Tasks that nobody works on."""
        detail = {"goal": "看一遍代码", "flow": "plan", "flow_version": 1, **root}
        self.flow = flows.find(str(detail["flow"]))
        self.log.add(self.log.record("task_started", SPACE, detail, who="person_li"))
        self.steps: list[list[Command]] = []

    def fold(self) -> set[str]:
        new = [(e, r) for e, r in self.log.entries if _key(e) > _key(self.view.last)]
        return self.view.fold_all(new)

    def step(self) -> list[Command]:
        """One step: fold, decide, append all or none."""
        commands = list(self.flow.step(self.view, self.fold()))
        by = By(self.flow.name, self.flow.version, self.view.last, 1)
        for command in commands:
            outcome = self.log.add(to_record(command, session=SPACE, by=by, time=1))[0]
            assert outcome.outcome == "added", (command, outcome)
        if commands:
            self.steps.append(commands)
        self.fold()
        return commands

    def work(self, most: int = 1_000_000) -> bool:
        """Stub workers take what is assigned; True if there was anything."""
        found = [t for t in self.view.tasks.values() if t.state == "assigned" and t.id not in self.hold][:most]
        for task in found:
            self.run(task.id)
        self.fold()
        return bool(found)

    def run(self, name: str) -> None:
        task, log = self.view.tasks[name], self.log
        attempt, start = task.attempt, f"{task.role}@host:1:aa"
        dispatch = self.assigned(name)
        self.runs.append(name)
        self.ok(log.record("task_processing", name, {"attempt": attempt, "worker": start}), start)
        if self.fail.get(name):
            error = {"kind": "stub", "message": "坏了", "retryable": self.fail[name] > 0}
            self.ok(log.record("task_failed", name, {"attempt": attempt, "error": error}), start)
            if self.fail[name] < 0:
                blocked = {"attempt": attempt, "requires_human_intervention": True, "reason": "stub: it is broken"}
                self.ok(log.record("task_blocked", name, blocked), start)
                return
            self.fail[name] -= 1
            again = {"attempt": attempt + 1, "delay_s": 0, "reason": "stub"}
            self.ok(log.record("task_retrying", name, again), start)
            detail = {**dispatch.detail, "attempt": attempt + 1, "by": {"manager": "stub"}}
            self.ok(log.record("task_assigned", name, detail, who="manager"))
            return
        given = self.deliver.get(name, {"result": f"结果 {name}"})
        detail = dict(given(dispatch) if callable(given) else given)
        self.ok(log.record("task_completed", name, {"attempt": attempt, **detail}), start)

    def ok(self, record: Record, owner: str = "") -> None:
        outcome = self.log.add(record, owner=owner)[0]
        assert outcome.outcome == "added", outcome

    def person(self, action: str, task: str = "", **more: Json) -> None:
        detail = {"action": action, "by": "person_li", "why": "by hand", **({"task": task} if task else {}), **more}
        self.ok(self.log.record("decision", f"DEC_{action}_{len(self.log.entries)}", detail, who="person_li"))
        self.fold()

    def to_end(self, most: int = 100_000) -> Record:
        """Step and work until the flow has finished; its finish record."""
        for _ in range(most):
            stepped = self.step()
            worked = self.work()
            if self.view.finished and not stepped:
                return self.finish()
            assert stepped or worked, f"nothing moves: {self.states()}"
        raise AssertionError("no end")

    def settle(self, most: int = 1_000) -> None:
        """Step and work until neither brings anything."""
        for _ in range(most):
            stepped, worked = self.step(), self.work()
            if not stepped and not worked:
                return
        raise AssertionError("no end")

    def finish(self) -> Record:
        return self.decisions("finish")[-1]

    def decisions(self, action: str) -> list[Record]:
        return [r for _, r in self.log.entries if r.event == "decision" and r.detail["action"] == action]

    def assigned(self, task: str) -> Record:
        """The task's last dispatch."""
        return [r for _, r in self.log.entries if r.event == "task_assigned" and r.id == task][-1]

    def records(self, event: str) -> list[Record]:
        return [r for _, r in self.log.entries if r.event == event]

    def states(self) -> dict[str, str]:
        return {t.id: t.state for t in self.view.tasks.values() if t.id != SPACE}

    def phase(self) -> str:
        finish = self.view.finished
        return phase(self.log.tasks, Marks(SPACE, finish.status if finish else ""))

    def counted(self) -> Counter[str]:
        return Counter(self.runs)


def graph(edges: Mapping[str, Sequence[str]], **more: Any) -> dict[str, Json]:
    """A plan of stub tasks from task -> dependencies."""
    return {
        "plan": {
            "tasks": [{"id": t, "role": "stub", "prompt": t, "depends_on": list(d), **more} for t, d in edges.items()]
        }
    }


def _key(entry: str) -> tuple[int, int]:
    ms, _, seq = entry.partition("-")
    return int(ms), int(seq)
