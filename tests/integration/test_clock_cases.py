"""The shared cases of clocks: who is lost, judged by a manager on a real server, for outside agents and for workers.

Guarantees: every case of the file runs at its own figures (300 s to lost, steps of an hour) without waiting. Time
passes by making everything older that the server stamped; a clock that is set does the same to what the manager
remembers of it, and not to the manager's own clock.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coordinator.manager import Manager
from protocol.keys import Keys
from protocol.kit.metrics import Metrics
from protocol.kit.settings import Settings
from protocol.record import Record
from protocol.stores.client import Client, awaited, connect
from protocol.stores.redis_lease import Leases
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_workers import Workers
from tests.support import wait_until

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "unit/data/cases/clock.jsonl").read_text("utf-8").splitlines()
]
SPACE = "S"
ROOT = Path(__file__).resolve().parents[2]
LOST_S = 300.0


@dataclass
class Watched:
    """A manager that sweeps after whatever happens, and whom it watches."""

    client: Client
    keys: Keys
    manager: Manager
    kind: str
    log: RedisLog
    workers: Workers
    steps: int = 0
    found: list[str] = field(default_factory=list)

    async def sign(self, name: str, writer_s: int = 0) -> None:
        """A sign of life that arrives now; ``writer_s`` is what the writer's clock says."""
        self.steps += 1
        if self.kind == "worker":
            assert await self.workers.beat(f"{name}@host:1:x", {"role": name, "kind": "worker", "loop_age_s": 0})
            return
        record = Record(
            id=f"HB_{self.steps}", who=name, time=writer_s or 1, event="heartbeat", what="在",
            detail={"current_task": None, "status": "ok", "progress": 0},
            trace={"parent_id": None, "session_id": "s1"},  # type: ignore[arg-type]
        )  # fmt: skip
        await self.log.open_space(SPACE)  # as `add-record` does: a settled space is not swept
        assert [a.outcome for a in await self.log.append(SPACE, [record])] == ["added"]

    async def passes(self, seconds: float) -> None:
        """Time passes while the manager watches all along."""
        await self._older(seconds)
        self.manager._seen.since_ms -= int(seconds * 1000)

    async def pauses(self, seconds: float) -> None:
        """Time passes while the manager is stopped."""
        await self.passes(seconds)
        self.manager._seen.last_sweep -= seconds
        self.manager._seen.server_ms -= int(seconds * 1000)
        await self._watched(-seconds)

    async def is_set(self, seconds: float) -> None:
        """The server's clock is set by so much; no time passes."""
        await self.passes(seconds)
        self.manager._seen.server_ms -= int(seconds * 1000)
        await self._watched(-seconds)

    async def _older(self, seconds: float) -> None:
        for key in (self.keys.space(SPACE).beats, self.keys.workers):
            for name in await self.client.zrange(key, 0, -1):
                await self.client.zincrby(key, -seconds * 1000, name)
        if await awaited(self.client.hexists(self.keys.watch, "from")):
            await awaited(self.client.hincrby(self.keys.watch, "from", int(-seconds * 1000)))

    async def _watched(self, seconds: float) -> None:
        if await awaited(self.client.hexists(self.keys.watch, "last")):
            await awaited(self.client.hincrby(self.keys.watch, "last", int(seconds * 1000)))

    async def sweep(self) -> None:
        await self.manager.sweep()
        if self.kind == "worker":
            self.found = [g.start.partition("@")[0] for g in await self.workers.graves()]
        else:
            records = [r for _, r in await self.log.tail(SPACE, "0-0")]
            self.found = [str(r.detail["agent"]) for r in records if r.event == "task_agent_lost"]


@pytest.fixture(params=["agent", "worker"])
async def watched(
    request: pytest.FixtureRequest, redis_url: str, prefix: str, settings: Settings
) -> AsyncIterator[Watched]:
    client, reader, keys = connect(redis_url), connect(redis_url, pool=2), Keys(prefix)
    made = Settings.load(
        {"REDIS_URL": redis_url, "ROLECALL_LOST_S": str(LOST_S), "ROLECALL_DEAD_S": str(LOST_S)}, settings.data_dir
    )
    manager = Manager(client, reader, keys, made, Metrics())
    log = RedisLog(client, keys)
    await log.create(SPACE, meta={"kind": "hand", "policy": "hold"})
    yield Watched(client, keys, manager, request.param, log, Workers(client, keys))
    await client.aclose()
    await reader.aclose()


async def play(watched: Watched, case: dict[str, Any]) -> None:
    """Play a case's events; the manager watches from long before them, and sweeps after each."""
    await watched.sweep()
    await watched.passes(10_000)
    if "heartbeats" in case:
        signs = sorted((arrives, name, writer) for name, writer, _, arrives in case["heartbeats"])
        events: list[list[Any]] = [["hb", name, arrives, writer] for arrives, name, writer in signs]
        events.append(["check", case["now"]])
    else:
        events = case["events"]
    now: float | None = None
    for verb, *rest in events:
        at = {"hb": 1, "wall_clock_step": 1, "monitor_paused": 0, "check": 0}[verb]
        if now is not None:
            await watched.passes(rest[at] - now)
            await watched.sweep()
        now = rest[at]
        if verb == "hb":
            await watched.sign(rest[0], *rest[2:])
        elif verb == "wall_clock_step":
            await watched.is_set(rest[0])
        elif verb == "monitor_paused":
            await watched.pauses(rest[1] - rest[0])
            now = rest[1]
        await watched.sweep()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
async def test_case(watched: Watched, case: dict[str, Any]) -> None:
    await play(watched, case["input"])
    assert watched.found == case["expect"]["lost"]


async def test_an_agent_that_joins_a_settled_space_by_hand_is_watched(
    fleet_env: dict[str, str], redis_url: str, prefix: str, tmp_path: Path
) -> None:
    client, reader, keys = connect(redis_url), connect(redis_url, pool=2), Keys(prefix)
    env = fleet_env | {"ROLECALL_LOST_S": "0.5", "ROLECALL_HEARTBEAT_S": "0.2"}
    manager = Manager(client, reader, keys, Settings.load(env, tmp_path), Metrics())
    log = RedisLog(client, keys)

    async def by_hand(*argv: str, text: str = "") -> None:
        command = [sys.executable, "-m", "coordinator.cli", *argv]
        done = await asyncio.to_thread(
            subprocess.run, command, env=env, cwd=ROOT, input=text, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done

    async def lost() -> list[str]:
        await manager.sweep()
        return [str(r.detail["agent"]) for _, r in await log.tail(SPACE) if r.event == "task_agent_lost"]

    try:
        await by_hand("create-task-space", SPACE)
        await client.zadd(keys.spaces, {SPACE: 1})  # made long ago: no write is on its way any more
        assert await lost() == []
        await log.close_space(SPACE)  # as a sweep does once it has been quiet for long
        assert await log.open_spaces() == []
        told = {
            "who": "master_1",
            "event": "heartbeat",
            "detail": {"current_task": None, "status": "在", "progress": 0},
        }
        await by_hand("add-record", "--space", SPACE, text=json.dumps(told))
        assert await wait_until(lost, "its silence is told", 10) == ["master_1"]
    finally:
        await client.aclose()
        await reader.aclose()


async def test_a_lease_from_before_the_clock_was_set_back_does_not_keep_a_space_leaderless(
    redis_url: str, prefix: str
) -> None:
    client, keys = connect(redis_url), Keys(prefix)
    try:
        log, leases = RedisLog(client, keys), Leases(client, keys)
        await log.create(SPACE, meta={"kind": "session"})
        assert await leases.acquire(SPACE, "one", 200) == 1
        hour = await log.now_ms() + 3_600_000
        await log.set_meta(SPACE, {"lease_until": str(hour)})
        assert not await leases.acquire(SPACE, "two", 200), "whoever holds it gets one more lease"
        assert await leases.renew([SPACE], "one", 200) == {SPACE}
        await log.set_meta(SPACE, {"lease_until": str(hour)})

        async def taken() -> int | None:
            return await leases.acquire(SPACE, "two", 200)

        assert await wait_until(taken, "the other one leads", 5) == 2
    finally:
        await client.aclose()
