"""The flow `plan`: a task graph, from a plan file or from a planner role's delivery.

Guarantees: a task starts the moment its last dependency is met, without waves; what fails holds up only what depends on
it; the session finishes when nothing can move any more. Level-triggered: every step is decided from the view alone, so
a flow that was cut off anywhere continues where it left off. A step costs what it commands (at most 100). Pure.

::

    no plan: planner task -> its plan, checked -> adopted (or refused: once more, then failed)
    plan: every task pending -> assigned when ready -> … -> finish (completed | partial | failed)
    a guard trips: nothing new is dispatched, what is in hand ends (`seconds`: is cancelled) -> finish partial
    cancelled by a person: what is open is cancelled -> finish cancelled
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Final

from coordinator import planfile
from coordinator.commands import STEP_MAX, Command, Decide, Finish, Pend, Violate
from coordinator.flows import choosing, planning, tiers
from coordinator.flows.dispatch import assign, pend
from coordinator.flows.tiers import UPWARD
from coordinator.graph import MOVING, OVER
from coordinator.view import Taken, View
from protocol.errors import PlanRefused

VERSION = 1
CANCELLING_GUARDS: Final = ("seconds",)


def step(view: View, changed: Collection[str]) -> Sequence[Command]:
    """What to do now; empty: nothing until something changes."""
    if not view.session:
        return []
    if view.finished:
        return [_reopen(view)] if view.reopen else []
    if view.cancelled:
        open_ = _cancel(view, "the session was cancelled", pending=True)
        return open_ or [_finish(view, "cancelled", "cancelled by a person")]
    if not view.stop and (tripped := _guard(view)):
        return [tripped]
    if view.retries:
        return _retry(view)
    if not view.planned:
        return _wind_up(view) if view.stop else _unplanned(view)
    if view.plan_error:
        return [_finish(view, "failed", view.plan_error)]
    if view.stop:
        return _wind_up(view)
    if not view.dispatches and (refused := _unknown_roles(view)):
        return [refused]
    return _propose(view) or _advance(view)


def _unplanned(view: View) -> list[Command]:
    if view.root.get("flow") == "route" and not view.routed:
        return choosing.step(view)
    return planning.step(view)


def _advance(view: View) -> list[Command]:
    """Make known what is not on record, dispatch what is ready, finish when nothing moves."""
    graph = view.graph
    out: list[Command] = [pend(view, name) for name in islice(graph.to_pend, STEP_MAX)]
    ready = graph.ready
    if len(out) < STEP_MAX and out:  # all are known with this step: what waits for nothing need not wait for the next
        fresh = [graph.key(c.task) for c in out if isinstance(c, Pend) and not graph.unmet[c.task]]
        ready = sorted([*ready, *fresh])
    elif out:
        return out
    room = view.guards.dispatches - (view.dispatches - view.since[0])
    if ready and room <= 0:
        limit = view.guards.dispatches
        return [*out, _trip(view, "dispatches", f"{limit} dispatches were made, the limit is {limit}")]
    agents: dict[str, int] = {}
    out.extend(assign(view, key[3], agents) for key in islice(ready, min(room, STEP_MAX - len(out))))
    if out or graph.moving:
        return out
    return [_end(view)]


def _propose(view: View) -> list[Command]:
    """Judge the subtasks that deliveries propose. Two proposals of one step see each other's ids."""
    out: list[Command] = []
    taken = Taken(view)
    for name in islice(view.proposals, STEP_MAX // 2):  # a refusal may be two commands
        spec = view.graph.specs[name]
        try:
            if spec.verifies:
                raise PlanRefused("a verifier proposes no subtasks", reason="bad_task", tasks=(name,))
            plan = planfile.check_proposal(view.proposals[name], parent=name, depth=spec.depth + 1, taken=taken)
            if len(view.graph.specs) + len(plan.tasks) > planfile.TASKS_MAX:
                raise PlanRefused(
                    f"more than {planfile.TASKS_MAX} tasks in the session", reason="too_many", tasks=(name,)
                )
            if view.roles is not None:
                plan.check_roles(view.roles)
                tiers.check(view.roles, view.tasks[name].role or spec.role, plan.tasks)
        except PlanRefused as error:
            detail = {"reason": error.reason, "tasks": list(error.tasks)[:50]}
            if error.reason == UPWARD:
                out.append(Violate(UPWARD, str(error), name, name, view.proposals[name]))
            out.append(Decide("refuse_subtasks", str(error), name, task=name, detail=detail))
            continue
        taken.add(t.id for t in plan.tasks)
        why = f"{len(plan.tasks)} tasks proposed, checked"
        out.append(Decide("accept_subtasks", why, name, task=name, detail={"tasks": [t.id for t in plan.tasks]}))
    return out


def _guard(view: View) -> Decide | None:
    """The guard that trips while there is still something to do."""
    graph = view.graph
    if view.over:
        return _trip(view, view.over, "a model call was refused: the session's budget is used up")
    if view.planned and not (graph.moving or graph.ready or graph.to_pend or view.proposals):
        return None
    _, tokens, ms, micros = view.since
    used = view.tokens - tokens, view.micros - micros
    tripped = view.guards.tripped(tokens=used[0], micros=used[1], ms=view.last_ms - ms)
    return _trip(view, *tripped) if tripped else None


def _trip(view: View, guard: str, why: str) -> Decide:
    return Decide("guard", why, f"{guard}_{view.session}_{view.resumes}", detail={"guard": guard})


def _wind_up(view: View) -> list[Command]:
    """After a guard: nothing new; what is in hand ends, or is ended where waiting for it would break the guard."""
    if view.stop in CANCELLING_GUARDS and (out := _cancel(view, f"the guard {view.stop!r} tripped", pending=False)):
        return out
    planner = (t.state for t in view.tasks.values() if not view.planned and t.id != view.session)
    if view.graph.moving or any(state in MOVING for state in planner):
        return []
    return [_end(view, f"the guard {view.stop!r} tripped")]


def _cancel(view: View, why: str, *, pending: bool) -> list[Command]:
    """Decisions that end what is open; costs the size of the graph, which happens once a session."""
    keep = OVER if pending else OVER | {"pending", "blocked"}
    mark = f"{view.resumes}"
    open_ = (t for t in view.tasks.values() if t.id != view.session and t.state not in keep)
    return [Decide("cancel", why, f"{t.id}_{mark}", task=t.id) for t in islice(open_, STEP_MAX)]


def _retry(view: View) -> list[Command]:
    why = "the session was resumed"
    return [Decide("retry", why, f"{name}_resume_{view.resumes}", task=name) for name in islice(view.retries, STEP_MAX)]


def _reopen(view: View) -> Decide:
    """A person settled a task of a finished session: the manager, too, has to know that it goes on."""
    why = "a task was taken up again after the finish"
    return Decide("resume", why, f"{view.session}_after_{view.finishes}", detail={"retry": False})


def _unknown_roles(view: View) -> Finish | None:
    if view.roles is None or view.graph.roles <= view.roles.keys():
        return None
    try:
        planfile.Plan(tuple(view.graph.specs.values())).check_roles(view.roles)
    except PlanRefused as error:
        return _finish(view, "failed", str(error))
    return None


def _end(view: View, why: str = "") -> Finish:
    """Nothing moves any more: how it went. A session without any delivery has failed."""
    graph = view.graph
    done = graph.counts.get("completed", 0) + graph.counts.get("merged", 0)
    missing = _missing(view)
    if not missing and view.planned:
        return _finish(view, "completed", why or f"{done} tasks completed")
    counted = f"{done} tasks completed, {len(missing)} not"
    return _finish(view, "partial" if done else "failed", f"{why}: {counted}" if why else counted, tuple(missing))


def _missing(view: View) -> list[tuple[str, str, str]]:
    """(task, reason, cause) of every task that was not completed, in plan order."""
    out: list[tuple[str, str, str]] = []
    waits = dict(view.graph.not_run())
    for name in view.graph.specs:
        task = view.tasks.get(name)
        if name in waits:
            cause = waits[name]
            out.append((name, f"not run, cause {cause}" if cause else "not run", cause))
        elif task and task.state not in ("completed", "merged"):
            out.append((name, f"{task.state}: {task.reason}" if task.reason else task.state, ""))
    return out


def _finish(view: View, status: str, why: str, missing: tuple[tuple[str, str, str], ...] = ()) -> Finish:
    return Finish(status, why, view.finishes + 1, missing)
