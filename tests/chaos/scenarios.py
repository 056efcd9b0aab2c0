"""One scenario a crash point: which process dies there, and what must hold in the end.

Every scenario starts a fleet in which one process dies by SIGKILL at exactly that point, starts it again as a
supervisor would, and waits for the end: each task delivered once, one merge, no identity doubled.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable

from protocol.tasks import TaskState
from tests.chaos.fleet import ROOT, ChaosFleet, delivered_once, steps
from tests.chaos.turns import turn_point
from tests.support import wait_until

Scenario = Callable[[ChaosFleet, str], Awaitable[None]]
TASKS = ["a", "b", "c"]


async def worker_point(fleet: ChaosFleet, point: str) -> None:
    """The only worker dies at ``point``; its work goes on in the next one."""
    fleet.start("leader")
    fleet.start("manager")
    fleet.start("stepper.1", crash_at=point)
    ran = fleet.folder / "ran"
    space = await fleet.run(steps(ran))
    await fleet.until_dead("stepper.1")
    await fleet.until_merged(space)
    records = await fleet.records(space)
    delivered_once(records, TASKS)
    once = 1 if point in ("worker.before_claim", "worker.after_delivery") else 2
    assert max(fleet.runs(ran).values()) <= once, fleet.runs(ran)


async def before_alarm(fleet: ChaosFleet, point: str) -> None:
    """The retry is on record, its alarm is never armed: the manager fires what is overdue."""
    fleet.start("leader")
    fleet.start("manager")
    fleet.start("stepper.1", crash_at=point)
    ran = fleet.folder / "ran"
    space = await fleet.run(steps(ran, fail_first=1))
    await fleet.until_dead("stepper.1")
    await fleet.until_merged(space)
    delivered_once(await fleet.records(space), TASKS)
    assert fleet.runs(ran)["a"] == 2


async def leader_point(fleet: ChaosFleet, point: str) -> None:
    """The leader dies between a step's append and its enqueue (or after it)."""
    fleet.start("leader", crash_at=point)
    fleet.start("manager")
    fleet.start("stepper.1")
    ran = fleet.folder / "ran"
    space = await fleet.run(steps(ran))
    await fleet.until_dead("leader")
    await fleet.until_merged(space)
    delivered_once(await fleet.records(space), TASKS)
    assert set(fleet.runs(ran).values()) == {1}, fleet.runs(ran)


async def loss_point(fleet: ChaosFleet, point: str) -> None:
    """A busy worker is killed; the manager dies on the way from its grave to the new assignment."""
    fleet.start("leader")
    fleet.start("manager", crash_at=point)
    fleet.start("stepper.1")
    ran = fleet.folder / "ran"
    space = await fleet.run(steps(ran, sleep=2))
    await wait_until(lambda: fleet.runs(ran)["a"] == 1, f"the first step runs\n{fleet.logs()}", 20)
    fleet.kill("stepper.1")
    await fleet.until_dead("manager")
    await fleet.until_merged(space)
    records = await fleet.records(space)
    delivered_once(records, TASKS)
    assert [r.attempt for _, r in records if r.event == "task_agent_lost"] == [1], await fleet.story(space)
    assert fleet.runs(ran)["a"] == 2


async def merge_point(fleet: ChaosFleet, point: str) -> None:
    """The manager dies around its merge."""
    fleet.start("leader")
    fleet.start("manager", crash_at=point)
    fleet.start("stepper.1")
    space = await fleet.run(steps(fleet.folder / "ran"))
    await fleet.until_dead("manager")
    await fleet.until_merged(space)
    delivered_once(await fleet.records(space), TASKS)


async def person_point(fleet: ChaosFleet, point: str) -> None:
    """A person retries a blocked task and the command dies before the new assignment is enqueued."""
    fleet.start("leader")
    fleet.start("manager")
    fleet.start("stepper.1")
    ran = fleet.folder / "ran"
    space = await fleet.run(steps(ran, fail_first=3))

    async def state() -> TaskState | None:
        return (await fleet.log.task_states(space)).get("a")

    async def blocked() -> bool:
        found = await state()
        return found is not None and found.state == "blocked"

    await wait_until(blocked, f"the first step is blocked\n{fleet.logs()}", 20)
    command = subprocess.run(
        [sys.executable, "-m", "coordinator.cli", "task", "retry", "a", "--session", space],
        env={**fleet.env, "ROLECALL_CRASH_AT": point},
        cwd=ROOT,
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert command.returncode == -signal.SIGKILL, command
    await wait_until(lambda: fleet.runs(ran)["a"] == 4, f"the step runs a fourth time\n{fleet.logs()}", 20)

    async def completed() -> bool:
        found = await state()
        return found is not None and found.state == "completed"

    await wait_until(completed, f"the step is completed\n{fleet.logs()}", 20)


SCENARIOS: dict[str, Scenario] = {
    "worker.before_claim": worker_point,
    "worker.after_claim": worker_point,
    "worker.before_delivery": worker_point,
    "worker.after_delivery": worker_point,
    "worker.before_alarm": before_alarm,
    "leader.after_append": leader_point,
    "leader.after_enqueue": leader_point,
    "manager.after_grave": loss_point,
    "manager.after_loss": loss_point,
    "manager.after_reassign": loss_point,
    "manager.before_merge": merge_point,
    "manager.after_merge": merge_point,
    "cli.after_answer": person_point,
    "worker.after_model_call": turn_point,
    "agent.before_model": turn_point,
    "agent.after_model_intent": turn_point,
    "agent.after_model_saved": turn_point,
    "agent.before_tool": turn_point,
    "agent.after_tool_intent": turn_point,
    "agent.after_tool": turn_point,
    "agent.after_tool_saved": turn_point,
}
