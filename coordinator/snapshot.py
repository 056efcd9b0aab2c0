"""A view as bytes, so that a leader that takes a session over need not fold all of it.

Guarantees: what is loaded equals what was dumped; bytes that are unreadable, of another version or of another space
give None, and the log is folded again: a snapshot is never the truth. Pure.
"""

from __future__ import annotations

import zlib
from typing import Final, cast

import orjson

from coordinator.guards import Guards
from coordinator.planfile import PlanTask
from coordinator.view import Finished, TaskView, View
from protocol.record import canonical

VERSION: Final = 2
_PLAIN: Final = (
    "space", "last", "count", "session", "root", "traceparent", "planned", "plan_error", "routed", "wants",
    "proposals", "agents", "finishes", "resumes", "reopen", "cancelled", "stop", "over", "dispatches", "tokens",
    "micros", "since",
)  # fmt: skip
_TASK: Final = (
    "id", "state", "attempt", "assigned", "role", "agent", "entry", "result", "kept", "artifact", "reason", "spent",
)  # fmt: skip


def dump(view: View) -> bytes:
    """The view as a snapshot (compressed: it lies beside the log and must not weigh like one)."""
    finished = view.finished
    data = {
        **{name: getattr(view, name) for name in _PLAIN},
        "v": VERSION,
        "guards": view.guards.to_json(),
        "finished": [finished.status, finished.n, finished.entry] if finished else None,
        "specs": [s.to_json() for s in view.graph.specs.values()],
        "retries": list(view.retries),
        "tasks": [[getattr(t, name) for name in _TASK] for t in view.tasks.values()],
    }
    return zlib.compress(canonical(data), 1)


def load(space: str, data: bytes) -> View | None:
    """The view of a snapshot; None where it is unreadable, of another version or of another space."""
    try:
        found = orjson.loads(zlib.decompress(data))
        if found["v"] != VERSION or found["space"] != space:
            return None
        view = View(space)
        for name in _PLAIN:
            setattr(view, name, found[name])
        view.since = cast("tuple[int, int, int, int]", tuple(found["since"]))
        view.guards = Guards.read(found["guards"])
        view.finished = Finished(*found["finished"]) if found["finished"] else None
        view.retries = dict.fromkeys(found["retries"])
        for row in found["tasks"]:
            values = dict(zip(_TASK, row, strict=True))
            view.tasks[row[0]] = TaskView(**{**values, "spent": tuple(values["spent"])})
        for spec in found["specs"]:
            view.graph.add(PlanTask.from_json(spec))
    except (ValueError, TypeError, KeyError, IndexError, zlib.error):
        return None
    return view
