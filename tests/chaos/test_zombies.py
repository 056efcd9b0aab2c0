"""Stopped workers that wake up after their work was taken over, and busy ones that only look dead."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from protocol.stores.redis_workers import Workers
from tests.chaos.fleet import ChaosFleet, delivered_once, steps
from tests.support import wait_until


@pytest.mark.parametrize("point", ["worker.before_claim", "worker.after_claim", "worker.before_delivery"])
async def test_a_stopped_worker_that_wakes_after_its_takeover_stores_nothing(
    point: str, fleet_env: dict[str, str], tmp_path: Path
) -> None:
    fleet = ChaosFleet.make(tmp_path / "fleet", fleet_env)
    ran = fleet.folder / "ran"
    try:
        fleet.start("leader")
        fleet.start("manager")
        fleet.start("stepper.zombie", module="tests.chaos.pausing.stepper", PAUSE_AT=point)
        space = await fleet.run(steps(ran))
        zombie = fleet.children["stepper.zombie"].process
        assert zombie is not None
        await wait_until(lambda: _stopped(zombie.pid), f"the worker stops at {point}\n{fleet.logs()}", 20)
        before = await fleet.records(space)
        fleet.start("stepper.2")
        await fleet.until_merged(space, revive=False)
        starts = {g.start for g in await fleet.workers.graves()}
        fleet.kill("stepper.zombie", signal.SIGCONT)

        async def registered_anew() -> bool:
            live = [w for w in await fleet.workers.live() if w.pid == zombie.pid]
            return bool(live) and live[0].start not in starts

        await wait_until(registered_anew, f"the zombie registers anew\n{fleet.logs()}", 20)
        records = await fleet.records(space)
        delivered_once(records, ["a", "b", "c"])
        dead = {s for s in starts if f":{zombie.pid}:" in s}
        written = [r for e, r in records if r.detail.get("worker") in dead and r.event != "task_agent_lost"]
        assert len(written) == (0 if point == "worker.before_claim" else 1), "nothing but the claim, which came before"
        if point == "worker.before_delivery":
            refusals = [r for _, r in records if r.event == "protocol_violation"]
            assert [r.detail["reason"] for r in refusals] == ["superseded_attempt"]
            assert refusals[0].detail["raw"]["event"] == "task_completed", "the work is kept, as evidence"
        assert len(before) < len(records)
    finally:
        await fleet.stop()


async def test_a_worker_that_holds_the_interpreter_is_stalled_not_dead_and_runs_once(
    fleet_env: dict[str, str], tmp_path: Path
) -> None:
    fleet = ChaosFleet.make(tmp_path / "fleet", fleet_env)
    ran = fleet.folder / "ran"
    workers = Workers(fleet.client, fleet.keys, stalled_s=1.0)
    try:
        fleet.start("leader")
        fleet.start("manager")
        fleet.start("stepper.busy", module="tests.chaos.pausing.holder", HOLD_S="4")  # more than twice dead-after
        space = await fleet.run(steps(ran, names=("a",)))

        async def stalled() -> bool:
            return [w.state for w in await workers.live() if w.role == "stepper"] == ["stalled"]

        await wait_until(stalled, f"the worker is shown stalled\n{fleet.logs()}", 20)
        fleet.start("stepper.2")
        await fleet.until_merged(space, revive=False)
        records = await fleet.records(space)
        delivered_once(records, ["a"])
        assert fleet.runs(ran)["a"] == 1
        assert not [r for _, r in records if r.event == "task_agent_lost"]
    finally:
        await fleet.stop()


def _stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def test_the_reader_of_process_states_knows_a_running_one() -> None:
    assert not _stopped(os.getpid())
