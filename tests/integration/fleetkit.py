"""What tests of leaders share: a client's view of the fleet, a stub worker, a running leader."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from coordinator.leader import Leader
from coordinator.leader_process import leader
from coordinator.session import Order, start
from protocol.errors import StoreError
from protocol.keys import Keys
from protocol.kit.lifecycle import Stopping
from protocol.kit.settings import Settings
from protocol.ports import Dispatch
from protocol.record import Record, Trace
from protocol.stores.client import Client
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_claims import Claims
from protocol.stores.redis_dispatch import Ref, RoleStreams
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_roles import Roles
from protocol.stores.redis_wake import Wake
from tests.support import wait_until

T = TypeVar("T")
ROLE = "stub"
START = f"{ROLE}@here:1:abc"
PERSON = "person_li"


async def until(read: Callable[[], Awaitable[T]], what: str, timeout: float = 10.0) -> T:
    """`wait_until` for what is read from the server."""
    return await wait_until(read, what, timeout)


class Fleet:
    """A client's view of the fleet, and a stub worker that does every task of the role `stub` at once."""

    def __init__(self, client: Client, prefix: str) -> None:
        keys = Keys(prefix)
        self.client = client
        self.keys = keys
        self.log = RedisLog(client, keys)
        self.artifacts = Artifacts(client, keys)
        self.wake = Wake(client, keys)
        self.roles = Roles(client, keys)
        self.streams = RoleStreams(client, keys)
        self.claims = Claims(client, keys)

    async def start(self, order: Order) -> str:
        roles = await self.roles.all()
        return await start(order, log=self.log, artifacts=self.artifacts, bell=self.wake, who=PERSON, known_roles=roles)

    async def work(self) -> None:
        """Until it is cancelled, over outages too."""
        behind = False
        while True:
            try:
                await self._work_once(behind)
                behind = False
            except StoreError:
                behind = True
                await asyncio.sleep(0.02)

    async def _work_once(self, behind: bool) -> None:
        """One batch; ``behind``: first what it had in hand when the server went. Every step may be repeated."""
        found = (
            [(entry, ref) for entry, ref in await self.streams.pending_of(ROLE, START) if ref is not None]
            if behind
            else await self.streams.read(ROLE, START, 50, 200)
        )
        if not found:
            return
        claimed = await self.claims.claim([ref for _, ref in found], START, now_s=1)
        done = [(d.space, [delivery(d)], START) for d in claimed if isinstance(d, Dispatch)]
        await self.log.append_many(done)
        await self.streams.ack(ROLE, found)
        await self.wake.ring(sorted({ref.space for _, ref in found}))

    async def enqueue_again(self, space: str) -> None:
        """What a manager does for dispatches whose enqueueing was cut off."""
        states = await self.log.task_states(space)
        refs = [Ref(s.role, space, task, s.attempt) for task, s in states.items() if s.state == "assigned"]
        if refs:
            await self.streams.enqueue(refs)

    async def records(self, space: str) -> list[Record]:
        return [r for _, r in await self.log.tail(space, "0-0", 100_000)]

    async def finishes(self, space: str) -> list[Record]:
        return [r for r in await self.records(space) if r.detail.get("action") == "finish"]

    async def end(self, space: str) -> Record:
        """The session's first finish."""
        return (await until(lambda: self.finishes(space), f"{space} is finished", timeout=30))[0]


def delivery(dispatch: Dispatch) -> Record:
    return Record(
        id=dispatch.task,
        who=dispatch.agent,
        time=1,
        event="task_completed",
        what="done",
        detail={"attempt": dispatch.attempt, "result": f"结果 {dispatch.task}"},
        trace=Trace(parent_id=dispatch.parent, session_id=dispatch.session),
    )


@asynccontextmanager
async def leading(settings: Settings, url: str, *, crash: bool = False) -> AsyncIterator[Leader]:
    """A running leader; with ``crash`` it ends without giving its leases up."""
    async with leader(settings, url) as made:
        stopping = Stopping()
        task = asyncio.create_task(made.run(stopping))
        try:
            yield made
            if crash:
                made._leads.clear()
        finally:
            stopping.request()
            await task


@asynccontextmanager
async def working(fleet: Fleet) -> AsyncIterator[None]:
    """The stub worker at work; its role is published."""
    await fleet.roles.publish(ROLE, {"name": "Stub"}, "d")
    task = asyncio.create_task(fleet.work())
    try:
        yield
    finally:
        while not task.done():  # a client library may swallow a cancellation that meets an answer
            task.cancel()
            await asyncio.wait({task}, timeout=0.2)


def doubled(records: list[Record]) -> list[tuple[str, str, int]]:
    """Identities that stand in a log more than once."""
    counts = Counter((r.id, r.event, r.attempt if r.is_task else 1) for r in records if r.event != "protocol_violation")
    return [identity for identity, n in counts.items() if n > 1]
