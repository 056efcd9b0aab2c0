"""A session without a plan: a planner role makes one, code checks it.

Guarantees: at most two planner tasks, ``plan.1`` and, with the reasons of the refusal, ``plan.2``; a plan counts only
when a decision on record adopts it. Pure.
"""

from __future__ import annotations

from typing import Final

from coordinator import planfile
from coordinator.commands import Assign, Command, Decide, Finish, Pend, Violate
from coordinator.flows import tiers
from coordinator.flows.dispatch import GOAL_MAX, next_agent, terms
from coordinator.flows.tiers import UPWARD
from coordinator.view import PLANNER_PREFIX, TaskView, View
from protocol.errors import PlanRefused
from protocol.record import Json

TRIES: Final = 2
ROLE: Final = "planner"
NOT_FOR_PLANS: Final = ("planner", "router")


def step(view: View) -> list[Command]:
    """What to do while there is no plan."""
    role = _role(view)
    if view.roles is not None and role not in view.roles:
        known = ", ".join(sorted(view.roles)) or "none yet: is a worker running?"
        return [_fail(view, f"there is no plan, and nobody ever published the role {role!r} (known roles: {known})")]
    refused: list[str] = []
    upward: PlanRefused | None = None
    for number in range(1, TRIES + 1):
        name = f"{PLANNER_PREFIX}{number}"
        task = view.tasks.get(name)
        if task is None:
            return _begin(view, name, role, refused, upward)
        if task.state == "pending":
            return [_assign(view, name, task, role, refused)]
        if task.state in ("blocked", "cancelled"):
            return [_fail(view, f"the planner's task {name!r} is {task.state}: {task.reason}", name)]
        if task.state != "completed":
            return []
        try:
            plan = planfile.of_delivery(task.result)
            if not plan.tasks:
                raise PlanRefused("the plan has no tasks", reason="bad_task", mend="plan at least one task")
            if view.roles is not None:
                plan.check_roles(view.roles)
                tiers.check(view.roles, task.role or role, plan.tasks, least="organize")
        except PlanRefused as error:
            refused.append(str(error))
            upward = error if error.reason == UPWARD else None
            continue
        return [Decide("adopt_plan", f"{len(plan.tasks)} tasks, checked", name, task=name)]
    why = f"{TRIES} plans were refused: {' | '.join(refused)}"
    return [*_violation(view, f"{PLANNER_PREFIX}{TRIES}", upward), _fail(view, why)]


def _begin(view: View, name: str, role: str, refused: list[str], upward: PlanRefused | None) -> list[Command]:
    out: list[Command] = []
    if refused:
        before = f"{PLANNER_PREFIX}{int(name.removeprefix(PLANNER_PREFIX)) - 1}"
        out += _violation(view, before, upward)
        out.append(Decide("refuse_plan", refused[-1], before, task=before))
    detail: dict[str, Json] = {"role": role, "purpose": "plan", "prefix": name, "depends_on": []}
    out.append(Pend(name, detail, view.session, f"{name}: a plan is wanted"))
    out.append(_assign(view, name, None, role, refused))
    return out


def _violation(view: View, name: str, upward: PlanRefused | None) -> list[Violate]:
    """A plan that gives work sideways or up is more than a refusal."""
    return [] if upward is None else [Violate(UPWARD, str(upward), name, name, view.tasks[name].result)]


def _assign(view: View, name: str, task: TaskView | None, role: str, refused: list[str]) -> Assign:
    role = (task.role if task else "") or role
    attempt = max(task.attempt, task.assigned + 1) if task else 1
    agent = (task.agent if task else "") or next_agent(view, role, {})
    goal = view.goal[:GOAL_MAX]
    prompt = f"Make a plan for this goal: {view.goal}"
    if refused:
        prompt += f"\nYour last plan was refused: {refused[-1]}\nDeliver a plan that mends this."
    detail: dict[str, Json] = {
        "purpose": "plan",
        "prefix": name,
        "goal": goal,
        "prompt": prompt,
        "input": {"goal": view.goal, "roles": _candidates(view), "refused": list(refused)},
        "output_schema": dict(planfile.SCHEMA),
    }
    detail |= terms(view, role)
    return Assign(name, attempt, role, agent, detail, view.session, f"{name} goes to {agent} (attempt {attempt})")


def _candidates(view: View) -> list[dict[str, Json]]:
    """The roles that a plan may name, as the fleet published them: those below the planner."""
    keys = ("name", "description", "kind", "tier")
    roles = view.roles or {}
    return [
        {"id": role, **{k: front[k] for k in keys if front.get(k)}}
        for role, front in sorted(roles.items())
        if role not in NOT_FOR_PLANS and tiers.tier_of(roles, role) == tiers.TIERS[0]
    ][:200]


def _role(view: View) -> str:
    named = view.root.get("planner")
    return named if isinstance(named, str) and named else ROLE


def _fail(view: View, why: str, task: str = "") -> Finish:
    missing = ((task, why, ""),) if task else ()
    return Finish("failed", why, view.finishes + 1, missing)
