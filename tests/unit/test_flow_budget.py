"""A session's budget in its flow: told to every dispatch, and a clean finish where a model call was refused."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.guards import Guards
from protocol.record import Json
from tests.memory import Play, graph

PLAN = {"tasks": [{"id": "a", "role": "stub", "prompt": "甲"}, {"id": "b", "role": "stub", "depends_on": ["a"]}]}


def usage(attempt: int, own: int, task: int, **more: Json) -> dict[str, Json]:
    return {"usage": {"attempt": attempt, "total_tokens": own, "task": {"total_tokens": task, **more}}}


def refuse(play: Play, name: str, budget: str = "tokens") -> None:
    """The worker of an assigned task finds no room in the budget."""
    log, task = play.log, play.view.tasks[name]
    start, attempt = "stub@host:1:aa", task.attempt
    error = {"kind": "budget", "message": "用完了", "retryable": False}
    play.ok(log.record("task_processing", name, {"attempt": attempt, "worker": start}), start)
    guard = {"budget": budget, "used": 90, "limit": 100}
    play.ok(log.record("task_failed", name, {"attempt": attempt, "error": error, "guard": guard}), start)
    blocked = {"attempt": attempt, "requires_human_intervention": True, "reason": "budget"}
    play.ok(log.record("task_blocked", name, blocked), start)
    play.fold()


@pytest.mark.parametrize("budget", ["tokens", "money"])
def test_a_refused_call_trips_the_guard_and_the_session_ends_with_what_there_is(budget: str) -> None:
    play = Play(graph({"a": [], "b": ["a"], "c": ["b"], "d": []}) | {"guards": {budget: 100}})
    play.hold = {"b", "d"}
    play.settle()
    refuse(play, "b", budget)
    play.step()
    play.hold = set()  # what is in hand still ends
    finish = play.to_end()
    assert [d.detail["guard"] for d in play.decisions("guard")] == [budget]
    assert finish.detail["status"] == "partial"
    assert {row["task"] for row in finish.detail["missing"]} == {"b", "c"}
    assert play.states()["d"] == "completed"


def test_a_refused_call_of_the_last_task_is_a_guard_too() -> None:
    play = Play(graph({"a": []}) | {"guards": {"tokens": 100}})
    play.hold = {"a"}
    play.settle()
    refuse(play, "a")
    assert play.to_end().detail["status"] == "failed"
    assert [d.detail["guard"] for d in play.decisions("guard")] == ["tokens"]


def test_every_dispatch_names_the_budget_and_a_resumed_session_counts_anew() -> None:
    play = Play(graph({"a": []}) | {"guards": {"tokens": 100, "money": 0.5, "seconds": 60}})
    play.hold = {"a"}
    play.settle()
    assert play.assigned("a").detail["budget"] == {"tokens": 100, "money": 0.5, "epoch": 0}
    refuse(play, "a")
    play.to_end()
    play.person("resume", guards={"tokens": 300})
    play.hold = set()
    assert play.to_end().detail["status"] == "completed"
    assert play.assigned("a").detail["budget"] == {"tokens": 300, "money": 0.5, "epoch": 1}


def test_without_a_budget_no_dispatch_names_one() -> None:
    play = Play(graph({"a": []}))
    play.to_end()
    assert "budget" not in play.assigned("a").detail


def test_use_is_summed_by_task_so_that_a_dead_attempt_is_in_it_and_none_is_twice() -> None:
    play = Play(graph({"a": [], "b": ["a"], "c": []}) | {"guards": {"tokens": 1_000, "money": 9}})
    play.deliver = {
        "a": {"result": 1, **usage(3, 30, 100, cost=0.25)},
        "b": {"result": 1, **usage(1, 50, 50)},
        "c": {"result": 1, "usage": {"total_tokens": 7, "cost": 0.5}},
    }
    play.to_end()
    assert (play.view.tokens, play.view.micros) == (157, 750_000)
    play.view._count_usage(play.view.tasks["a"], {"task": {"total_tokens": 120}})
    assert play.view.tokens == 177


def test_the_sum_trips_the_guard_between_two_dispatches() -> None:
    play = Play(graph({"a": [], "b": ["a"]}) | {"guards": {"money": 0.2}})
    play.deliver = {"a": {"result": 1, **usage(1, 30, 30, cost=0.25)}}
    play.to_end()
    assert play.runs == ["a"]
    [guard] = play.decisions("guard")
    assert (guard.detail["guard"], "0.25 of the money" in guard.detail["why"]) == ("money", True)


@pytest.mark.parametrize(
    ("session", "plan", "then"),
    [
        ({"tokens": 100}, {"tokens": 5_000}, 100),
        ({"tokens": 100}, {"max_tokens": 50}, 50),
        ({}, {"tokens": 50}, 50),
        ({"tokens": 100}, {}, 100),
    ],
)
def test_a_planners_plan_may_tighten_the_budget_never_loosen_it(
    session: dict[str, Any], plan: dict[str, Any], then: int
) -> None:
    play = Play({"goal": "看", "guards": session}, roles=["planner", "stub"])
    play.deliver = {"plan.1": {"result": PLAN | {"guards": plan}}}
    play.to_end()
    assert play.view.guards.tokens == then


def test_the_runs_own_budget_counts_before_the_plan_files() -> None:
    play = Play({"plan": PLAN | {"guards": {"tokens": 500, "money": 2}}, "guards": {"tokens": 100}})
    play.step()
    assert (play.view.guards.tokens, play.view.guards.money) == (100, 2)


def test_a_limit_that_is_no_positive_number_is_none() -> None:
    assert Guards.read({"money": 0, "tokens": "100", "max_money": True}) == Guards()
    assert Guards.read({"max_money": 3}).budget(2) == {"money": 3.0, "epoch": 2}
