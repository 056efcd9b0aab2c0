"""One space, looked at: its phase, its tasks, what waits for a person; the same on every store.

Guarantees: reads only, and only what an answer needs (nothing walks a whole log). Never formats for people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from coordinator.status import Marks, counts, phase, waiting
from protocol.cursor import entry_key
from protocol.ports import Appended, Page, Step
from protocol.record import Json, Record
from protocol.tasks import TaskState

REASONS_SHOWN: Final = 100


class SpaceLog(Protocol):
    """What the record commands need of a store: Redis and the state file both keep it."""

    async def create(self, space: str, *, meta: Mapping[str, str]) -> bool: ...
    async def exists(self, space: str) -> bool: ...
    async def meta(self, space: str) -> dict[str, str]: ...
    async def set_meta(self, space: str, values: Mapping[str, str]) -> None: ...
    async def open_space(self, space: str) -> None: ...
    async def append(self, space: str, records: Sequence[Record], *, owner: str = "") -> list[Appended]: ...
    async def append_step(self, space: str, records: Sequence[Record]) -> Step: ...
    async def read(
        self, space: str, *, since: str | int = 0, who: str = "", event: str = "", session: str = "", limit: int = 20,
        by_time: bool = False,
    ) -> Page: ...  # fmt: skip
    async def tail(self, space: str, after: str = "0-0", count: int = 1000) -> list[tuple[str, Record]]: ...
    async def get(self, space: str, entry: str) -> Record | None: ...
    async def task_states(self, space: str) -> dict[str, TaskState]: ...
    async def now_ms(self) -> int: ...


async def describe(log: SpaceLog, space: str, states: Mapping[str, TaskState]) -> dict[str, Json]:
    """One session or space, whole: metadata, phase, agents, tasks with their states, what waits for a person."""
    meta = await log.meta(space)
    marks = await marks_of(log, space, meta, states)
    tasks = [
        {
            "task": task, "state": s.state, "attempt": s.attempt, "role": s.role, "agent": s.agent,
            "owner": s.owner, "tries": s.tries,
        }
        for task, s in states.items() if task != marks.root
    ]  # fmt: skip
    agents: Counter[str] = Counter(s.agent for s in states.values() if s.agent)
    return overview(space, meta, states, marks) | {
        "agents": dict(agents), "task_list": tasks, "waiting_for_person": await _reasons(log, space, states, marks)
    }  # fmt: skip


async def marks_of(log: SpaceLog, space: str, meta: Mapping[str, str], states: Mapping[str, TaskState]) -> Marks:
    """What the metadata says beside the tasks. A merge counts where it came after the finish in force; in a space made
    by hand, where nothing that matters came after it."""
    finish, merged = meta.get("finish", ""), meta.get("merged", "")
    if meta.get("kind") == "session":
        merged = merged if finish and merged and entry_after(merged, finish) else ""
    elif merged and entry_after(meta.get("matter", "0-0"), merged):
        merged = ""
    status = ""
    if finish and not merged:
        record = await log.get(space, finish)
        status = str(record.detail.get("status") or "completed") if record else ""
    return Marks(root=space if space in states else "", finish=status, merged=bool(merged))


async def _reasons(log: SpaceLog, space: str, states: Mapping[str, TaskState], marks: Marks) -> list[dict[str, Json]]:
    """What waits, with the words of the record that says why."""
    rows = waiting(space, states, marks)
    for row in rows[:REASONS_SHOWN]:
        state = states[row["task"]]
        for event in ("task_blocked", "task_agent_lost", "task_failed", "task_pending"):
            entry = state.entry_of(event, state.attempt)
            record = await log.get(space, entry) if entry else None
            if record is not None:
                row["reason"] = str(record.detail.get("reason") or record.what)
                break
    return rows


def entry_after(one: str, other: str) -> bool:
    """Whether the log entry ``one`` came after ``other``."""
    return entry_key(one) > entry_key(other)


def overview(space: str, meta: Mapping[str, str], states: Mapping[str, TaskState], marks: Marks) -> dict[str, Json]:
    """One session in a few fields."""
    return {
        "session": space, "kind": meta.get("kind", "hand"), "title": meta.get("title", ""),
        "flow": meta.get("flow", ""), "phase": phase(states, marks), "tasks": counts(states, marks),
        "records": int(meta.get("n", 0)), "created_ms": int(meta.get("created", 0)),
        "status": meta.get("status", "active"),
    }  # fmt: skip
