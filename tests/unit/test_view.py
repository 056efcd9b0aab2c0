"""The view: folded in any pieces it is the same, a snapshot is the view, and a step costs what changed."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import snapshot
from coordinator.flows import plan as flow
from coordinator.view import View
from tests.memory import SPACE, Play, graph

COSTLY = ("/coordinator/view.py", "/coordinator/graph.py", "/coordinator/flows/", "/coordinator/guards.py")


def session() -> Play:
    """A session in which everything happens that a view keeps."""
    play = Play(
        graph({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["missing.a"], "missing.a": []}, verify="checker")
        | {"models": {"stub": "small"}, "guards": {"seconds": 600}, "policy": "hold"}
    )
    play.fail = {"b": 1, "missing.a": -1}
    play.deliver = {
        "a": {"result": {"项": [1, 2**70]}, "usage": {"total_tokens": 7}, "subtasks": [{"id": "a1", "role": "stub"}]},
        "c": {"artifact": {"sha256": "cd" * 32, "size": 1}},
        "d": {"result": 1, "subtasks": "nothing"},
    }
    play.to_end()
    play.person("resume")
    play.to_end()
    return play


PLAYED = session()


def told(view: View) -> dict[str, Any]:
    """All that a view says, in plain values."""
    names = [n for n in View.__dataclass_fields__ if n not in ("graph", "tasks")]
    graph_names = ("specs", "dependents", "unmet", "to_pend", "ready", "roles")
    return {
        **{n: getattr(view, n) for n in names},
        "tasks": dict(view.tasks),
        **{f"graph.{n}": getattr(view.graph, n) for n in graph_names},
        "counts": {s: n for s, n in view.graph.counts.items() if n},
    }


@given(st.lists(st.integers(0, len(PLAYED.log.entries)), max_size=6))
def test_folded_in_pieces_with_snapshots_between_it_is_the_same_view(cuts: list[int]) -> None:
    entries = PLAYED.log.entries
    view, at = View(SPACE), 0
    for cut in [*sorted(cuts), len(entries)]:
        view.fold_all(entries[at:cut])
        at = max(at, cut)
        loaded = snapshot.load(SPACE, snapshot.dump(view))
        assert loaded is not None
        assert told(loaded) == told(view)
        view = loaded
    assert told(view) == told(PLAYED.view)


@pytest.mark.parametrize("data", [b"", b"\0" * 100, snapshot.dump(View("another")), snapshot.dump(View(SPACE))[:-9]])
def test_a_snapshot_that_is_none_is_not_read(data: bytes) -> None:
    assert snapshot.load(SPACE, data) is None


def test_a_snapshot_of_another_version_is_folded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data = snapshot.dump(View(SPACE))
    assert snapshot.load(SPACE, data) is not None
    monkeypatch.setattr(snapshot, "VERSION", snapshot.VERSION + 1)
    assert snapshot.load(SPACE, data) is None


def lines_of_one_change(tasks: int, edges: dict[str, list[str]]) -> int:
    """Lines of the head's code that run when one task is delivered and its dependent is dispatched."""
    play = Play(graph(edges))
    play.hold = set(edges)
    play.settle()
    play.run("t0")
    record = [(e, r) for e, r in play.log.entries if r.id == "t0"][-2:]
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if not any(part in frame.f_code.co_filename for part in COSTLY):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        changed = play.view.fold_all(record)
        commands = flow.step(play.view, changed)
    finally:
        sys.settrace(before)
    assert [type(c).__name__ for c in commands] == ["Assign"]
    assert len(edges) == tasks
    return count


def test_a_step_costs_what_changed_flat_from_10_to_1000_tasks() -> None:
    def pairs(n: int) -> dict[str, list[str]]:
        return {f"t{k}": [f"t{k - 1}"] if k % 2 else [] for k in range(n)}

    def chain(n: int) -> dict[str, list[str]]:
        return {f"t{k}": [f"t{k - 1}"] if k else [] for k in range(n)}

    for shape in (pairs, chain):
        costs = [lines_of_one_change(n, shape(n)) for n in (10, 100, 1_000)]
        assert costs[0] == costs[1] == costs[2], costs
        assert costs[0] < 400


def test_a_task_that_no_plan_knows_is_told_and_holds_up_nothing() -> None:
    play = Play(graph({"a": []}))
    play.ok(play.log.record("task_started", "外".encode().hex(), {}, who="outside"))
    assert play.to_end().detail["status"] == "completed"
    assert len(play.view.tasks) == 3


def test_only_the_spaces_own_root_opens_the_session() -> None:
    view = View(SPACE)
    play = Play({"plan": []})
    [(entry, root)] = play.log.entries
    view.fold(entry, root.model_copy(update={"id": "other"}))
    assert view.session == ""
    view.fold(entry, root)
    assert (view.session, view.goal, view.planned) == (SPACE, "看一遍代码", True)
