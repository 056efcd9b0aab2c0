"""What a space's tasks amount to: the phase, the counts, what waits for a person. Pure.

Guarantees: one answer for one set of task states; a task of a flow's root is never counted as work. Never reads a log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from protocol.record import Json
from protocol.tasks import FINISHED, TaskState

Phase = Literal["empty", "planning", "running", "waiting", "ready_to_merge", "merged", "failed", "cancelled"]
PHASES: Final[tuple[Phase, ...]] = (
    "empty", "planning", "running", "waiting", "ready_to_merge", "merged", "failed", "cancelled",
)  # fmt: skip
SETTLED: Final[frozenset[Phase]] = frozenset({"merged", "failed", "cancelled"})
"""Phases that nothing leaves but what a person does."""
ACTIVE: Final = frozenset({"started", "assigned", "processing", "retrying"})
WAITS: Final = frozenset({"blocked", "lost", "waiting", "failed"})
"""States that a person settles (a failed task of an outside agent too: nothing else will take it up)."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What the space's metadata says beside the tasks. ``root`` is the root task's id; ``finish`` the status of the
    flow's finish in force ("" where there is none); ``merged``: a merge is on record for it."""

    root: str = ""
    finish: str = ""
    merged: bool = False


def work(states: Mapping[str, TaskState], marks: Marks) -> dict[str, TaskState]:
    """The tasks without a flow's root."""
    return {task: state for task, state in states.items() if task != marks.root}


def phase(states: Mapping[str, TaskState], marks: Marks) -> Phase:
    """The phase of a space with these task states."""
    if not states:
        return "empty"
    root = states.get(marks.root)
    tasks = work(states, marks)
    kinds = Counter(state.state for state in tasks.values())
    if (root and root.state == "cancelled") or (tasks and kinds["cancelled"] == len(tasks)):
        return "cancelled"
    if marks.merged:
        return "merged"
    if marks.finish:
        return "failed" if marks.finish == "failed" else "ready_to_merge"
    if any(kinds[state] for state in ACTIVE):
        return "running"
    if not tasks or kinds["pending"] == len(tasks):
        return "planning"
    if all(state.state in FINISHED for state in tasks.values()):
        return "running" if root else "ready_to_merge"  # a flow says itself when it is through
    if any(kinds[state] for state in WAITS):
        return "failed" if kinds["failed"] == len(tasks) else "waiting"
    return "running"


def counts(states: Mapping[str, TaskState], marks: Marks | None = None) -> dict[str, int]:
    """Tasks by state."""
    return dict(Counter(state.state for state in work(states, marks or Marks()).values()))


def waiting(space: str, states: Mapping[str, TaskState], marks: Marks) -> list[dict[str, Json]]:
    """What waits for a person in a space: the task, its state, what to do."""
    out: list[dict[str, Json]] = []
    for task, state in work(states, marks).items():
        if state.state not in WAITS:
            continue
        row: dict[str, Json] = {"space": space, "task": task, "state": state.state, "role": state.role}
        if state.waiting_for:
            row["question"] = state.waiting_for
        row["mend"] = mend(space, task, state)
        out.append(row)
    return out


def mend(space: str, task: str, state: TaskState) -> str:
    """The command that settles it."""
    if state.state == "waiting":
        return f"rolecall answer {state.waiting_for} TEXT --space {space}"
    return f"rolecall task retry {task} --space {space}"
