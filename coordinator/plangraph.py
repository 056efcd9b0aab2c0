"""Is a list of tasks a graph that can be run? Duplicates, missing dependencies, cycles, alternatives, references.

Guarantees: raises one `PlanRefused` for the first kind of fault found, naming every task of that kind; linear in tasks
and edges, without recursion. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from protocol.errors import PlanRefused
from protocol.record import Json


class Task(Protocol):
    """What is looked at."""

    @property
    def id(self) -> str: ...
    @property
    def depends_on(self) -> tuple[str, ...]: ...
    @property
    def alternative_of(self) -> str: ...
    @property
    def input(self) -> Json: ...


def check(tasks: Sequence[Task], taken: Collection[str] = ()) -> None:
    """Raises PlanRefused unless ``tasks``, beside the existing ids ``taken``, are a graph without fault."""
    ids: set[str] = set()
    double = [t.id for t in tasks if t.id in taken or t.id in ids or ids.add(t.id)]  # type: ignore[func-returns-value]
    if double:
        raise _refused(f"{names(double)}: there is a task of that id already", "duplicate_id", double)
    own = [t.id for t in tasks if t.id in t.depends_on or t.alternative_of == t.id]
    if own:
        raise _refused(f"{names(own)}: depends on itself", "self_dependency", own)
    _check_missing(tasks, ids, taken)
    circles = cycles({t.id: [d for d in t.depends_on if d in ids] for t in tasks})
    if circles:
        said = "; ".join(" -> ".join([*circle, circle[0]]) for circle in circles)
        raise _refused(f"the tasks wait for each other: {said}", "cycle", [t for circle in circles for t in circle])
    alike = cycles({t.id: [t.alternative_of] if t.alternative_of in ids else [] for t in tasks})
    if alike:
        raise _refused(f"{names(alike[0])}: alternatives of each other", "cycle", alike[0])
    for task in tasks:
        strange = [r for r in references(task.input) if r not in task.depends_on]
        if strange:
            raise _refused(
                f"{names([task.id])}: its input uses the result of {names(strange)} without depending on it",
                "missing_dependency",
                [task.id, *strange],
            )


def _check_missing(tasks: Sequence[Task], ids: Collection[str], taken: Collection[str]) -> None:
    missing: dict[str, list[str]] = {}
    for task in tasks:
        wanted = (*task.depends_on, task.alternative_of) if task.alternative_of else task.depends_on
        for name in wanted:
            if name not in ids and name not in taken:
                missing.setdefault(name, []).append(task.id)
    if missing:
        said = "; ".join(f"{names(by)} needs {name!r}, which is not there" for name, by in missing.items())
        raise _refused(
            said, "missing_dependency", list(dict.fromkeys([*missing, *(t for by in missing.values() for t in by)]))
        )


def references(value: Json) -> Iterator[str]:
    """The tasks whose results an input uses: every object ``{"$result": task, …}`` in it."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            named = item.get("$result")
            if isinstance(named, str):
                yield named
            else:
                stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def cycles(edges: Mapping[str, Sequence[str]], most: int = 20) -> list[list[str]]:
    """Cycles of the graph that share no task, each with its members in order; empty where there is none."""
    found: list[list[str]] = []
    state: dict[str, int] = {}  # 1: on the path, 2: done
    for start in edges:
        if start in state:
            continue
        path = [start]
        walks = [iter(edges[start])]
        state[start] = 1
        while walks:
            following = next(walks[-1], None)
            if following is None:
                walks.pop()
                state[path.pop()] = 2
            elif state.get(following) == 1:
                found.append(path[path.index(following) :])
                if len(found) >= most:
                    return found
                for name in path:
                    state[name] = 2
                break
            elif following not in state:
                state[following] = 1
                path.append(following)
                walks.append(iter(edges[following]))
    return found


def names(tasks: Collection[str]) -> str:
    """The tasks for a message: at most ten of them."""
    listed = list(tasks)
    shown = ", ".join(repr(t) for t in listed[:10])
    more = f" and {len(listed) - 10} more" if len(listed) > 10 else ""
    return f"task{'s' if len(listed) > 1 else ''} {shown}{more}"


def _refused(message: str, reason: str, tasks: Sequence[str]) -> PlanRefused:
    return PlanRefused(message, reason=reason, tasks=tuple(tasks), mend="mend the plan; nothing was started")
