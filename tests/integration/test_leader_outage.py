"""A leader whose server goes away: killed and started again, emptied, cut off. It goes on and writes nothing twice."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.leader_process import leader
from coordinator.session import Order
from protocol.errors import StoreDenied, StoreError
from protocol.kit.embedded import find_binary, start_server
from protocol.kit.lifecycle import Stopping
from protocol.kit.server import CONFIG_NAME, ServerProcess
from protocol.kit.settings import Settings
from protocol.stores.client import connect
from tests.conftest import fast_environment
from tests.integration.fleetkit import ROLE, Fleet, doubled, leading, until, working
from tests.memory import graph

PREFIX = "rc:"
CHAIN = graph({f"t{n}": [f"t{n - 1}"] if n else [] for n in range(60)})["plan"]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    """A server of this test's own, with an append-only file, that may be killed."""
    password = secrets.token_urlsafe(8)
    made = start_server(find_binary(), tmp_path / "server", aof=True, password=password, die_with_parent=True)
    yield made
    made.stop()


@pytest.fixture
def own(server: ServerProcess, tmp_path: Path) -> Settings:
    return Settings.load(fast_environment(server.url, PREFIX, tmp_path), tmp_path)


@pytest.fixture
async def fleet(server: ServerProcess) -> AsyncIterator[Fleet]:
    client = connect(server.url)
    fleet = Fleet(client, PREFIX)
    async with working(fleet):
        yield fleet
    await client.aclose()


def start_again(server: ServerProcess) -> None:
    """The same binary on the same port and data."""
    quiet = subprocess.DEVNULL
    command = [str(find_binary()), str(server.directory / CONFIG_NAME)]
    server.process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)


async def some_done(fleet: Fleet, session: str) -> bool:
    return sum(r.event == "task_completed" for r in await fleet.records(session)) > 5


async def ended(fleet: Fleet, session: str) -> bool:
    """The session is finished; what a cut left between append and enqueue is mended meanwhile."""
    try:
        await fleet.enqueue_again(session)
        return bool(await fleet.finishes(session))
    except StoreError:
        return False


async def test_a_server_that_is_killed_and_comes_back_finds_its_leader_at_work(
    server: ServerProcess, own: Settings, fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    async with leading(own, server.url):
        session = await fleet.start(Order("长链", plan=CHAIN))
        await until(lambda: some_done(fleet, session), "a few tasks are done")
        server.stop()
        await asyncio.to_thread(server.process.wait)
        start_again(server)
        await until(lambda: ended(fleet, session), "it is finished", timeout=30)
    records = await fleet.records(session)
    assert (await fleet.end(session)).detail["status"] == "completed"
    assert not doubled(records)
    assert sum(r.event == "task_completed" for r in records) == 60
    assert sum(r.msg == "store_away" for r in caplog.records) <= 2


async def test_connections_that_are_cut_again_and_again_cost_nothing_but_time(
    server: ServerProcess, own: Settings, fleet: Fleet
) -> None:
    async with leading(own, server.url):
        session = await fleet.start(Order("断线", plan=CHAIN))
        for _ in range(5):
            await fleet.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await ended(fleet, session)
        await until(lambda: ended(fleet, session), "it is finished", timeout=30)
    records = await fleet.records(session)
    assert not doubled(records)
    assert sum(r.event == "task_completed" for r in records) == 60


async def test_a_server_that_lost_everything_is_not_led_from_memory(
    server: ServerProcess, own: Settings, fleet: Fleet
) -> None:
    async with leading(own, server.url):
        await fleet.roles.publish("late", {}, "d")
        await fleet.start(Order("丢了", flow="solo", role="late"))
        await until(lambda: fleet.streams.backlog(["late"]), "it is led")
        await fleet.client.flushall()
        await fleet.roles.publish(ROLE, {}, "d")
        # In the same second even under the same id: what the leader remembers of the first is worth nothing.
        session = await fleet.start(Order("新的", flow="solo", role=ROLE))
        assert (await fleet.end(session)).detail["status"] == "completed"
        spaces = await fleet.log.spaces()
    assert spaces == [session]
    records = await fleet.records(session)
    assert not doubled(records)
    assert [r.detail["role"] for r in records if r.event == "task_assigned"] == [ROLE]


async def test_a_wrong_password_ends_the_leader_with_its_reason(server: ServerProcess, own: Settings) -> None:
    url = server.url.replace(server.password, "wrong")
    with pytest.raises(StoreDenied, match="password"):
        async with leader(own, url) as made:
            await made.run(Stopping())
