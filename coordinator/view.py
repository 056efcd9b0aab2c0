"""The session so far, folded from its records: what a flow decides on.

Guarantees: a pure function of the log (and of artifacts, which are content); folding one record costs what it changes;
`coordinator.snapshot` gives the very same view back. Never reads a clock: time is the log's own. The server's law has
accepted every record that is folded here, so nothing is judged again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from coordinator import planfile
from coordinator.graph import Graph
from coordinator.guards import Guards
from coordinator.planfile import Plan
from protocol.errors import PlanRefused
from protocol.record import Json, Record, canonical
from protocol.tasks import DECISIONS, is_about_agent, target_state

INLINE_MAX: Final = 4_096
"""Bytes of a result that is kept in the view and handed on inline; a larger one is handed on by reference."""
PLANNER_PREFIX: Final = "plan."
ROUTER_PREFIX: Final = "route."
RETRIED: Final = ("blocked", "lost")
"""States from which a resumed session tries a task again."""


@dataclass(slots=True)
class TaskView:
    """One task as its records left it."""

    id: str
    state: str = ""
    attempt: int = 1
    assigned: int = 0
    """The highest attempt that was ever assigned; 0: none."""
    role: str = ""
    agent: str = ""
    entry: str = ""
    """The log entry of the delivery (or of the decision that accepted a result by hand)."""
    result: Json = None
    kept: bool = False
    """True where ``result`` is the delivery's result; False where it is only in the log."""
    artifact: Mapping[str, Json] | None = None
    reason: str = ""
    """Why it is blocked, failed or lost, in the record's words."""
    spent: tuple[int, int] = (0, 0)
    """(tokens, millionths of money) of its agent that are counted in the view's sums."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The flow's ``finish`` decision in force."""

    status: str
    n: int
    entry: str


@dataclass(slots=True)
class View:
    """A session. ``last`` is the entry up to which was folded, ``count`` how many records that were."""

    space: str
    last: str = "0-0"
    count: int = 0
    session: str = ""
    root: Mapping[str, Json] = field(default_factory=dict)
    """The root record's ``detail`` without the plan: goal, flow, flow_version, role, models, policy, …"""
    traceparent: str | None = None
    guards: Guards = field(default_factory=Guards)
    tasks: dict[str, TaskView] = field(default_factory=dict)
    graph: Graph = field(init=False)
    planned: bool = False
    """True from the moment on that a plan is known (it may be empty)."""
    plan_error: str = ""
    routed: str = ""
    """What code chose for a session that did not say: ``simple`` or ``complex``."""
    wants: dict[str, str] = field(default_factory=dict)
    """Artifacts whose content is needed before the next step: SHA-256 -> the task they belong to ('': the plan)."""
    proposals: dict[str, Json] = field(default_factory=dict)
    retries: dict[str, None] = field(default_factory=dict)
    """Blocked or lost tasks that a resumed session tries again."""
    agents: dict[str, int] = field(default_factory=dict)
    finished: Finished | None = None
    finishes: int = 0
    resumes: int = 0
    reopen: bool = False
    """A person settled a task after the finish: the flow has to take the session up again."""
    cancelled: bool = False
    stop: str = ""
    """The guard that tripped and is in force."""
    over: str = ""
    """The budget (``tokens``, ``money``) that refused a model call and has not been raised since."""
    dispatches: int = 0
    tokens: int = 0
    micros: int = 0
    since: tuple[int, int, int, int] = (0, 0, 0, 0)
    """(dispatches, tokens, server ms, millionths of money) at the start or the last resume: guards count from there."""
    roles: Mapping[str, Mapping[str, Json]] | None = None
    """What the fleet's roles say of themselves, handed in by the leader; None: not known, then nothing is checked."""

    def __post_init__(self) -> None:
        self.graph = Graph(self.state)

    def state(self, task: str) -> str:
        """A task's state, '' where nothing is on record."""
        found = self.tasks.get(task)
        return found.state if found else ""

    @property
    def last_ms(self) -> int:
        """The server's time at the last folded record."""
        return int(self.last.partition("-")[0])

    @property
    def goal(self) -> str:
        return _text(self.root.get("goal"))

    def fold_all(self, pairs: Iterable[tuple[str, Record]]) -> set[str]:
        """Fold records in log order; the tasks that changed."""
        changed: set[str] = set()
        for entry, record in pairs:
            task = self.fold(entry, record)
            if task:
                changed.add(task)
        return changed

    def fold(self, entry: str, record: Record) -> str:
        """Fold one record; the task that it changed, or ''."""
        self.last, self.count = entry, self.count + 1
        if record.event == "decision":
            return self._decision(entry, record)
        if not record.is_task or is_about_agent(record):
            return ""
        if not self.session and record.event == "task_started" and record.id == self.space:
            self._open(record)
        self._task(entry, record)
        return record.id

    def supply(self, sha256: str, data: bytes | None) -> None:
        """The content of an artifact in ``wants``; None where it is gone."""
        task = self.wants.pop(sha256, None)
        if task is None:
            return
        try:
            value: Json = orjson.loads(data) if data is not None else None
        except orjson.JSONDecodeError:
            value = None
        if task:
            self.tasks[task].result, self.tasks[task].kept = value, True
        elif value is None:
            self.planned, self.plan_error = True, f"the plan's artifact {sha256!r} is gone or no JSON"
        else:
            self._adopt(value)

    def result(self, task: str) -> dict[str, Json]:
        """A delivery as a dispatch hands it on: ``{"result": …}``, ``{"artifact": …}``, or ``{"$ref": {task, entry}}``
        for the result in the ``detail`` of that log entry."""
        found = self.tasks[task]
        if found.artifact is not None:
            return {"artifact": found.artifact}
        return {"result": found.result} if found.kept else {"$ref": {"task": task, "entry": found.entry}}

    def taken(self, name: str) -> bool:
        return name in self.tasks or name in self.graph.specs

    def _open(self, record: Record) -> None:
        detail = record.detail
        self.session = record.id
        self.root = {k: v for k, v in detail.items() if k != "plan"}
        self.traceparent = record.trace.traceparent
        self.guards = Guards.read(detail.get("guards"))
        self.since = (0, 0, self.last_ms, 0)
        artifact = detail.get("plan_artifact")
        if isinstance(artifact, dict) and isinstance(artifact.get("sha256"), str):
            self.wants[artifact["sha256"]] = ""
            return
        try:
            plan = planfile.opening(detail)
        except PlanRefused as error:
            self.planned, self.plan_error = True, str(error)
        else:
            if plan is not None:
                self._take(plan)
                self.guards = self.guards.over(plan.guards).over(_object(detail.get("guards")))

    def _adopt(self, data: Json) -> None:
        try:
            plan = planfile.of_delivery(data)
        except PlanRefused as error:
            self.planned, self.plan_error = True, str(error)
        else:
            self._take(plan)
            self.guards = self.guards.under(plan.guards)

    def _take(self, plan: Plan) -> None:
        self.planned = True
        if plan.models:
            own = self.root.get("models")
            self.root = {**self.root, "models": {**plan.models, **(own if isinstance(own, dict) else {})}}
        for spec in plan.tasks:
            self.graph.add(spec)

    def _task(self, entry: str, record: Record) -> None:
        detail = record.detail
        task = self.tasks.get(record.id)
        if task is None:
            task = self.tasks[record.id] = TaskView(record.id)
        old, task.state, task.attempt = task.state, target_state(record), max(task.attempt, record.attempt)
        task.role = _text(detail.get("role")) or task.role
        event = record.event
        if event == "task_assigned":
            self.dispatches += 1
            task.assigned = max(task.assigned, record.attempt)
            task.agent = _text(detail.get("agent")) or task.agent
            self._count_agent(task.agent, task.role)
        elif event == "task_completed":
            self._delivered(entry, task, detail)
        elif event in ("task_blocked", "task_retrying"):
            task.reason = _text(detail.get("reason"))
        elif event == "task_failed":
            error = _object(detail.get("error"))
            task.reason = _text(error.get("message"))
            if error.get("kind") == "budget":
                self.over = "money" if _object(detail.get("guard")).get("budget") == "money" else "tokens"
        elif event == "task_agent_lost":
            task.reason = f"agent {detail.get('agent')!r} was lost"
        self._count_usage(task, _object(detail.get("usage")))
        self._moved(record.id, old, task.state)

    def _count_usage(self, task: TaskView, usage: Mapping[str, Json]) -> None:
        """``task`` of a usage is what its agent used for the task in all attempts, those included that died without a
        word; without it the numbers are the attempt's own."""
        whole = usage.get("task")
        if isinstance(whole, dict):
            seen = task.spent
            task.spent = (_whole(whole.get("total_tokens")), round(_number(whole.get("cost")) * 1_000_000))
            self.tokens += max(0, task.spent[0] - seen[0])
            self.micros += max(0, task.spent[1] - seen[1])
        else:
            self.tokens += _whole(usage.get("total_tokens"))
            self.micros += round(_number(usage.get("cost")) * 1_000_000)

    def _delivered(self, entry: str, task: TaskView, detail: Mapping[str, Json]) -> None:
        task.entry, task.reason = entry, ""
        artifact = detail.get("artifact")
        planner = task.id.startswith((PLANNER_PREFIX, ROUTER_PREFIX)) and not self.planned
        if isinstance(artifact, dict) and "result" not in detail:
            task.artifact = artifact
            if planner and isinstance(artifact.get("sha256"), str):
                self.wants[artifact["sha256"]] = task.id
        else:
            result = _result(detail)
            if planner or (task.id in self.graph.dependents and len(canonical(result)) <= INLINE_MAX):
                task.result, task.kept = result, True
        if detail.get("subtasks") and task.id in self.graph.specs:
            self.proposals[task.id] = detail["subtasks"]

    def _decision(self, entry: str, record: Record) -> str:
        detail = record.detail
        action, name = _text(detail.get("action")), _text(detail.get("task"))
        if action == "finish":
            self.finishes += 1
            self.finished = Finished(_text(detail.get("status")), self.finishes, entry)
        elif action == "resume" and not self.cancelled:
            self._resume(detail)
        elif action == "guard":
            self.stop = _text(detail.get("guard"))
        elif action == "cancel" and name == self.session:
            self.cancelled = True
        elif action == "adopt_plan" and name in self.tasks:
            self._adopt(self.tasks[name].result)
        elif action == "route":
            self._route(detail)
        elif action == "accept_subtasks":
            self._accept(name)
        elif action == "refuse_subtasks":
            self.proposals.pop(name, None)
        if action in DECISIONS and name in self.tasks:
            self._settle(entry, action, self.tasks[name], detail)
            return name
        return ""

    def _settle(self, entry: str, action: str, task: TaskView, detail: Mapping[str, Json]) -> None:
        """What a person's (or the flow's own) decision does to a task."""
        old, task.state = task.state, DECISIONS[action][1]
        role = _text(detail.get("role"))
        if role and role != task.role:
            task.role, task.agent, task.spent = role, "", (0, 0)
        self.retries.pop(task.id, None)
        if action == "accept":
            self._delivered(entry, task, detail)
        elif action in ("retry", "reassign") and self.finished and task.id in self.graph.specs:
            self.reopen = True
        self._moved(task.id, old, task.state)

    def _resume(self, detail: Mapping[str, Json]) -> None:
        self.finished, self.stop, self.reopen, self.over = None, "", False, ""
        self.resumes += 1
        self.since = (self.dispatches, self.tokens, self.last_ms, self.micros)
        if isinstance(detail.get("guards"), dict):
            self.guards = self.guards.over(detail["guards"])
        led = (t for t in self.tasks.values() if t.id in self.graph.specs or t.id.startswith(PLANNER_PREFIX))
        self.retries = {t.id: None for t in led if t.state in RETRIED} if detail.get("retry", True) else {}

    def _route(self, detail: Mapping[str, Json]) -> None:
        """Code chose: one task, whose plan is known with that, or a planner's plan."""
        self.routed = _text(detail.get("outcome"))
        if self.routed == "simple" and not self.planned:
            plan = planfile.opening({**self.root, "flow": "solo", "role": detail.get("role")})
            assert plan is not None, "a single task is a plan"
            self._take(plan)

    def _accept(self, name: str) -> None:
        """The leader found a proposal in order: its tasks join the graph (checked once more, without the roles)."""
        spec, raw = self.graph.specs.get(name), self.proposals.pop(name, None)
        if spec is None or raw is None:
            return
        try:
            self._take(planfile.check_proposal(raw, parent=name, depth=spec.depth + 1, taken=Taken(self)))
        except PlanRefused:
            return  # an outside agent took one of the ids in between: its task stands, the proposal does not

    def _moved(self, task: str, old: str, new: str) -> None:
        self.graph.moved(task, old, new)
        if new not in RETRIED:
            self.retries.pop(task, None)

    def _count_agent(self, agent: str, role: str) -> None:
        number = agent[len(role) + 1 :] if agent.startswith(f"{role}_") else ""
        if number.isascii() and number.isdigit():
            self.agents[role] = max(self.agents.get(role, 0), int(number))


class Taken(Collection[str]):
    """The ids that a view knows, as a collection: membership without a copy."""

    def __init__(self, view: View, more: Iterable[str] = ()) -> None:
        self._view = view
        self._more = set(more)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._more or self._view.taken(name))

    def __iter__(self) -> Iterator[str]:
        yield from {**self._view.tasks, **self._view.graph.specs}

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, names: Iterable[str]) -> None:
        self._more.update(names)


def _result(detail: Mapping[str, Json]) -> Json:
    """What dependents get: the result; of a verdict the verdict with its reasons (and its result, if it has one)."""
    if "verdict" not in detail:
        return detail.get("result")
    return {k: detail[k] for k in ("verdict", "verifies", "reasons", "result", "items") if k in detail}


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _number(value: Json) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else 0.0


def _whole(value: Json) -> int:
    return int(_number(value))


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
