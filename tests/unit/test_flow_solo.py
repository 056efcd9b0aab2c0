"""The flow `solo`, and a session without a plan: one role, or a planner whose plan is checked."""

from __future__ import annotations

from typing import Any

from tests.memory import Play

GOAL = "写一份摘要"
ROLES = ["planner", "stub", "checker"]
GOOD = {"tasks": [{"id": "a", "role": "stub", "prompt": "a"}, {"id": "b", "role": "stub", "depends_on": ["a"]}]}
BAD = {"tasks": [{"id": "a", "role": "stub", "depends_on": ["gone"]}]}


def planner(*results: Any, roles: list[str] | None = None) -> Play:
    """A session without a plan, whose planner delivers ``results`` one after another."""
    play = Play({"goal": GOAL, "models": {"planner": "big"}}, roles=roles or ROLES)
    play.deliver = {f"plan.{n}": {"result": result} for n, result in enumerate(results, 1)}
    return play


class TestSolo:
    def test_one_role_one_delivery(self) -> None:
        play = Play({"flow": "solo", "goal": GOAL, "role": "stub", "input": {"n": 1}})
        assert play.to_end().detail["status"] == "completed"
        assert play.runs == ["solo"]
        detail = play.assigned("solo").detail
        assert (detail["role"], detail["prompt"], detail["input"]) == ("stub", GOAL, {"n": 1})
        assert detail["by"]["flow"] == "solo"

    def test_optionally_verified(self) -> None:
        play = Play({"flow": "solo", "goal": GOAL, "role": "stub", "verify": "checker"})
        play.to_end()
        assert play.runs == ["solo", "solo.verify"]

    def test_without_a_role_it_fails_and_says_so(self) -> None:
        finish = Play({"flow": "solo", "goal": GOAL}).to_end()
        assert finish.detail["status"] == "failed"
        assert "role" in finish.detail["why"]

    def test_a_blocked_task_fails_the_session(self) -> None:
        play = Play({"flow": "solo", "goal": GOAL, "role": "stub"})
        play.fail = {"solo": -1}
        assert play.to_end().detail["status"] == "failed"


class TestPlanner:
    def test_its_plan_is_adopted_on_record_and_run(self) -> None:
        play = planner(GOOD)
        assert play.to_end().detail["status"] == "completed"
        assert play.runs == ["plan.1", "a", "b"]
        assert [d.detail["task"] for d in play.decisions("adopt_plan")] == ["plan.1"]

    def test_it_is_told_the_goal_the_roles_and_the_shape(self) -> None:
        play = planner(GOOD)
        play.step()
        detail = play.assigned("plan.1").detail
        assert GOAL in detail["prompt"]
        assert [r["id"] for r in detail["input"]["roles"]] == ["checker", "stub"]
        assert detail["purpose"] == "plan"
        assert detail["model"] == "big"
        assert detail["output_schema"]["required"] == ["tasks"]

    def test_a_plan_as_text_counts_too(self) -> None:
        play = planner("tasks: [{id: 甲, role: stub}]", "tasks: [{id: a, role: stub, prompt: 看}]")
        play.to_end()
        assert play.runs == ["plan.1", "plan.2", "a"]

    def test_a_refused_plan_is_made_once_more_with_the_reasons(self) -> None:
        play = planner(BAD, GOOD)
        assert play.to_end().detail["status"] == "completed"
        assert play.runs == ["plan.1", "plan.2", "a", "b"]
        [refusal] = play.decisions("refuse_plan")
        assert "'gone'" in refusal.detail["why"]
        assert "'gone'" in play.assigned("plan.2").detail["prompt"]

    def test_two_refused_plans_fail_the_session_with_both_reasons(self) -> None:
        finish = planner(BAD, {"tasks": [{"id": "a", "role": "nobody"}]}).to_end()
        assert finish.detail["status"] == "failed"
        assert "'gone'" in finish.detail["why"]
        assert "'nobody'" in finish.detail["why"]

    def test_an_empty_plan_of_a_planner_is_no_plan(self) -> None:
        assert planner({"tasks": []}, []).to_end().detail["status"] == "failed"

    def test_a_blocked_planner_fails_the_session_and_a_resumed_one_plans_again(self) -> None:
        play = planner(GOOD)
        play.fail = {"plan.1": -1}
        finish = play.to_end()
        assert finish.detail["status"] == "failed"
        assert finish.detail["missing"][0]["task"] == "plan.1"
        play.fail = {}
        play.person("resume")
        assert play.to_end().detail["status"] == "completed"
        assert play.runs == ["plan.1", "plan.1", "a", "b"]

    def test_nobody_who_plans_is_said_at_once(self) -> None:
        play = planner(roles=["stub"])
        assert "'planner'" in play.to_end().detail["why"]
        assert play.runs == []

    def test_a_plan_that_came_as_an_artifact_is_wanted_by_its_digest(self) -> None:
        play = planner()
        play.deliver = {"plan.1": {"artifact": {"sha256": "ab" * 32, "size": 3}}}
        play.step()
        play.work()
        assert play.view.wants == {"ab" * 32: "plan.1"}
        play.view.supply("ab" * 32, b'{"tasks": [{"id": "a", "role": "stub"}]}')
        play.to_end()
        assert play.runs == ["plan.1", "a"]

    def test_a_tripped_guard_ends_the_planning(self) -> None:
        play = Play({"goal": GOAL, "guards": {"tokens": 1}}, roles=ROLES)
        play.deliver = {"plan.1": {"result": BAD, "usage": {"total_tokens": 9}}}
        assert play.to_end().detail["status"] == "failed"
        assert play.runs == ["plan.1"]
