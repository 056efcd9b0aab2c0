"""The store goes away, comes back, forgets: the processes stay, and work goes on by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from protocol.stores.client import awaited
from tests.chaos.fleet import ChaosFleet, delivered_once, steps
from tests.chaos.server import OwnServer
from tests.chaos.tasks import dispatch, events, open_space, until, until_all
from tests.conftest import fast_environment
from tests.support import clean_environment, wait_until

PREFIX = "rco:"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[OwnServer]:
    made = OwnServer(tmp_path / "server")
    yield made
    made.kill()


@pytest.fixture
async def fleet(server: OwnServer, tmp_path: Path) -> AsyncIterator[ChaosFleet]:
    env = clean_environment({}, fast_environment(server.url, PREFIX, tmp_path).items())
    made = ChaosFleet.make(tmp_path / "fleet", env)
    yield made
    await made.stop()


def start_all(fleet: ChaosFleet) -> None:
    for name in ("leader", "manager", "stepper.1"):
        fleet.start(name)


def alive(fleet: ChaosFleet) -> dict[str, int]:
    """Every process still runs: nobody died of the outage. name -> how often it was started."""
    for child in fleet.children.values():
        assert child.process is not None and child.process.poll() is None, f"{child.name} ended\n{fleet.logs()}"
    return {child.name: child.starts for child in fleet.children.values()}


async def run_once(fleet: ChaosFleet, name: str, timeout: float = 20) -> None:
    space = await fleet.run(steps(fleet.folder / name))
    await fleet.until_merged(space, timeout, revive=False)
    delivered_once(await fleet.records(space), ["a", "b", "c"])


async def test_processes_that_start_before_the_store_wait_for_it(server: OwnServer, fleet: ChaosFleet) -> None:
    start_all(fleet)
    await asyncio.sleep(2.0)  # the outage itself
    alive(fleet)
    server.start()
    await run_once(fleet, "ran")
    assert set(alive(fleet).values()) == {1}


async def test_a_killed_store_that_restarts_is_waited_out_without_a_busy_loop(
    server: OwnServer, fleet: ChaosFleet
) -> None:
    server.start()
    start_all(fleet)
    await run_once(fleet, "before")
    server.kill()
    worker = fleet.children["stepper.1"].process
    assert worker is not None
    cpu = sum(psutil.Process(worker.pid).cpu_times()[:2])
    await asyncio.sleep(4.0)  # the outage itself
    share = (sum(psutil.Process(worker.pid).cpu_times()[:2]) - cpu) / 4.0
    alive(fleet)
    server.start()
    await run_once(fleet, "after", 30)
    alive(fleet)
    assert share < 0.3, f"{share:.0%} of a core during the outage"
    assert len((fleet.folder / "stepper.1.log").read_text().splitlines()) < 50


async def test_a_store_that_is_silent_for_a_while_kills_nobody_and_repeats_nothing(
    server: OwnServer, fleet: ChaosFleet
) -> None:
    server.start()
    start_all(fleet)
    ran = fleet.folder / "ran"
    space = await fleet.run(steps(ran, sleep=1))
    server.freeze()
    await asyncio.sleep(3.0)  # longer than dead-after: everyone looks dead
    server.thaw()
    await fleet.until_merged(space, 30, revive=False)
    records = await fleet.records(space)
    delivered_once(records, ["a", "b", "c"])
    assert not [r for _, r in records if r.event == "task_agent_lost"], "after an outage everyone gets a fresh window"
    assert set(fleet.runs(ran).values()) == {1}
    alive(fleet)


async def test_connections_that_are_cut_are_made_again(server: OwnServer, fleet: ChaosFleet) -> None:
    server.start()
    start_all(fleet)
    await run_once(fleet, "before")
    for _ in range(3):
        await awaited(fleet.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))
        await asyncio.sleep(0.3)
    await run_once(fleet, "after")
    assert set(alive(fleet).values()) == {1}


async def test_a_flushed_store_is_noticed_and_new_work_is_served(server: OwnServer, fleet: ChaosFleet) -> None:
    server.start()
    start_all(fleet)
    await run_once(fleet, "before")
    await fleet.client.flushall()
    await run_once(fleet, "after")
    assert set(alive(fleet).values()) == {1}
    assert len((fleet.folder / "stepper.1.log").read_text().splitlines()) < 50


async def test_a_role_stream_that_was_deleted_is_made_again_with_its_work(server: OwnServer, fleet: ChaosFleet) -> None:
    server.start()
    fleet.start("leader")
    fleet.start("stepper.1")
    await fleet.run(steps(fleet.folder / "warm"))
    fleet.kill("stepper.1")
    ran = fleet.folder / "ran"
    space = await fleet.run(steps(ran))
    await asyncio.sleep(0.5)
    await fleet.client.delete(fleet.keys.role("stepper"))
    fleet.start("manager")
    fleet.start("stepper.2")
    await fleet.until_merged(space, 20, revive=False)
    delivered_once(await fleet.records(space), ["a", "b", "c"])


@pytest.mark.parametrize("store", ["gone", "silent"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_sigterm_is_obeyed_within_the_grace_time_while_the_store_is_away(
    server: OwnServer, fleet: ChaosFleet, store: str, busy: bool
) -> None:
    server.start()
    await open_space(fleet)
    processes = [fleet.start(name) for name in ("stepper.1", *(() if busy else ("leader", "manager")))]
    await dispatch(fleet, "before")
    await until_all(fleet, ["before"])
    if busy:
        await dispatch(fleet, "long", sleep=60)
        await until(fleet, "long", "processing")
    server.kill() if store == "gone" else server.freeze()
    await asyncio.sleep(2.0)  # the outage itself, longer than a lease
    alive(fleet)
    began = time.monotonic()
    for process in processes:
        os.kill(process.pid, signal.SIGTERM)
    for process in processes:
        await asyncio.to_thread(process.wait, 20)
        took = time.monotonic() - began
        assert took < 3 + 1, f"the grace time is 3 s, {process.args!r} took {took:.1f} s\n{fleet.logs()}"


async def test_a_turn_that_outlasts_an_outage_longer_than_a_lease_is_delivered_once(
    server: OwnServer, fleet: ChaosFleet
) -> None:
    server.start()
    await open_space(fleet)
    fleet.start("manager")
    fleet.start("stepper.1", ROLECALL_CONCURRENCY="1")
    await dispatch(fleet, "long", "next", sleep=3)
    await wait_until(lambda: fleet.runs(fleet.folder / "ran")["long"], f"it runs\n{fleet.logs()}", 20)
    server.kill()
    await asyncio.sleep(4.0)  # the outage itself: the turn ends in it, and the lease long before
    assert fleet.runs(fleet.folder / "ran") == {"long": 1}, "nothing new was begun meanwhile"
    server.start()
    await until_all(fleet, ["long", "next"], 30)
    assert fleet.runs(fleet.folder / "ran") == {"long": 1, "next": 1}
    assert await events(fleet, "long") == ["task_assigned", "task_processing", "task_completed"]
    alive(fleet)
