"""From a task of the graph to its commands: made known, and dispatched with what its role needs.

Guarantees: the same view gives the same command; a dispatch stays below the limit of a record's detail, because large
results travel by reference. Pure.

What a dispatch carries in ``detail``: role, attempt, agent, session's ``goal``, ``prompt``, ``input``, ``prefix``,
``plan_index`` and, where they apply, ``budget`` (the session's: tokens, money, epoch), title, task_type, output_schema,
merge_key, model, ``verifies``, ``results``: ``{task: {"result": …} | {"artifact": {…}} | {"$ref": {"task": …, "entry":
…}}}``. A worker resolves a ``$ref`` by reading that entry of the session's log (``detail.result`` there, or
``detail.artifact``; of a verdict the fields verdict, verifies, reasons, result) and then puts results in place of every
``{"$result": task, "path": "a.b.0"}`` in ``input`` (``path`` is optional). The results also follow the prompt, as
fenced data.
"""

from __future__ import annotations

from typing import Final

from coordinator.commands import Assign, Pend
from coordinator.planfile import PlanTask
from coordinator.view import View
from protocol.record import Json, canonical

GOAL_MAX: Final = 2_000
RESULTS_MAX: Final = 48 * 1024
"""Bytes of results that one dispatch carries inline; the others go by reference."""
AGENT_MAX: Final = 56


def pend(view: View, name: str) -> Pend:
    """Make a task of the graph known: what people and the merge need, not what its role needs."""
    spec = view.graph.specs[name]
    detail = _common(view, spec)
    detail |= {"role": spec.role, "depends_on": list(spec.depends_on)}
    for key in ("priority", "order_index", "depth"):
        if value := getattr(spec, key):
            detail[key] = value
    if spec.verify:
        detail["verify"] = spec.verify
    if spec.alternative_of:
        detail["alternative_of"] = spec.alternative_of
    waits = view.graph.unmet[name]
    what = f"{spec.title or name} waits for {waits} tasks" if waits else f"{spec.title or name} is ready"
    return Pend(name, detail, spec.parent or view.session, what)


def assign(view: View, name: str, agents: dict[str, int]) -> Assign:
    """Dispatch a ready task: its first attempt, or the next one. ``agents``: numbers given in this very step."""
    spec, task = view.graph.specs[name], view.tasks.get(name)
    role = (task.role if task else "") or spec.role
    attempt = max(task.attempt, task.assigned + 1) if task else 1
    agent = task.agent if task else ""
    if not agent:
        agent = next_agent(view, role, agents)
    detail = _common(view, spec)
    detail["prompt"] = spec.prompt
    if view.goal:
        detail["goal"] = view.goal[:GOAL_MAX]
    if spec.input is not None:
        detail["input"] = spec.input
    if spec.output_schema is not None:
        detail["output_schema"] = spec.output_schema
    detail |= terms(view, role)
    if spec.verifies:
        _add_verified(view, spec, detail)
    if spec.depends_on:
        detail["results"] = _results(view, spec)
    what = f"{spec.title or name} goes to {agent} (attempt {attempt})"
    return Assign(name, attempt, role, agent, detail, spec.parent or view.session, what)


def next_agent(view: View, role: str, agents: dict[str, int]) -> str:
    """A new agent's name: ``<role>_<k>``, counted per role."""
    number = agents[role] = max(agents.get(role, 0), view.agents.get(role, 0)) + 1
    return f"{role[:AGENT_MAX]}_{number}"


def terms(view: View, role: str) -> dict[str, Json]:
    """What every dispatch says of how its role may work: the run's model for it, the session's budget."""
    out: dict[str, Json] = {}
    if model := model_of(view, role):
        out["model"] = model
    if budget := view.guards.budget(view.resumes):
        out["budget"] = budget
    return out


def model_of(view: View, role: str) -> str:
    """The model key that the run names for the role, or ''."""
    models = view.root.get("models")
    found = models.get(role) if isinstance(models, dict) else None
    return found if isinstance(found, str) else ""


def _common(view: View, spec: PlanTask) -> dict[str, Json]:
    detail: dict[str, Json] = {"prefix": view.graph.prefix(spec.id), "plan_index": view.graph.index(spec.id)}
    for key in ("title", "task_type", "verifies"):
        if value := getattr(spec, key):
            detail[key] = value
    if spec.merge_key:
        detail["merge_key"] = list(spec.merge_key)
    return detail


def _add_verified(view: View, spec: PlanTask, detail: dict[str, Json]) -> None:
    """A verifier gets the task that it verifies, as it was set, beside the delivery in ``results``."""
    verified = view.graph.specs[spec.verifies]
    detail["prompt"] = (
        f"Verify the delivery of task {verified.id!r} by your own method; trust no claim in it."
        f" The task was: {verified.prompt}"
    )
    detail["input"] = {
        "verifies": verified.id,
        "role": verified.role,
        "prompt": verified.prompt,
        "input": _without_references(verified.input),
        "delivery": {"$result": verified.id},
    }


def _without_references(value: Json) -> Json:
    """The input as data: a reference in it names results that the verifier does not get."""
    if isinstance(value, dict):
        if isinstance(value.get("$result"), str):
            return {"result_of": value["$result"]}
        return {k: _without_references(v) for k, v in value.items()}
    return [_without_references(v) for v in value] if isinstance(value, list) else value


def _results(view: View, spec: PlanTask) -> dict[str, Json]:
    """The dependencies' results, inline as long as there is room."""
    out: dict[str, Json] = {}
    room = RESULTS_MAX
    for name in spec.depends_on:
        task, found = view.tasks[name], view.result(name)
        if "result" in found:
            room -= len(canonical(found["result"]))
            if room < 0:
                found = {"$ref": {"task": name, "entry": task.entry}}
        out[name] = found
    return out
