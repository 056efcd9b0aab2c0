"""Tasks of the role ``stepper`` without a leader: assigned and enqueued by hand, watched in the store.

Guarantees: what is assigned here is what a leader writes; waiting reads the store, never a process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.record import Record
from protocol.stores.redis_dispatch import Ref, RoleStreams
from protocol.tasks import TaskState
from tests.chaos.fleet import ChaosFleet
from tests.support import wait_until

SPACE = "S"
ROLE = "stepper"


async def open_space(fleet: ChaosFleet, policy: str = "reassign") -> None:
    """The space that the tasks stand in."""
    await fleet.log.create(SPACE, meta={"kind": "session", "policy": policy})


async def assign(fleet: ChaosFleet, names: Sequence[str], **given: Any) -> list[Ref]:
    """Assign tasks; they wait in the space's outbox. ``given`` is what the step is told beside its name."""
    log = str(fleet.folder / "ran")
    records = [
        Record(
            id=name, who="leader", time=1, event="task_assigned", what=name,
            detail={"role": ROLE, "attempt": 1, "agent": f"{ROLE}_{n}", "input": {"name": name, "log": log, **given}},
            trace={"parent_id": None, "session_id": SPACE},  # type: ignore[arg-type]
        )
        for n, name in enumerate(names, 1)
    ]  # fmt: skip
    assert all(a.outcome == "added" for a in await fleet.log.append(SPACE, records))
    return [Ref(ROLE, SPACE, name, 1) for name in names]


async def dispatch(fleet: ChaosFleet, *names: str, **given: Any) -> None:
    """Assign and enqueue tasks."""
    await RoleStreams(fleet.client, fleet.keys).enqueue(await assign(fleet, names, **given))


async def state(fleet: ChaosFleet, task: str) -> TaskState:
    found = await fleet.log.task_state(SPACE, task)
    assert found is not None
    return found


async def until(fleet: ChaosFleet, task: str, wanted: str, timeout: float = 20) -> TaskState:
    """Wait until a task is in a state."""

    async def look() -> bool:
        return (await state(fleet, task)).state == wanted

    try:
        await wait_until(look, f"{task} is {wanted}", timeout)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await fleet.story(SPACE)}\n{fleet.logs()}") from None
    return await state(fleet, task)


async def until_all(fleet: ChaosFleet, names: Sequence[str], timeout: float = 20, *, revive: bool = False) -> None:
    """Wait until every task is completed, each by exactly one delivery; ``revive`` starts the dead again meanwhile."""

    async def look() -> bool:
        if revive:
            fleet.revive()
        states = await fleet.log.task_states(SPACE)
        return all(states[name].state == "completed" for name in names)

    try:
        await wait_until(look, f"{len(names)} tasks are completed", timeout, every=0.02)
    except AssertionError as error:
        left = {n: s.state for n, s in (await fleet.log.task_states(SPACE)).items() if s.state != "completed"}
        raise AssertionError(f"{error}: {dict(list(left.items())[:20])}\n{fleet.logs()}") from None
    deliveries = sorted(r.id for _, r in await fleet.records(SPACE) if r.event == "task_completed" and r.id in names)
    assert deliveries == sorted(names)


async def events(fleet: ChaosFleet, task: str) -> list[str]:
    """The events of a task, in order."""
    return [r.event for _, r in await fleet.records(SPACE) if r.id == task]
