"""The flow `plan` when things go wrong: failures, losses, guards, a person who settles, cancels or resumes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.memory import SPACE, Play, graph

START = "stub@host:1:aa"


def missing(play: Play) -> dict[str, str]:
    return {m["task"]: m["reason"] for m in play.finish().detail["missing"]}


def claimed(play: Play, task: str) -> None:
    """A worker has the task in hand."""
    play.ok(play.log.record("task_processing", task, {"attempt": 1, "worker": START}), START)


class TestFailures:
    def test_the_rest_finishes_and_what_depends_on_the_failed_task_is_listed_with_its_cause(self) -> None:
        play = Play(graph({"a": [], "b": ["a"], "c": ["b"], "x": [], "y": ["x"]}))
        play.fail = {"a": -1}
        finish = play.to_end()
        assert finish.detail["status"] == "partial"
        assert finish.detail["missing_count"] == 3
        assert finish.detail["missing"] == [
            {"task": "a", "reason": "blocked: stub: it is broken"},
            {"task": "b", "reason": "not run, cause a", "cause": "a"},
            {"task": "c", "reason": "not run, cause a", "cause": "a"},
        ]
        assert play.runs == ["a", "x", "y"]

    def test_a_session_without_any_delivery_has_failed(self) -> None:
        play = Play(graph({"a": [], "b": ["a"]}))
        play.fail = {"a": -1}
        assert play.to_end().detail["status"] == "failed"
        assert play.phase() == "failed"

    def test_a_long_list_of_what_is_missing_is_counted_and_cut(self) -> None:
        play = Play(graph({"a": [], **{f"t{n}": ["a"] for n in range(300)}}))
        play.fail = {"a": -1}
        finish = play.to_end()
        assert finish.detail["missing_count"] == 301
        assert len(finish.detail["missing"]) == 100

    def test_it_does_not_finish_while_a_task_waits_for_a_person(self) -> None:
        play = Play(graph({"a": [], "b": []}))
        play.step()
        play.run("b")
        claimed(play, "a")
        play.ok(play.log.record("task_pending", "a", {"attempt": 1, "role": "stub", "waiting_for": "ASK_1"}), START)
        play.settle()
        assert play.phase() == "waiting"
        assert not play.view.finished

    def test_it_does_not_finish_while_a_lost_task_is_to_be_taken_over(self) -> None:
        play = Play(graph({"a": []}))
        play.step()
        claimed(play, "a")
        lost = {"attempt": 1, "agent": "stub_1", "last_seen": 1, "by": {"manager": "m"}}
        play.ok(play.log.record("task_agent_lost", "a", lost, who="manager"))
        play.settle()
        assert not play.view.finished
        again = {**play.assigned("a").detail, "attempt": 2, "by": {"manager": "m"}}
        play.ok(play.log.record("task_assigned", "a", again, who="manager"))
        assert play.to_end().detail["status"] == "completed"

    def test_under_hold_a_lost_task_waits_for_a_person(self) -> None:
        play = Play(graph({"a": []}) | {"policy": "hold"})
        play.step()
        claimed(play, "a")
        lost = {"attempt": 1, "agent": "stub_1", "last_seen": 1, "by": {"manager": "m"}}
        play.ok(play.log.record("task_agent_lost", "a", lost, who="manager"))
        play.settle()
        assert play.phase() == "waiting"
        play.person("retry", "a")
        assert play.to_end().detail["status"] == "completed"
        assert play.assigned("a").attempt == 2


class TestAPerson:
    def stuck(self) -> Play:
        play = Play(graph({"a": [], "b": ["a"], "hold": []}))
        play.fail, play.hold = {"a": -1}, {"hold"}
        play.settle()
        play.fail = {}
        return play

    def test_a_result_accepted_by_hand_releases_the_dependents(self) -> None:
        play = self.stuck()
        play.person("accept", "a", result="人工结果")
        play.hold = set()
        assert play.to_end().detail["status"] == "completed"
        assert play.assigned("b").detail["results"] == {"a": {"result": "人工结果"}}

    def test_a_retried_task_gets_the_next_attempt_from_the_flow_and_keeps_its_agent(self) -> None:
        play = self.stuck()
        play.person("retry", "a")
        play.settle()
        assert (play.assigned("a").attempt, play.assigned("a").detail["agent"]) == (2, "stub_1")
        assert play.view.state("b") == "completed"

    def test_a_task_given_to_another_role_gets_another_agent(self) -> None:
        play = self.stuck()
        play.person("reassign", "a", role="writer")
        play.settle()
        detail = play.assigned("a").detail
        assert (detail["role"], detail["agent"]) == ("writer", "writer_1")

    def test_a_cancelled_task_is_missing_and_its_dependents_are_not_run(self) -> None:
        play = Play(graph({"a": [], "b": ["a"], "c": []}))
        play.hold = {"a"}
        play.settle()
        play.person("cancel", "a")
        play.to_end()
        assert missing(play) == {"a": "cancelled", "b": "not run, cause a"}

    def test_cancelling_the_session_cancels_what_is_open_and_finishes_it(self) -> None:
        play = Play(graph({"a": [], "b": ["a"], "c": []}))
        play.hold = {"a"}
        play.settle()
        play.person("cancel", SPACE)
        assert play.to_end().detail["status"] == "cancelled"
        assert play.states() == {"a": "cancelled", "b": "cancelled", "c": "completed"}
        assert play.phase() == "cancelled"


class TestAfterTheFinish:
    def blocked(self) -> Play:
        play = Play(graph({"a": [], "b": ["a"], "x": []}))
        play.fail = {"a": -1}
        play.to_end()
        play.fail = {}
        return play

    def test_nothing_is_said_after_a_finish(self) -> None:
        play = self.blocked()
        play.ok(play.log.record("info", "INFO_1"))
        assert play.step() == []

    def test_resume_runs_only_what_is_missing_again(self) -> None:
        play = self.blocked()
        play.person("resume")
        assert play.to_end().detail["status"] == "completed"
        assert play.counted() == {"a": 2, "b": 1, "x": 1}
        assert [d.id for d in play.decisions("finish")] == [f"DEC_finish_{SPACE}_1", f"DEC_finish_{SPACE}_2"]

    def test_a_task_retried_by_a_person_takes_the_session_up_again_for_everyone_to_see(self) -> None:
        play = self.blocked()
        play.person("retry", "a")
        finish = play.to_end()
        assert (finish.detail["status"], finish.detail["n"]) == ("completed", 2)
        assert [d.detail["retry"] for d in play.decisions("resume")] == [False]


class TestGuards:
    def test_dispatches_nothing_new_what_is_in_hand_ends(self) -> None:
        play = Play(graph({"a": [], "b": ["a"], "c": ["b"], "d": ["c"]}) | {"guards": {"dispatches": 2}})
        assert play.to_end().detail["status"] == "partial"
        assert play.runs == ["a", "b"]
        assert [d.detail["guard"] for d in play.decisions("guard")] == ["dispatches"]
        assert missing(play) == {"c": "not run", "d": "not run, cause c"}

    def test_a_guard_that_is_just_met_at_the_end_trips_nothing(self) -> None:
        play = Play(graph({"a": [], "b": ["a"]}) | {"guards": {"dispatches": 2, "tokens": 5}})
        play.deliver = {"b": {"result": 1, "usage": {"total_tokens": 100}}}
        assert play.to_end().detail["status"] == "completed"
        assert not play.decisions("guard")

    def test_tokens_are_summed_over_the_session(self) -> None:
        play = Play(graph({"a": [], "b": ["a"], "c": ["b"]}) | {"guards": {"max_tokens": 100}})
        play.deliver = {t: {"result": t, "usage": {"total_tokens": 60}} for t in "abc"}
        play.to_end()
        assert play.runs == ["a", "b"]
        assert "120 tokens" in play.decisions("guard")[0].detail["why"]

    def test_seconds_are_the_servers_and_end_what_is_in_hand(self) -> None:
        play = Play(graph({"a": [], "slow": [], "b": ["a"]}) | {"guards": {"seconds": 60}})
        play.hold = {"slow"}
        play.settle()
        assert play.runs == ["a", "b"]
        play.log.ms += 61_000
        play.ok(play.log.record("info", "INFO_1"))
        assert play.to_end().detail["status"] == "partial"
        assert play.states() == {"a": "completed", "b": "completed", "slow": "cancelled"}

    def test_a_plan_brings_guards_of_its_own(self) -> None:
        root = graph({"a": [], "b": ["a"]})
        root["plan"]["guards"] = {"dispatches": 1}
        play = Play(root)
        play.to_end()
        assert play.runs == ["a"]

    def test_a_resumed_session_gets_its_guards_anew(self) -> None:
        play = Play(graph({"a": [], "b": ["a"], "c": ["b"], "d": ["c"]}) | {"guards": {"dispatches": 2}})
        play.to_end()
        play.person("resume")
        assert play.to_end().detail["status"] == "completed"
        assert play.runs == ["a", "b", "c", "d"]
        assert [d.detail["n"] for d in play.decisions("finish")] == [1, 2]


def proposing(*tasks: dict[str, Any]) -> Play:
    """A session whose first task is an organizer's: it may have work done by `stub`."""
    plan = [{"role": "organizer" if task["id"] == "a" else "stub", **task} for task in tasks]
    play = Play({"plan": plan})
    play.view.roles = {"stub": {"tier": "sub"}, "organizer": {"tier": "organize"}}
    return play


class TestSubtasks:
    def test_a_proposal_that_is_in_order_runs_under_the_proposing_task(self) -> None:
        play = proposing({"id": "a"}, {"id": "b"})
        subtasks = [{"id": "a1", "role": "stub"}, {"id": "a2", "role": "stub", "depends_on": ["a1", "b"]}]
        play.deliver = {"a": {"result": "分了工", "subtasks": subtasks}}
        assert play.to_end().detail["status"] == "completed"
        assert sorted(play.runs) == ["a", "a1", "a2", "b"]
        assert play.assigned("a2").trace.parent_id == "a"
        assert set(play.assigned("a2").detail["results"]) == {"a", "a1", "b"}
        assert [d.detail["tasks"] for d in play.decisions("accept_subtasks")] == [["a1", "a2"]]

    @pytest.mark.parametrize(
        ("subtasks", "reason"),
        [
            ([{"id": "a", "role": "stub"}], "duplicate_id"),
            ([{"id": "a1", "role": "nobody"}], "unknown_role"),
            ([{"id": "a1", "role": "stub", "depends_on": ["gone"]}], "missing_dependency"),
            ([{"id": t, "role": "stub", "depends_on": [d]} for t, d in (("x", "y"), ("y", "x"))], "cycle"),
            ([{"id": f"s{n}", "role": "stub"} for n in range(51)], "too_many"),
            ("做三件事", "bad_task"),
        ],
        ids=lambda value: value if isinstance(value, str) and value.isascii() else "",
    )
    def test_a_proposal_that_is_not_is_a_decision_and_the_delivery_stands(self, subtasks: Any, reason: str) -> None:
        play = proposing({"id": "a"}, {"id": "b", "depends_on": ["a"]})
        play.deliver = {"a": {"result": "分了工", "subtasks": subtasks}}
        assert play.to_end().detail["status"] == "completed"
        [decision] = play.decisions("refuse_subtasks")
        assert (decision.detail["task"], decision.detail["reason"]) == ("a", reason)
        assert decision.detail["why"]
        assert play.runs == ["a", "b"]

    def test_two_proposals_of_one_moment_can_not_take_the_same_id(self) -> None:
        play = Play(graph({"a": [], "b": []}))
        play.deliver = {t: {"result": 1, "subtasks": [{"id": "same", "role": "stub"}]} for t in "ab"}
        play.to_end()
        assert len(play.decisions("accept_subtasks")) == len(play.decisions("refuse_subtasks")) == 1
        assert play.counted()["same"] == 1

    def test_the_fourth_level_is_refused(self) -> None:
        play = Play(graph({"t0": []}))
        play.deliver = {
            f"t{n}": {"result": n, "subtasks": [{"id": f"t{n + 1}", "role": "stub"}]} for n in range(5)
        }  # fmt: skip
        play.to_end()
        assert play.runs == ["t0", "t1", "t2", "t3"]
        assert [d.detail["reason"] for d in play.decisions("refuse_subtasks")] == ["too_deep"]

    def test_a_verifier_proposes_nothing(self) -> None:
        play = Play(graph({"a": []}, verify="checker"))
        proposal = [{"id": "x", "role": "stub"}]
        play.deliver = {"a.verify": {"verdict": "confirmed", "verifies": "a", "subtasks": proposal}}
        play.to_end()
        assert len(play.decisions("refuse_subtasks")) == 1
        assert "x" not in play.runs
