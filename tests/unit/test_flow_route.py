"""The flow `route`: features in, a choice with its reasons on record, then one task or a planner's plan."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator import routing
from coordinator.routing import Features
from coordinator.session import Order, check
from protocol.errors import PlanRefused, Refused
from protocol.record import Json
from tests.memory import SPACE, Play

ALL = ["router", "planner", "worker", "stub"]
PLAN = {"tasks": [{"id": "a", "role": "stub", "prompt": "甲"}, {"id": "b", "role": "stub", "depends_on": ["a"]}]}
SIMPLE: dict[str, Json] = {"steps": 1, "why": "一问一答"}
COMPLEX: dict[str, Json] = {"steps": 4, "subtasks": 3, "dependencies": True}


def routed(*features: Json, roles: list[str] | None = None, **root: Any) -> Play:
    """A session that says only what is wanted; the router delivers ``features`` one after another."""
    play = Play({"flow": "route", "goal": "写一份报告", **root}, roles=ALL if roles is None else roles)
    play.deliver = {f"route.{n}": {"result": given} for n, given in enumerate(features, 1)}
    play.deliver["plan.1"] = {"result": PLAN}
    return play


@pytest.mark.parametrize(
    ("features", "outcome", "runs"),
    [
        (SIMPLE, "simple", ["solo"]),
        ({"steps": 3, "files": 2}, "simple", ["solo"]),
        ({"edits_existing": True}, "simple", ["solo"]),
        (COMPLEX, "complex", ["plan.1", "a", "b"]),
        ({"steps": 2, "sources": 3}, "complex", ["plan.1", "a", "b"]),
        ({"parallel_branches": 2}, "complex", ["plan.1", "a", "b"]),
        ({"tools": 3}, "complex", ["plan.1", "a", "b"]),
        ({"files": 40}, "complex", ["plan.1", "a", "b"]),
        ({"lasting_environment": True}, "complex", ["plan.1", "a", "b"]),
    ],
)
def test_features_to_what_runs(features: dict[str, Json], outcome: str, runs: list[str]) -> None:
    for play, before in ((routed(features), ["route.1"]), (routed(features=features), [])):
        assert play.to_end().detail["status"] == "completed"
        assert play.runs == [*before, *runs]
        [choice] = play.decisions("route")
        assert choice.detail["outcome"] == outcome
        assert choice.detail["reasons"] == list(routing.route(Features.read(features)).reasons)
        assert choice.detail["features"] == features
        assert choice.id == f"DEC_route_{SPACE}"


def test_the_router_is_told_the_goal_and_the_shape() -> None:
    play = routed(SIMPLE, models={"router": "small"}, guards={"tokens": 9_000})
    play.step()
    detail = play.assigned("route.1").detail
    assert "写一份报告" in detail["prompt"]
    assert detail["output_schema"] == routing.SCHEMA
    assert (detail["purpose"], detail["model"], detail["budget"]["tokens"]) == ("route", "small", 9_000)


def test_the_single_task_has_the_goal_the_input_and_the_verifier_of_the_run() -> None:
    play = routed(SIMPLE, roles=[*ALL, "checker"], input={"页": 3}, verify="checker")
    play.to_end()
    detail = play.assigned("solo").detail
    assert (detail["role"], detail["prompt"], detail["input"]) == ("worker", "写一份报告", {"页": 3})
    assert play.runs == ["route.1", "solo", "solo.verify"]


def test_features_that_are_none_are_asked_for_once_more_with_the_reason() -> None:
    play = routed({"steps": "三步"}, SIMPLE)
    assert play.to_end().detail["status"] == "completed"
    assert play.runs == ["route.1", "route.2", "solo"]
    assert "'steps'" in play.assigned("route.2").detail["prompt"]
    assert [d.detail["task"] for d in play.decisions("refuse_features")] == ["route.1"]


@pytest.mark.parametrize("given", ["简单", None, {"dependencies": "no"}])
def test_a_router_that_never_describes_it_is_on_record_and_a_planner_decides(given: Json) -> None:
    play = routed(given, given)
    assert play.to_end().detail["status"] == "completed"
    [choice] = play.decisions("route")
    assert choice.detail["outcome"] == "complex"
    assert "were refused" in choice.detail["reasons"][0]
    assert play.runs == ["route.1", "route.2", "plan.1", "a", "b"]


def test_a_blocked_router_is_settled_and_the_session_goes_on() -> None:
    play = routed()
    play.fail = {"route.1": -1}
    assert play.to_end().detail["status"] == "completed"
    assert play.states()["route.1"] == "cancelled", "nothing that waits for a person stays behind"
    assert "'route.1' is blocked" in play.decisions("route")[0].detail["why"]


@pytest.mark.parametrize(
    ("roles", "features", "outcome", "reason"),
    [
        (["planner", "stub"], None, "complex", "nobody describes goals here"),
        (["worker"], None, "simple", "nobody plans here"),
        (["planner", "stub"], SIMPLE, "complex", "nobody does single tasks here"),
        (["worker"], COMPLEX, "simple", "nobody plans here"),
    ],
)
def test_a_fleet_without_the_role_takes_the_other_way_and_says_so(
    roles: list[str], features: Json, outcome: str, reason: str
) -> None:
    play = routed(roles=roles, **({"features": features} if features else {}))
    assert play.to_end().detail["status"] == "completed"
    choice = play.decisions("route")[0].detail
    assert choice["outcome"] == outcome
    assert reason in choice["why"]


def test_a_fleet_with_neither_fails_at_once_and_says_what_to_start() -> None:
    play = routed(SIMPLE, roles=["router", "stub"])
    assert "'worker'" in play.to_end().detail["why"]


def test_a_cancelled_session_and_a_tripped_guard_end_the_choosing() -> None:
    play = routed(SIMPLE)
    play.step()
    play.person("cancel", SPACE)
    assert play.to_end().detail["status"] == "cancelled"
    play = routed({"steps": "?"}, guards={"tokens": 1})
    play.deliver["route.1"] = {"result": {"steps": "?"}, "usage": {"total_tokens": 5}}
    assert play.to_end().detail["status"] == "failed"
    assert play.runs == ["route.1"]


def test_an_order_is_checked_before_its_session_exists() -> None:
    assert check(Order("看", flow="route", extra={"features": SIMPLE}), ["worker"]) is None
    with pytest.raises(Refused) as refused:
        check(Order("看", flow="route", extra={"features": {"steps": "一"}}), None)
    assert refused.value.path == "steps"
    with pytest.raises(PlanRefused) as unknown:
        check(Order("看", flow="route"), ["router"])
    assert unknown.value.reason == "unknown_role"
