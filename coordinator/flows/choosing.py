"""A session whose way is not chosen yet: its features, and what code makes of them.

Guarantees: the features are typed, from the root record (``features``) or from a router role's delivery; at most two
router tasks, ``route.1`` and, with the reason of the refusal, ``route.2``; whatever becomes of them, a decision
``route`` with its reasons is on record before anything else is dispatched. Pure.
"""

from __future__ import annotations

from typing import Final

from coordinator import routing
from coordinator.commands import Assign, Command, Decide, Finish, Pend
from coordinator.flows.dispatch import GOAL_MAX, next_agent, terms
from coordinator.flows.planning import ROLE as PLANNER
from coordinator.routing import Features, Routed
from coordinator.view import ROUTER_PREFIX, TaskView, View
from protocol.errors import Refused
from protocol.record import Json

TRIES: Final = 2
ROUTER: Final = "router"
WORKER: Final = "worker"


def step(view: View) -> list[Command]:
    """What to do while nothing is chosen."""
    given = view.root.get("features")
    if given is not None:
        try:
            return _decide(view, routing.route(Features.read(given)), given)
        except Refused as refused:
            return _unknown(view, f"the features are unusable: {refused}")
    if not _known(view, ROUTER):
        return _unknown(view, f"nobody describes goals here (no role {ROUTER!r})")
    refused_for = ""
    for number in range(1, TRIES + 1):
        name = f"{ROUTER_PREFIX}{number}"
        task = view.tasks.get(name)
        if task is None:
            return _begin(view, name, refused_for)
        if task.state == "pending":
            return [_assign(view, name, task, refused_for)]
        if task.state in ("blocked", "cancelled"):
            why = f"the router's task {name!r} is {task.state}: {task.reason}"
            settle = [Decide("cancel", "the session goes on without it", name, task=name)]
            return [*(settle if task.state == "blocked" else []), *_unknown(view, why)]
        if task.state != "completed":
            return []
        try:
            return _decide(view, routing.route(Features.read(task.result)), task.result, name)
        except Refused as refused:
            refused_for = str(refused)
    return _unknown(view, f"{TRIES} descriptions were refused: {refused_for}")


def _decide(view: View, routed: Routed, features: Json, task: str = "") -> list[Command]:
    """The choice, as far as the fleet has the role for it."""
    if routed.outcome == "simple" and not _known(view, WORKER) and _known(view, PLANNER):
        reasons = (*routed.reasons, f"but nobody does single tasks here (no role {WORKER!r})")
        routed = Routed("complex", reasons)
    elif routed.outcome == "complex" and not _known(view, PLANNER) and _known(view, WORKER):
        reasons = (*routed.reasons, f"but nobody plans here (no role {PLANNER!r})")
        routed = Routed("simple", reasons)
    detail: dict[str, Json] = {**routed.to_json(), "features": features}
    if routed.outcome == "simple":
        detail["role"] = WORKER
    if not _known(view, WORKER if routed.outcome == "simple" else PLANNER):
        why = f"neither the role {WORKER!r} nor {PLANNER!r} was ever published: start one, or name a role with --role"
        return [Finish("failed", why, view.finishes + 1)]
    why = f"{routed.outcome}: {', '.join(routed.reasons)}"
    return [Decide("route", why, view.session, task=task, detail=detail)]


def _unknown(view: View, why: str) -> list[Command]:
    """Nothing is known of the goal: whoever plans can also plan one task."""
    return _decide(view, Routed("complex", (why,)), None)


def _known(view: View, role: str) -> bool:
    return view.roles is None or role in view.roles


def _begin(view: View, name: str, refused: str) -> list[Command]:
    out: list[Command] = []
    if refused:
        before = f"{ROUTER_PREFIX}{int(name.removeprefix(ROUTER_PREFIX)) - 1}"
        out.append(Decide("refuse_features", refused, before, task=before))
    detail: dict[str, Json] = {"role": ROUTER, "purpose": "route", "prefix": name, "depends_on": []}
    out.append(Pend(name, detail, view.session, f"{name}: the goal is to be described"))
    out.append(_assign(view, name, None, refused))
    return out


def _assign(view: View, name: str, task: TaskView | None, refused: str) -> Assign:
    role = (task.role if task else "") or ROUTER
    attempt = max(task.attempt, task.assigned + 1) if task else 1
    agent = (task.agent if task else "") or next_agent(view, role, {})
    prompt = f"Describe this goal by its features: {view.goal}"
    if refused:
        prompt += f"\nYour last description was refused: {refused}\nDeliver one that mends this."
    detail: dict[str, Json] = {
        "purpose": "route",
        "prefix": name,
        "goal": view.goal[:GOAL_MAX],
        "prompt": prompt,
        "output_schema": dict(routing.SCHEMA),
        **terms(view, role),
    }
    return Assign(name, attempt, role, agent, detail, view.session, f"{name} goes to {agent} (attempt {attempt})")
