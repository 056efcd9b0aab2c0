"""Starting a session: its space, and the root record that says what is to be done by which flow.

Guarantees: everything that can be refused is refused before the space exists (unknown flow or role, a plan that can't
be run, features that are none); once `start` returns, the session is in the log and leaders have been told. Never leads
anything.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from coordinator import flows, planfile
from coordinator.commands import sentence
from coordinator.flows import choosing
from coordinator.flows.planning import ROLE as PLANNER
from coordinator.routing import Features
from protocol.errors import AppendRefused, ConfigError, PlanRefused, StoreError
from protocol.ports import Appended, Clock
from protocol.record import Json, Record, Trace, canonical, is_name
from protocol.stores.redis_artifacts import ArtifactRef

INLINE_PLAN_MAX: Final = 96 * 1024
TITLE_MAX: Final = 60
GOAL_MAX: Final = 64 * 1024
NUMBERS: Final = 999


class Log(Protocol):
    async def create(self, space: str, *, meta: Mapping[str, str]) -> bool: ...
    async def append(self, space: str, records: list[Record], *, owner: str = "") -> list[Appended]: ...


class Artifacts(Protocol):
    async def put(self, space: str, data: bytes) -> ArtifactRef: ...
    async def name(self, space: str, ref: ArtifactRef) -> None: ...


class Bell(Protocol):
    async def ring(self, spaces: list[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Order:
    """What a person wants. ``plan``: the value of a plan file (see `planfile.parse`), for the flow `plan`."""

    goal: str
    flow: str = "plan"
    plan: Json = None
    role: str = ""
    verify: str = ""
    input: Json = None
    models: Mapping[str, str] = field(default_factory=dict)
    guards: Mapping[str, Json] = field(default_factory=dict)
    policy: str = "reassign"
    title: str = ""
    extra: Mapping[str, Json] = field(default_factory=dict)
    """Goes into the root record's ``detail`` as it is: what the flow or the command line wants to find there."""


def check(order: Order, known_roles: Collection[str] | None) -> planfile.Plan | None:
    """The order's plan, checked (None: a planner will make one). ``known_roles``: what the fleet published; None: not
    checked. Raises ConfigError or Refused."""
    flows.find(order.flow)
    if len(order.goal) > GOAL_MAX:
        raise ConfigError(f"the goal has {len(order.goal)} characters, at most {GOAL_MAX}", mend="put it into a file")
    if order.flow == "solo" and not order.role:
        raise ConfigError("the flow 'solo' needs a role", mend="name it with --role")
    if order.flow == "route" and order.extra.get("features") is not None:
        Features.read(order.extra["features"])
    plan = planfile.opening(_detail(order))
    if order.flow == "route" and known_roles is not None and {choosing.WORKER, PLANNER} & set(known_roles):
        return plan
    wanted = plan or (planfile.check([{"id": "plan.1", "role": PLANNER}]) if order.flow in ("plan", "route") else None)
    if wanted is not None and known_roles is not None:
        wanted.check_roles(known_roles)
    return plan


async def start(
    order: Order,
    *,
    log: Log,
    artifacts: Artifacts,
    bell: Bell,
    who: str,
    known_roles: Collection[str] | None = None,
    traceparent: str | None = None,
    clock: Clock = time.time,
) -> str:
    """Start a session; its id. ``who``: the person on record; ``traceparent``: the trace that it belongs to. Raises
    ConfigError, Refused, StoreError."""
    plan = check(order, known_roles)
    detail = _detail(order)
    if not order.goal and plan and plan.goal:
        detail["goal"] = plan.goal
    try:
        size = len(canonical(detail.get("plan")))
    except ValueError as error:
        raise PlanRefused(f"the plan holds a value that is no JSON: {error}", reason="bad_task") from None
    session = await _create(order, str(detail["goal"]), log, clock)
    ref: ArtifactRef | None = None
    if size > INLINE_PLAN_MAX:
        ref = await artifacts.put(session, canonical(detail.pop("plan")))
        detail["plan_artifact"] = {"sha256": ref.sha256, "size": ref.size}
    record = Record(
        id=session,
        who=who,
        time=int(clock()),
        event="task_started",
        what=sentence(f"session: {order.title or detail['goal'] or order.flow}"),
        detail=detail,
        trace=Trace(parent_id=None, session_id=session, traceparent=traceparent),
    )
    outcome = (await log.append(session, [record]))[0]
    if outcome.outcome == "refused":
        raise AppendRefused(f"the session {session!r} was refused: {outcome.message}", reason=outcome.reason)
    if ref is not None:
        await artifacts.name(session, ref)
    await bell.ring([session])
    return session


def session_id(now_s: float, number: int) -> str:
    """``conv_YYYYMMDD_HHMMSS_NNN`` in local time."""
    return f"conv_{time.strftime('%Y%m%d_%H%M%S', time.localtime(now_s))}_{number:03d}"


async def _create(order: Order, goal: str, log: Log, clock: Clock) -> str:
    now = clock()
    title = order.title or next(iter(goal.strip().splitlines()), "") or order.flow
    for number in range(1, NUMBERS + 1):
        name = session_id(now, number)
        assert is_name(name), name
        meta = {
            "kind": "session",
            "policy": order.policy,
            "session": name,
            "flow": order.flow,
            "title": sentence(title, TITLE_MAX),
        }
        if await log.create(name, meta=meta):
            return name
    raise StoreError(f"{NUMBERS} sessions were started in one second", op="start", mend="try again")


def _detail(order: Order) -> dict[str, Json]:
    detail: dict[str, Json] = {
        **order.extra,
        "goal": order.goal,
        "flow": order.flow,
        "flow_version": flows.find(order.flow).version,
        "policy": order.policy,
    }
    for key in ("plan", "role", "verify", "input", "models", "guards"):
        value = getattr(order, key)
        if value not in (None, "", {}):
            detail[key] = dict(value) if key in ("models", "guards") else value
    return detail
