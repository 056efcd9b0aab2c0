"""The leader process: every session is led by one leader at a time, whoever holds its lease.

Guarantees: a session's log is folded and stepped by one task at a time; a session whose leader died is taken over when
its lease ends; a hint that was lost costs one sweep. The store may go away for as long as it likes: said once, then
tried again with back-off. Never does what a flow decides twice: a step carries the lease's term, and its commands name
their effect. Holds nothing that is not in the log.

::

    hint or sweep -> lease? --no--> leave it to its holder
                       |yes
                     fold -> flow -> append -> enqueue -> (again until nothing comes of it)
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from coordinator.leading import Lead, LeaseLost, RoleBook, Stores
from protocol.errors import ConfigError, StoreError
from protocol.kit.lifecycle import Stopping, cancelled
from protocol.kit.logs import get_log
from protocol.ports import Clock

log = get_log(__name__)

SESSIONS_AT_ONCE: Final = 32
VIEWS_MAX: Final = 500
QUARANTINE_S: Final = 30.0
DENIED_S: Final = 1.0
BY_HAND_S: Final = 600.0
"""A space made by hand has no flow: it is not looked at again for so long."""
FIRST_PAUSE_S: Final = 0.1
MOST_PAUSE_S: Final = 2.0


class Leases(Protocol):
    async def acquire(self, space: str, holder: str, ttl_ms: int) -> int | None: ...
    async def renew(self, spaces: list[str], holder: str, ttl_ms: int) -> set[str]: ...
    async def release(self, space: str, holder: str) -> None: ...


class Wake(Protocol):
    async def now(self) -> str: ...
    async def listen(self, last: str, block_ms: int) -> tuple[str, set[str]]: ...
    async def ring(self, spaces: list[str]) -> None: ...


class Leader:
    """Leads sessions. ``holder`` names this start of the process; ``lease_s``: how long a lease lasts unrenewed."""

    def __init__(
        self,
        stores: Stores,
        leases: Leases,
        wake: Wake,
        *,
        open_spaces: Callable[[], Awaitable[list[str]]],
        run_id: Callable[[], Awaitable[str]],
        holder: str,
        lease_s: float = 10.0,
        sweep_s: float = 2.0,
        clock: Clock = time.time,
    ) -> None:
        self._stores = stores
        self._leases = leases
        self._wake = wake
        self._open_spaces = open_spaces
        self._run_id = run_id
        self._holder = holder
        self._ttl_ms = max(1, round(lease_s * 1000))
        self._sweep_s = sweep_s
        self._clock = clock
        self._book = RoleBook(stores.roles)
        self._leads: OrderedDict[str, Lead] = OrderedDict()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._left_alone: dict[str, float] = {}
        """Spaces that are another's, or that this leader can't lead -> until when (loop time)."""
        self._slots = asyncio.Semaphore(SESSIONS_AT_ONCE)
        self._run = ""
        self._away = False
        self._failed_at = 0.0
        """When anything failed last: a store whose disk is full still reads, and a lease is renewed now and then."""
        self._ending = False

    @property
    def leads(self) -> frozenset[str]:
        """The sessions that this leader holds now."""
        return frozenset(self._leads)

    async def run(self, stopping: Stopping) -> None:
        """Lead until ``stopping`` begins; then finish the steps in hand and give the leases up. Raises StoreError
        where trying again can't help (a wrong password)."""
        loops = [asyncio.create_task(loop) for loop in (self._listen(), self._sweep(), self._renew())]
        ended = asyncio.create_task(stopping.wait())
        try:
            done, _ = await asyncio.wait([*loops, ended], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._ending = True
            await cancelled([*loops, ended])
            await self._end()

    async def _listen(self) -> None:
        last = ""
        pause = FIRST_PAUSE_S
        while not self._ending:
            try:
                if not last:
                    last = await self._wake.now()
                    await self._same_run()
                    await self._look_at_all()
                last, spaces = await self._wake.listen(last, max(100, round(self._sweep_s * 1000)))
                pause = FIRST_PAUSE_S
                for space in spaces:
                    if space:
                        self._kick(space)
            except StoreError as error:
                pause = await self._wait(error, pause)
                last = ""

    async def _sweep(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._ending:
            try:
                await asyncio.sleep(self._sweep_s)
                await self._same_run()
                await self._look_at_all()
                if self._away and asyncio.get_running_loop().time() - self._failed_at > self._ttl_ms / 2000:
                    self._away = False
                    log.info("store_back")
                pause = FIRST_PAUSE_S
            except StoreError as error:
                pause = await self._wait(error, pause)

    async def _same_run(self) -> None:
        """On another run of the server nothing in memory counts: it may have lost what was folded here."""
        run = await self._run_id()
        if self._run and run != self._run:
            log.warning("server_restarted", sessions=len(self._leads))
            self._leads.clear()
        self._run = run

    async def _renew(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._ending:
            try:
                await asyncio.sleep(self._ttl_ms / 3000)
                mine = list(self._leads)
                if mine:
                    still = await self._leases.renew(mine, self._holder, self._ttl_ms)
                    for space in set(mine) - still:
                        self._forget(space)
                pause = FIRST_PAUSE_S
            except StoreError as error:
                pause = await self._wait(error, pause)

    async def _look_at_all(self) -> None:
        """Every space that is not settled: those we hold may have news, the others may be nobody's."""
        open_ = set(await self._open_spaces())
        now = asyncio.get_running_loop().time()
        self._left_alone = {s: until for s, until in self._left_alone.items() if until > now and s in open_}
        for space in sorted(open_):
            self._kick(space)
        for space in [s for s in self._leads if s not in open_ and s not in self._running]:
            self._forget(space)  # settled: merged, nothing to come
            await self._leases.release(space, self._holder)
        for space, lead in list(self._leads.items())[: max(0, len(self._leads) - VIEWS_MAX)]:
            if space not in self._running:
                lead.unload()

    def _kick(self, space: str) -> None:
        """Have a session looked at: now, or again after the look that is being taken."""
        if self._left_alone.get(space, 0.0) > asyncio.get_running_loop().time():
            return
        if space in self._running:
            self._again.add(space)
            return
        self._running[space] = asyncio.create_task(self._look(space), name=f"lead {space}")

    async def _look(self, space: str) -> None:
        try:
            await self._lead(space)
        finally:  # in the task itself: a hint that comes between its last look and its end must start a new one
            del self._running[space]

    async def _lead(self, space: str) -> None:
        async with self._slots:
            while True:
                self._again.discard(space)
                try:
                    lead = await self._take(space)
                    if lead is None:
                        return
                    await lead.go()
                except LeaseLost:
                    self._forget(space)
                except StoreError as error:
                    # Whatever was in flight: the log says what became of it. The next sweep comes by again.
                    self._forget(space)
                    if error.retryable:
                        self._said(error)
                        return
                    self._leave_alone(space, QUARANTINE_S, error)
                    return
                except ConfigError as error:
                    self._leave_alone(space, QUARANTINE_S, error)
                    return
                except Exception as error:  # noqa: BLE001 - one session must not end the lead of all others
                    self._forget(space)
                    self._leave_alone(space, QUARANTINE_S, error)
                    return
                if space not in self._again:
                    return

    async def _take(self, space: str) -> Lead | None:
        """The lead of a space that we hold or that nobody holds."""
        lead = self._leads.get(space)
        if lead is None:
            term = await self._leases.acquire(space, self._holder, self._ttl_ms)
            if term is None:
                self._left_alone[space] = asyncio.get_running_loop().time() + min(DENIED_S, self._ttl_ms / 4000)
                return None
            if (await self._stores.log.meta(space)).get("kind") != "session":
                await self._leases.release(space, self._holder)
                self._left_alone[space] = asyncio.get_running_loop().time() + BY_HAND_S
                return None
            lead = self._leads[space] = Lead(space, term, self._holder, self._stores, self._book, self._clock)
        self._leads.move_to_end(space)
        return lead

    def _forget(self, space: str) -> None:
        self._leads.pop(space, None)

    def _leave_alone(self, space: str, seconds: float, error: Exception) -> None:
        self._left_alone[space] = asyncio.get_running_loop().time() + seconds
        log.error("session_not_led", error=error, space=space, again_in_s=seconds)

    async def _wait(self, error: StoreError, pause: float) -> float:
        """Back off; the next pause. What trying again can't mend ends the process."""
        if not error.retryable:
            raise error
        self._said(error)
        await asyncio.sleep(pause * (0.5 + random.random()))
        return min(pause * 2, MOST_PAUSE_S)

    def _said(self, error: StoreError) -> None:
        self._failed_at = asyncio.get_running_loop().time()
        if not self._away:
            self._away = True
            log.warning("store_away", why=error.message, mend=error.mend)

    async def _end(self) -> None:
        """Finish the steps in hand, then give the leases up and tell the others."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=MOST_PAUSE_S)
        await cancelled(list(self._running.values()))
        mine = list(self._leads)
        self._leads.clear()
        try:
            for space in mine:
                await self._leases.release(space, self._holder)
            await self._wake.ring(mine)
        except StoreError:
            pass  # they end by themselves
