"""Faults that systems like this one had, with real processes: one name twice, deaf readers, false successes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protocol.stores.client import awaited
from tests.chaos.fleet import ROOT, ChaosFleet, delivered_once, steps
from tests.chaos.server import OwnServer
from tests.chaos.tasks import ROLE, dispatch, events, open_space, until, until_all
from tests.conftest import fast_environment
from tests.support import clean_environment, wait_until
from workers.consumer import BLOCK_MS


@pytest.fixture
async def fleet(fleet_env: dict[str, str], tmp_path: Path) -> AsyncIterator[ChaosFleet]:
    made = ChaosFleet.make(tmp_path / "fleet", fleet_env)
    await open_space(made)
    yield made
    await made.stop()


async def test_the_same_name_started_twice_is_two_workers_and_the_death_of_one_touches_no_task_of_the_other(
    fleet: ChaosFleet,
) -> None:
    """One host name, one token of a supervisor: what a container that starts again before its old self ended has."""
    same = {"ROLECALL_START_TOKEN": "same", "ROLECALL_CONCURRENCY": "1"}
    fleet.start("manager")
    old, new = fleet.start("stepper.1", **same), fleet.start("stepper.2", **same)

    async def both() -> bool:
        return sum(w.role == ROLE for w in await fleet.workers.live()) == 2

    await wait_until(both, f"both are there\n{fleet.logs()}", 20)
    await dispatch(fleet, "a", "b", sleep=2.5)
    owners = {task: (await until(fleet, task, "processing")).owner for task in ("a", "b")}
    assert sorted(owner.split(":")[1] for owner in owners.values()) == sorted(str(p.pid) for p in (old, new))
    await wait_until(lambda: len(fleet.runs(fleet.folder / "ran")) == 2, f"both run\n{fleet.logs()}", 20)
    fleet.kill("stepper.1")
    await until_all(fleet, ["a", "b"])
    lost = next(task for task, owner in owners.items() if f":{old.pid}:" in owner)
    kept = next(task for task in owners if task != lost)
    assert fleet.runs(fleet.folder / "ran") == {lost: 2, kept: 1}
    assert await events(fleet, kept) == ["task_assigned", "task_processing", "task_completed"]


async def test_a_reader_that_heard_nothing_for_several_blocks_hears_at_once(fleet: ChaosFleet) -> None:
    """Its connection is its own, and its answer timeout is longer than a block: the same one lives on."""
    fleet.start("stepper.1")

    async def reader() -> dict[bytes | str, str] | None:
        clients = await fleet.client.client_list()
        return next((c for c in clients if c["cmd"] == "xreadgroup" and "b" in c["flags"]), None)

    first = await wait_until(reader, f"it reads\n{fleet.logs()}", 20)
    assert first is not None
    calls = "cmdstat_xreadgroup"
    before = (await fleet.client.info("commandstats"))[calls]["calls"]

    async def blocks_passed() -> bool:
        return bool((await fleet.client.info("commandstats"))[calls]["calls"] >= before + 2)

    await wait_until(blocks_passed, "two blocks passed", 4 * BLOCK_MS / 1000)
    again = await wait_until(reader, "it reads again", 5)
    assert again is not None and again["id"] == first["id"], "no block was cut short by a timeout"
    assert len({c["id"] for c in await fleet.client.client_list() if c["cmd"] == "xreadgroup"}) == 1
    await dispatch(fleet, "a")
    await until(fleet, "a", "completed", 1.5)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[OwnServer]:
    made = OwnServer(tmp_path / "server")
    made.start()
    yield made
    made.kill()


async def test_what_was_accepted_survives_the_death_of_everything_before_its_first_step(
    server: OwnServer, tmp_path: Path
) -> None:
    env = clean_environment({}, fast_environment(server.url, "rct:", tmp_path).items())
    fleet = ChaosFleet.make(tmp_path / "fleet", env)
    try:
        fleet.start("stepper.1")
        space = await fleet.run(steps(fleet.folder / "ran"))
        fleet.kill("stepper.1")
        server.kill()
        server.start()
        for name in ("leader", "manager", "stepper.2"):
            fleet.start(name)
        await fleet.until_merged(space, revive=False)
        delivered_once(await fleet.records(space), ["a", "b", "c"])
    finally:
        await fleet.stop()


async def test_what_waiting_can_not_mend_ends_a_process_with_its_reason_and_no_success(
    server: OwnServer, tmp_path: Path
) -> None:
    env = clean_environment({}, fast_environment(server.url, "rct:", tmp_path).items())
    fleet = ChaosFleet.make(tmp_path / "fleet", env)
    names = ("stepper.1", "leader", "manager")
    try:
        await open_space(fleet)
        started = {name: fleet.start(name) for name in names}
        await dispatch(fleet, "a")
        await until(fleet, "a", "completed")

        async def all_beat() -> bool:
            return len(await fleet.workers.live()) == len(names)

        await wait_until(all_beat, f"all beat\n{fleet.logs()}", 20)
        await fleet.client.config_set("requirepass", "ein anderes")
        await awaited(fleet.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))
        for name, process in started.items():
            assert await asyncio.to_thread(process.wait, 20) == 3, f"{name}\n{fleet.logs()}"
            words = (fleet.folder / f"{name}.log").read_text()
            assert "password" in words and "Traceback" not in words, words
        await fleet.client.config_set("requirepass", "")
    finally:
        await fleet.stop()


async def test_a_role_whose_workers_have_no_store_is_not_served(server: OwnServer, tmp_path: Path) -> None:
    """``arq --check`` is red while the store is away or forgot everything, and green again by itself."""
    env = clean_environment({}, fast_environment(server.url, "rct:", tmp_path).items())
    fleet = ChaosFleet.make(tmp_path / "fleet", env)

    async def check() -> int:
        argv = [sys.executable, "-m", "arq", "workers.roles.stepper", "--check"]
        done = await asyncio.to_thread(subprocess.run, argv, env=fleet.env, cwd=ROOT, capture_output=True, check=False)
        return done.returncode

    async def served() -> bool:
        return await check() == 0

    try:
        worker = fleet.start("stepper.1")
        await wait_until(served, f"the role is served\n{fleet.logs()}", 20)
        os.kill(worker.pid, signal.SIGSTOP)
        await fleet.client.flushall()
        assert await check() == 1, "the store forgot, and nobody reads"
        os.kill(worker.pid, signal.SIGCONT)
        await wait_until(served, f"the role is served again\n{fleet.logs()}", 20)
        server.kill()
        assert await check() == 1
        server.start()
        await wait_until(served, f"the role is served again\n{fleet.logs()}", 20)
        assert worker.poll() is None
    finally:
        await fleet.stop()
