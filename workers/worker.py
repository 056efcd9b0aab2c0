"""One worker process: a start, its beat, its consumer, its postman, its watch; a new start after a burial.

Guarantees: a start's id is new at every start; SIGTERM takes nothing new, finishes what runs within the grace time and
hands back the rest; a clean leave is told to the store, so that nothing of it waits for a deadline. Never lets one
life's turns write under the next life's name.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from protocol.errors import StoreError
from protocol.keys import Keys
from protocol.kit.lifecycle import Stopping, cancelled
from protocol.kit.logs import get_log
from protocol.kit.metrics import Metrics
from protocol.kit.patience import Patience
from protocol.kit.settings import Settings
from protocol.ports import Runner
from protocol.stores.client import Client
from protocol.stores.redis_claims import Claims
from protocol.stores.redis_dispatch import RoleStreams
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_wake import Wake
from protocol.stores.redis_workers import Workers
from protocol.stores.scripts import Scripts
from workers.consumer import BLOCK_MS, Consumer
from workers.delivery import Rules
from workers.heartbeat import Heart
from workers.postman import Arm, Check, Postman
from workers.watch import Watch

log = get_log(__name__)
START_TOKEN: Final = "ROLECALL_START_TOKEN"
"""Set by a supervisor that wants to know its child's start id: the random part of the first start."""
LEAVE_S: Final = 2.0
RUN_CHECK_S: Final = 1.0


@dataclass(frozen=True)
class Parts:
    """What a worker is put together from (the composition root builds them)."""

    url: str
    settings: Settings
    keys: Keys
    client: Client
    reader: Client
    metrics: Metrics
    runner: Runner
    arm: Arm
    check: Check
    processing: Callable[[], dict[str, Any]]
    """What goes into each ``task_processing`` beside attempt and worker (the role file's digest)."""
    info: Callable[[], dict[str, object]]
    """What goes into each beat beside the ages (role, host, digest, …)."""


class Worker:
    """The worker of one role in this process."""

    def __init__(self, role: str, parts: Parts, *, concurrency: int, stopping: Stopping, burst: bool = False) -> None:
        self.role = role
        self.start = ""
        self._p = parts
        self._concurrency = concurrency
        self._stopping = stopping
        self._burst = burst
        scripts = Scripts(parts.client)
        self._streams = RoleStreams(parts.client, parts.keys, scripts, reader=parts.reader)
        self._claims = Claims(parts.client, parts.keys, scripts)
        self._store = RedisLog(parts.client, parts.keys, scripts)
        self._workers = Workers(parts.client, parts.keys, scripts)
        self._wake = Wake(parts.client, parts.keys)
        self._token: str | None = os.environ.get(START_TOKEN)
        self.postman: Postman | None = None

    async def run(self) -> None:
        """Live, and live again after a burial, until the process is to end (or, burst, nothing is left)."""
        while True:
            buried = await self._live()
            if not buried or self._stopping.draining:
                return

    async def _live(self) -> bool:
        """One start's life; True where it ended by burial."""
        p = self._p
        self.start = f"{self.role}@{host_name()}:{os.getpid()}:{self._token or secrets.token_hex(4)}"
        self._token = None
        heart = Heart(
            url=p.url,
            prefix=p.keys.prefix,
            start=self.start,
            info={**p.info(), "role": self.role, "pid": os.getpid()},
            beat_s=p.settings.beat_s,
            dead_s=p.settings.dead_s,
        )
        patience = Patience(self._stopping)
        runs = _Runs(self._workers)
        consumer = Consumer(
            role=self.role,
            start=self.start,
            streams=self._streams,
            claims=self._claims,
            heart=heart,
            runner=p.runner,
            concurrency=self._concurrency,
            stopping=self._stopping,
            patience=patience,
            processing=p.processing,
            after_outage=runs.check,
            burst=self._burst,
        )
        rules = Rules(tries=p.settings.tries, delays_s=tuple(p.settings.retry_delays_s))
        postman = self.postman = Postman(
            consumer,
            store=self._store,
            streams=self._streams,
            claims=self._claims,
            wake=self._wake,
            arm=p.arm,
            check=p.check,
            rules=rules,
            metrics=p.metrics,
            stopping=self._stopping,
            patience=patience,
            now=time.time,
            random=random.random,
        )
        runs.postman = postman
        watch = Watch(
            consumer,
            client=p.client,
            keys=p.keys,
            store=self._store,
            heart=heart,
            heartbeat_s=p.settings.heartbeat_s,
            dead_s=p.settings.dead_s,
            now=time.time,
        )
        await heart.start()
        log.info("worker started", start=self.start, concurrency=self._concurrency)
        side = [asyncio.create_task(postman.run()), asyncio.create_task(watch.run())]
        side += [
            asyncio.create_task(self._interrupt(consumer)),
            asyncio.create_task(runs.watch()),
        ]
        reading = asyncio.create_task(consumer.read())
        try:
            await self._first_end(reading, side)
            await consumer.drain(p.settings.grace_s)
            await self._until_empty(consumer, heart)
        finally:
            buried, reachable = heart.buried, heart.confirmed
            await cancelled((reading, *side))
            await heart.stop()
        if not buried and reachable:
            await self._leave()
        elif not buried:
            log.warning("left without telling the store", start=self.start)
        return buried

    async def _first_end(self, reading: asyncio.Task[None], side: list[asyncio.Task[None]]) -> None:
        """Until reading has ended; a side task that fails ends the process with its error."""
        postman, watch, *_ = side
        await asyncio.wait((reading, postman, watch), return_when=asyncio.FIRST_COMPLETED)
        for task in (postman, watch):
            if task.done() and not task.cancelled() and task.exception() is not None:
                await task
        await reading

    async def _until_empty(self, consumer: Consumer, heart: Heart) -> None:
        """What was cancelled or has just ended is still delivered; a store that is away gets a moment, no more, and
        one that has confirmed nothing for a whole lease gets none."""
        until = time.monotonic() + (LEAVE_S if heart.confirmed else 0.0)
        asyncio.get_running_loop().call_later(LEAVE_S / 2, consumer.cancel_turns)  # see ``cancelled``
        while consumer.hands and time.monotonic() < until and not heart.buried:  # noqa: ASYNC110 - two reasons to end
            await asyncio.sleep(0.02)

    async def _interrupt(self, consumer: Consumer) -> None:
        await self._stopping.wait()
        consumer.interrupt()
        await asyncio.Event().wait()

    async def _leave(self) -> None:
        """Tell the store that this start is gone on purpose."""
        try:
            await asyncio.wait_for(self._workers.bury(self.start, "left"), LEAVE_S)
            await asyncio.wait_for(self._workers.unserve(self.role, self.start), LEAVE_S)
            await asyncio.wait_for(self._wake.ring([""]), LEAVE_S)
        except (StoreError, TimeoutError):
            log.warning("left without telling the store", start=self.start)


class _Runs:
    """Whether the server is the run that it was: looked at every second, and before new work is read after an outage.
    After a change the last seconds' deliveries are sent again. An outage that nobody noticed (a proxy that fails over)
    is found as well."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._run = ""
        self._turn = asyncio.Lock()
        self.postman: Postman | None = None

    async def check(self) -> None:
        """Raises StoreError; then nothing is forgotten, and the next check does it again."""
        async with self._turn:
            now = await self._workers.run_id()
            if self.postman is not None:
                if self._run and now != self._run:
                    log.warning("the server is another run", sent_again=await self.postman.send_again())
                self.postman.same_run()
            self._run = now

    async def watch(self) -> None:
        while True:
            try:
                await self.check()
            except StoreError:
                pass  # whoever reads says that the store is away
            await asyncio.sleep(RUN_CHECK_S)


def host_name() -> str:
    """The host's name as it may stand in a start id."""
    name = "".join(c if (c.isalnum() and c.isascii()) or c in "-." else "-" for c in socket.gethostname())
    return name[:48] or "host"


__all__ = ["BLOCK_MS", "Parts", "Worker", "host_name"]
