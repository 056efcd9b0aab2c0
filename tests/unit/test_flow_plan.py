"""The flow `plan`, played with stub workers under the law of tasks: order, dispatches, verdicts, replay."""

from __future__ import annotations

from typing import Any

from coordinator.commands import Assign, Decide, Finish, Pend
from coordinator.flows import plan as flow
from coordinator.view import View
from tests.memory import SPACE, Play, graph


def plan(*listed: dict[str, Any], **root: Any) -> dict[str, Any]:
    return {"plan": {"tasks": [{"role": "stub", **t} for t in listed]}, **root}


def missing(play: Play) -> dict[str, str]:
    return {m["task"]: m["reason"] for m in play.finish().detail["missing"]}


def test_every_task_is_pending_at_the_start_and_what_is_ready_is_dispatched_in_the_same_step() -> None:
    play = Play(graph({"c": ["a", "b"], "a": [], "b": []}))
    commands = play.step()
    assert [c.task for c in commands if isinstance(c, Pend)] == ["c", "a", "b"]
    assert [c.task for c in commands if isinstance(c, Assign)] == ["a", "b"]
    assert play.states() == {"a": "assigned", "b": "assigned", "c": "pending"}


def test_there_are_no_waves_one_slow_task_holds_up_only_what_depends_on_it() -> None:
    play = Play(graph({"slow": [], "a": [], "b": ["a"], "c": ["b"], "last": ["slow", "c"]}))
    play.hold = {"slow"}
    play.settle()
    assert play.runs == ["a", "b", "c"]
    assert play.phase() == "running"
    play.hold = set()
    assert play.to_end().detail["status"] == "completed"
    assert play.runs == ["a", "b", "c", "slow", "last"]


def test_dispatches_go_by_priority_then_index_then_place() -> None:
    listed = (
        {"id": "third"},
        {"id": "second", "order_index": -1},
        {"id": "first", "priority": 9, "order_index": 5},
        {"id": "last", "priority": -1},
    )
    assert [c.task for c in Play(plan(*listed)).step() if isinstance(c, Assign)] == ["first", "second", "third", "last"]


def test_a_plan_of_a_thousand_tasks_takes_steps_of_at_most_a_hundred_and_each_task_runs_once() -> None:
    play = Play(graph({f"t{n}": [f"t{n - 7}"] if n >= 7 and n % 3 else [] for n in range(1_000)}))
    play.to_end()
    assert max(map(len, play.steps)) <= 100
    assert set(play.counted().values()) == {1}
    assert len(play.runs) == len(play.records("task_pending")) == 1_000


def test_a_dispatch_carries_what_its_role_needs() -> None:
    second = {
        "id": "b",
        "role": "writer",
        "prompt": "再写",
        "depends_on": ["a"],
        "input": {"from": {"$result": "a"}},
        "merge_key": ["file", "line"],
        "output_schema": {"type": "object"},
        "task_type": "report",
    }
    play = Play(plan({"id": "a", "prompt": "先看", "title": "看"}, second, models={"writer": "big"}, goal="目标"))
    play.to_end()
    given = dict(play.assigned("b").detail)
    by = given.pop("by")
    assert given == {
        "role": "writer",
        "attempt": 1,
        "agent": "writer_1",
        "prompt": "再写",
        "goal": "目标",
        "input": {"from": {"$result": "a"}},
        "prefix": "b",
        "plan_index": 1,
        "merge_key": ["file", "line"],
        "output_schema": {"type": "object"},
        "task_type": "report",
        "model": "big",
        "results": {"a": {"result": "结果 a"}},
    }
    assert (by["flow"], by["version"], by["term"]) == ("plan", 1, 1)
    assert by["as_of"] in [e for e, _ in play.log.entries]
    assert play.assigned("a").trace.parent_id == SPACE
    assert play.assigned("a").what == "看 goes to stub_1 (attempt 1)"


def test_large_results_travel_by_reference_and_artifacts_as_such() -> None:
    play = Play(graph({"small": [], "large": [], "artifact": [], "sum": ["small", "large", "artifact"]}))
    play.deliver = {"large": {"result": "长" * 5_000}, "artifact": {"artifact": {"sha256": "0" * 64, "size": 9}}}
    play.to_end()
    entry = next(e for e, r in play.log.entries if r.id == "large" and r.event == "task_completed")
    assert play.assigned("sum").detail["results"] == {
        "small": {"result": "结果 small"},
        "large": {"$ref": {"task": "large", "entry": entry}},
        "artifact": {"artifact": {"sha256": "0" * 64, "size": 9}},
    }


def test_many_results_stay_below_the_limit_of_a_record() -> None:
    parts: dict[str, list[str]] = {f"p{n}": [] for n in range(100)}
    play = Play(graph({**parts, "sum": list(parts)}))
    play.deliver = {p: {"result": "x" * 4_000} for p in parts}
    play.to_end()
    results = play.assigned("sum").detail["results"]
    inline = sum("result" in r for r in results.values())
    assert 5 < inline < 20
    assert sum("$ref" in r for r in results.values()) == 100 - inline


def test_agents_are_numbered_per_role_and_an_agent_keeps_its_name_over_attempts() -> None:
    play = Play(plan({"id": "a"}, {"id": "b"}, {"id": "c", "role": "writer"}))
    play.fail = {"a": 1}
    play.to_end()
    agents = {t: play.assigned(t).detail["agent"] for t in "abc"}
    assert agents == {"a": "stub_1", "b": "stub_2", "c": "writer_1"}
    assert play.assigned("a").attempt == 2


def test_alternatives_share_the_prefix_of_the_first_and_other_tasks_have_their_own() -> None:
    alternatives = ({"id": "q_b", "alternative_of": "q_a"}, {"id": "r", "alternative_of": "q_b"})
    play = Play(plan({"id": "q_a"}, *alternatives, {"id": "q_c"}))
    play.to_end()
    prefixes = {t: play.assigned(t).detail["prefix"] for t in play.runs}
    assert prefixes == {"q_a": "q_a", "q_b": "q_a", "r": "q_a", "q_c": "q_c"}


class TestVerify:
    def test_a_verifier_starts_when_its_task_is_completed_and_gets_the_task_and_the_delivery(self) -> None:
        verified = {"id": "a", "prompt": "找错误", "input": {"path": "src"}, "verify": "checker"}
        play = Play(plan(verified, {"id": "b", "depends_on": ["a"]}))
        play.deliver = {"a.verify": {"verdict": "confirmed", "verifies": "a", "reasons": ["跑过了"]}}
        assert play.to_end().detail["status"] == "completed"
        dispatch = play.assigned("a.verify")
        assert dispatch.trace.parent_id == "a"
        assert dispatch.detail["verifies"] == "a"
        assert dispatch.detail["role"] == "checker"
        assert dispatch.detail["prefix"] == "a.verify"
        assert dispatch.detail["results"] == {"a": {"result": "结果 a"}}
        assert dispatch.detail["input"] == {
            "verifies": "a",
            "role": "stub",
            "prompt": "找错误",
            "input": {"path": "src"},
            "delivery": {"$result": "a"},
        }
        assert play.runs[0] == "a"

    def test_what_depends_on_a_verdict_gets_the_verdict(self) -> None:
        play = Play(plan({"id": "a", "verify": "checker"}, {"id": "b", "depends_on": ["a.verify"]}))
        verdict = {"verdict": "rejected", "verifies": "a", "reasons": ["不对"]}
        play.deliver = {"a.verify": verdict}
        play.to_end()
        assert play.assigned("b").detail["results"] == {"a.verify": {"result": verdict}}

    def test_a_session_is_through_only_after_its_verifiers(self) -> None:
        play = Play(plan({"id": "a", "verify": "checker"}))
        play.hold = {"a.verify"}
        play.settle()
        assert not play.view.finished
        play.hold = set()
        assert play.to_end().detail["status"] == "completed"

    def test_a_verifier_that_is_blocked_leaves_a_partial_session(self) -> None:
        play = Play(plan({"id": "a", "verify": "checker"}))
        play.fail = {"a.verify": -1}
        assert play.to_end().detail["status"] == "partial"
        assert missing(play) == {"a.verify": "blocked: stub: it is broken"}

    def test_a_reference_in_the_input_is_told_to_the_verifier_as_data(self) -> None:
        verified = {"id": "a", "depends_on": ["z"], "input": [{"$result": "z"}], "verify": "checker"}
        play = Play(plan({"id": "z"}, verified))
        play.to_end()
        assert play.assigned("a.verify").detail["input"]["input"] == [{"result_of": "z"}]


def test_an_unknown_role_ends_the_session_before_anything_is_dispatched() -> None:
    play = Play(plan({"id": "a"}, {"id": "b", "role": "nobody"}), roles=["stub"])
    finish = play.to_end()
    assert finish.detail["status"] == "failed"
    assert "'nobody'" in finish.detail["why"]
    assert play.runs == []


def test_a_replay_decides_the_same_at_the_same_points() -> None:
    """What is on record is decided again by folding up to each command's ``as_of``."""
    play = Play(graph({f"t{n}": [f"t{n // 2}"] if n else [] for n in range(40)}, verify="checker"))
    play.fail = {"t3": 1, "t5": -1}
    play.to_end()
    ours = [r for _, r in play.log.entries if isinstance(r.detail.get("by"), dict) and "flow" in r.detail["by"]]
    view, at = View(SPACE), 0
    decided: list[tuple[str, str]] = []
    for point in dict.fromkeys(r.detail["by"]["as_of"] for r in ours):
        while view.last != point:
            view.fold(*play.log.entries[at])
            at += 1
        decided += [_name(c) for c in flow.step(view, ())]
    assert decided == [(r.event, r.id) for r in ours]
    assert len(decided) > 140


def _name(command: Any) -> tuple[str, str]:
    match command:
        case Pend():
            return "task_pending", command.task
        case Assign():
            return "task_assigned", command.task
        case Finish():
            return "decision", f"DEC_finish_{SPACE}_{command.n}"
    assert isinstance(command, Decide)
    return "decision", f"DEC_{command.action}_{command.mark}"
