"""What the tests of the invariants share: every store on one server, records by hand, a manager that sweeps on demand,
a worker's consumer and postman without a process around them.

Guarantees: nothing runs by itself; a test takes each step, and each death, where it wants it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from coordinator.manager import Manager
from protocol.keys import Keys
from protocol.kit.lifecycle import Stopping, cancelled
from protocol.kit.metrics import Metrics
from protocol.kit.patience import Patience
from protocol.kit.settings import Settings
from protocol.ports import Delivered, Dispatch, Outcome, TurnFence
from protocol.record import Record
from protocol.stores.client import awaited, connect
from protocol.stores.redis_claims import Claims
from protocol.stores.redis_dispatch import Ref, RoleStreams
from protocol.stores.redis_lease import Leases
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_wake import Wake
from protocol.stores.redis_workers import Workers
from protocol.tasks import TaskState
from workers.consumer import Consumer, Hand
from workers.delivery import Rules
from workers.fence import Fence
from workers.heartbeat import Heart
from workers.postman import Postman

ROLE = "writer"
START = "writer@host:1:abc"
OTHER = "writer@host:2:def"
SPACE = "S"
BY = {"actor": "test"}


def record(event: str, id: str = "T1", who: str = "master_a", session: str = "s1", parent: str | None = None,
           **detail: Any) -> Record:  # fmt: skip
    return Record(
        id=id, who=who, time=1719600000, event=event, what="一句话", detail=detail,  # type: ignore[arg-type]
        trace={"parent_id": parent, "session_id": session},  # type: ignore[arg-type]
    )  # fmt: skip


def assigned(task: str = "T1", attempt: int = 1, role: str = ROLE, **more: Any) -> Record:
    return record("task_assigned", task, "leader", role=role, attempt=attempt, agent=f"{role}_1", **more)


class Kit:
    """Every store of one prefix, and a space."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.client = connect(url)
        self.keys = Keys(prefix)
        self.log = RedisLog(self.client, self.keys)
        self.claims = Claims(self.client, self.keys)
        self.streams = RoleStreams(self.client, self.keys)
        self.leases = Leases(self.client, self.keys)
        self.workers = Workers(self.client, self.keys)
        self.wake = Wake(self.client, self.keys)

    async def make(self, space: str = SPACE, kind: str = "session", policy: str = "reassign") -> None:
        assert await self.log.create(space, meta={"kind": kind, "policy": policy, "session": space})

    async def add(self, *records: Record, owner: str = "", space: str = SPACE) -> list[str]:
        return [o.reason or o.outcome for o in await self.log.append(space, records, owner=owner)]

    async def state(self, task: str = "T1", space: str = SPACE) -> TaskState:
        found = await self.log.task_state(space, task)
        assert found is not None, task
        return found

    async def events(self, task: str = "", space: str = SPACE) -> list[str]:
        return [r.event for _, r in await self.log.tail(space, count=10_000) if not task or r.id == task]

    async def claim(self, task: str = "T1", attempt: int = 1, owner: str = START, space: str = SPACE) -> Dispatch:
        got = (await self.claims.claim([Ref(ROLE, space, task, attempt)], owner, now_s=1))[0]
        assert isinstance(got, Dispatch), got
        return got

    async def outbox(self, space: str = SPACE) -> set[str]:
        return {m.decode() for m in await self.client.zrange(self.keys.space(space).outbox, 0, -1)}

    async def age_outbox(self, space: str = SPACE) -> None:
        """Everything in the outbox has been there for long."""
        key = self.keys.space(space).outbox
        for member in await self.client.zrange(key, 0, -1):
            await self.client.zadd(key, {member: 1})

    async def poke(self, command: str, *args: Any) -> Any:
        """A write past the store."""
        return await awaited(self.client.execute_command(command, *args))

    async def live(self, start: str = START, role: str = ROLE) -> None:
        assert await self.workers.beat(start, {"role": role, "kind": "worker"})


@asynccontextmanager
async def kit_on(url: str, prefix: str) -> AsyncIterator[Kit]:
    made = Kit(url, prefix)
    try:
        await made.make()
        yield made
    finally:
        await made.client.aclose()


def manager_of(kit: Kit, settings: Settings) -> Manager:
    return Manager(kit.client, kit.client, kit.keys, settings, Metrics(process=False))


class StillHeart:
    """A heart without a process: it beats as the test says."""

    def __init__(self) -> None:
        self.buried = False
        self.confirmed = True
        self.page = type("Page", (), {"in_hand": 0.0})()


Turn = Callable[[Dispatch, TurnFence], Awaitable[Outcome]]


async def deliver_at_once(dispatch: Dispatch, fence: TurnFence) -> Outcome:
    return Delivered({"result": f"结果 {dispatch.task}"})


async def pass_all(dispatch: Dispatch, records: Sequence[Record]) -> tuple[Record, ...]:
    return tuple(records)


class Bench:
    """A worker's consumer and postman on a bench: ``take`` reads, claims and starts, ``post`` delivers what ended."""

    def __init__(
        self, kit: Kit, turn: Turn = deliver_at_once, *, check: Any = pass_all, store: RedisLog | None = None
    ) -> None:
        self.stopping = Stopping()
        self.heart = StillHeart()
        self.armed: list[tuple[Ref, float]] = []
        patience = Patience(self.stopping)
        streams, claims = kit.streams, kit.claims
        self.consumer = Consumer(
            role=ROLE, start=START, streams=streams, claims=claims, heart=cast("Heart", self.heart), runner=turn,
            concurrency=8, stopping=self.stopping, patience=patience, processing=dict, burst=True,
        )  # fmt: skip
        self.postman = Postman(
            self.consumer, store=store or kit.log, streams=streams, claims=claims, wake=kit.wake, arm=self._arm,
            check=check, rules=Rules(), metrics=Metrics(process=False), stopping=self.stopping, patience=patience,
            now=time.time, random=lambda: 0.5,
        )  # fmt: skip

    async def _arm(self, ref: Ref, delay_s: float) -> None:
        self.armed.append((ref, delay_s))

    async def take(self) -> None:
        entries = await self.consumer._take(8)
        if entries:
            await self.consumer._start_all(entries)

    async def post(self, n: int = 1) -> list[Hand]:
        hands = [await asyncio.wait_for(self.consumer.outcomes.get(), 5) for _ in range(n)]
        await self.postman.deliver(hands)
        return hands

    def fence(self) -> Fence:
        return Fence(cast("Heart", self.heart))

    async def end(self) -> None:
        await cancelled([h.turn for h in self.consumer.hands.values() if h.turn is not None])
