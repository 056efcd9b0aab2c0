"""The three tiers: delegation goes down only; anything else is refused and leaves a violation."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.flows import tiers
from coordinator.planfile import PlanTask
from protocol.errors import PlanRefused
from tests.memory import Play

ROLES: dict[str, dict[str, Any]] = {
    "boss": {"tier": "main"}, "organizer": {"tier": "organize"}, "stub": {"tier": "sub"}, "plain": {},
    "defaulted": {"tier": "sub", "tiered": False},
    "planner": {"tier": "organize"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("proposer", "role", "allowed"),
    [
        ("boss", "organizer", True),
        ("boss", "stub", True),
        ("boss", "plain", True),
        ("boss", "boss", False),
        ("organizer", "stub", True),
        ("organizer", "plain", True),
        ("organizer", "organizer", False),
        ("organizer", "planner", False),
        ("organizer", "boss", False),
        ("stub", "stub", False),
        ("stub", "organizer", False),
        ("stub", "boss", False),
        ("plain", "stub", True),
        ("plain", "plain", True),
        ("plain", "organizer", False),
        ("defaulted", "stub", True),
        ("defaulted", "boss", False),
        ("unpublished", "stub", True),
        ("unpublished", "organizer", False),
    ],
)
def test_the_table(proposer: str, role: str, allowed: bool) -> None:
    given = [PlanTask("fine", "stub")] * (proposer == "boss") + [PlanTask("t", role)]
    if allowed:
        tiers.check(ROLES, proposer, given)
        return
    with pytest.raises(PlanRefused) as refused:
        tiers.check(ROLES, proposer, given)
    assert (refused.value.reason, refused.value.tasks) == ("upward_delegation", ("t",))


def session(role: str, *subtasks: dict[str, Any]) -> Play:
    play = Play({"plan": [{"id": "a", "role": role}, {"id": "b", "role": "stub", "depends_on": ["a"]}]})
    play.view.roles = ROLES
    play.deliver = {"a": {"result": "分工", "subtasks": list(subtasks)}}
    return play


@pytest.mark.parametrize(
    ("proposer", "role"), [("stub", "stub"), ("stub", "organizer"), ("organizer", "organizer"), ("organizer", "boss")]
)
def test_a_delegation_that_does_not_go_down_is_refused_and_leaves_a_violation(proposer: str, role: str) -> None:
    proposal = {"id": "a1", "role": role, "prompt": "替我做"}
    play = session(proposer, proposal)
    assert play.to_end().detail["status"] == "completed"
    assert play.runs == ["a", "b"], "the delivery stands, the work is not done"
    [violation] = play.records("protocol_violation")
    assert violation.id == "PV_upward_delegation_a"
    assert violation.detail["reason"] == "upward_delegation"
    assert violation.detail["raw"] == [proposal]
    assert violation.trace.parent_id == "a"
    [decision] = play.decisions("refuse_subtasks")
    assert (decision.detail["task"], decision.detail["reason"]) == ("a", "upward_delegation")


def test_one_task_too_high_refuses_the_whole_proposal() -> None:
    play = session("organizer", {"id": "a1", "role": "stub"}, {"id": "a2", "role": "boss"})
    play.to_end()
    assert play.runs == ["a", "b"]
    assert play.decisions("refuse_subtasks")[0].detail["tasks"] == ["a2"]


def test_a_large_proposal_is_cut_on_record() -> None:
    proposal = {"id": "a1", "role": "boss", "prompt": "很长" * 20_000}
    play = session("organizer", proposal)
    play.to_end()
    raw = play.records("protocol_violation")[0].detail["raw"]
    assert raw["bytes"] > 120_000
    assert len(raw["cut"].encode()) <= 32_768


def test_a_planners_plan_goes_down_too() -> None:
    """Twice a plan that names an organizer: both refused with a violation, the session fails."""
    bad = {"tasks": [{"id": "x", "role": "organizer", "prompt": "再分"}]}
    play = Play({"goal": "看"})
    play.view.roles = ROLES
    play.deliver = {"plan.1": {"result": bad}, "plan.2": {"result": bad}}
    assert play.to_end().detail["status"] == "failed"
    assert [v.id for v in play.records("protocol_violation")] == [
        "PV_upward_delegation_plan.1", "PV_upward_delegation_plan.2",
    ]  # fmt: skip
    assert "sideways or up" in play.assigned("plan.2").detail["prompt"]


def test_a_planner_is_told_only_of_roles_below_it_and_plans_whatever_its_file_says() -> None:
    play = Play({"goal": "看"})
    play.view.roles = {**ROLES, "planner": {}}
    play.deliver = {"plan.1": {"result": {"tasks": [{"id": "x", "role": "stub", "prompt": "做"}]}}}
    assert play.to_end().detail["status"] == "completed"
    assert [r["id"] for r in play.assigned("plan.1").detail["input"]["roles"]] == ["defaulted", "plain", "stub"]


def test_a_persons_plan_may_name_any_role() -> None:
    play = Play({"plan": [{"id": "a", "role": "boss"}]})
    play.view.roles = ROLES
    assert play.to_end().detail["status"] == "completed"
