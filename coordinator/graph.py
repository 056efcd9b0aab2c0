"""The task graph of a session: who waits for how many, who is ready, what is still to be made known.

Guarantees: a change of one task costs its dependents and a place in a sorted list, never the size of the graph; the
graph is a function of its tasks in order and of their states, so that a snapshot needs nothing else. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Final

from coordinator.planfile import PlanTask

MOVING: Final = frozenset({"started", "assigned", "processing", "failed", "retrying", "waiting", "lost"})
"""States in which something will still come by itself or from a person who was asked: the flow waits for it."""
MET: Final = frozenset({"completed", "merged"})
OVER: Final = MET | {"cancelled"}

Key = tuple[int, int, int, str]


class Graph:
    """Tasks that a flow leads, with their dependencies."""

    __slots__ = ("_order", "_state_of", "counts", "dependents", "ready", "roles", "specs", "to_pend", "unmet")

    def __init__(self, state_of: Callable[[str], str]) -> None:
        """``state_of`` gives a task's state, '' where nothing is on record."""
        self._state_of = state_of
        self.specs: dict[str, PlanTask] = {}
        self.dependents: dict[str, list[str]] = {}
        self.unmet: dict[str, int] = {}
        self.to_pend: dict[str, None] = {}
        """Known to the plan, not yet on record; in plan order."""
        self.ready: list[Key] = []
        """Pending with nothing unmet, in the order of dispatch: higher priority, lower index, plan order."""
        self.counts: dict[str, int] = {}
        self.roles: set[str] = set()
        self._order: dict[str, int] = {}

    def add(self, spec: PlanTask) -> None:
        """Put a task in (once)."""
        if spec.id in self.specs:
            return
        self._order[spec.id] = len(self.specs)
        self.specs[spec.id] = spec
        self.roles.add(spec.role)
        unmet = 0
        for name in spec.depends_on:
            self.dependents.setdefault(name, []).append(spec.id)
            unmet += self._state_of(name) not in MET
        self.unmet[spec.id] = unmet
        state = self._state_of(spec.id)
        if state:
            self._enter(spec.id, state)
        else:
            self.to_pend[spec.id] = None

    def moved(self, task: str, old: str, new: str) -> None:
        """A task went from one state to another ('' before its first record); ``state_of`` says the new one already."""
        if task in self.specs:
            if old:
                self.counts[old] -= 1
                if old == "pending":
                    self._unready(task)
            else:
                self.to_pend.pop(task, None)
            self._enter(task, new)
        if new in MET and old not in MET:
            for name in self.dependents.get(task, ()):
                self.unmet[name] -= 1
                if not self.unmet[name] and self._state_of(name) == "pending":
                    insort(self.ready, self.key(name))

    @property
    def moving(self) -> int:
        """Tasks that something will still come of."""
        return sum(n for state, n in self.counts.items() if state in MOVING)

    def index(self, task: str) -> int:
        """The task's place in plan order."""
        return self._order[task]

    def key(self, task: str) -> Key:
        spec = self.specs[task]
        return -spec.priority, spec.order_index, self._order[task], task

    def prefix(self, task: str) -> str:
        """The prefix that a task's alternatives share: the first of them, else the task itself."""
        spec = self.specs.get(task)
        while spec is not None and spec.alternative_of:
            task = spec.alternative_of
            spec = self.specs.get(task)
        return task

    def not_run(self) -> list[tuple[str, str]]:
        """Tasks that were never dispatched or are pending again -> (task, the task that they wait for in vain, '' where
        nothing is in their way); in plan order. Costs the size of the graph: for the end of a session."""
        cause: dict[str, str] = {}
        for start in self.specs:
            path: list[str] = []
            name = start
            while name not in cause and self._state_of(name) in ("pending", ""):
                path.append(name)
                spec = self.specs.get(name)
                blocking = next((d for d in spec.depends_on if self._state_of(d) not in MET), "") if spec else ""
                if not blocking:
                    break
                name = blocking
            root = cause.get(name) or name
            for passed in path:
                cause[passed] = root if root != passed else ""
        return [(task, cause[task]) for task in self.specs if task in cause]

    def _enter(self, task: str, state: str) -> None:
        self.counts[state] = self.counts.get(state, 0) + 1
        if state == "pending" and not self.unmet[task]:
            insort(self.ready, self.key(task))

    def _unready(self, task: str) -> None:
        key = self.key(task)
        at = bisect_left(self.ready, key)
        if at < len(self.ready) and self.ready[at] == key:
            del self.ready[at]
