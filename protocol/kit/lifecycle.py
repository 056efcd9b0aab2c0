"""How a process lives: start, run, drain on the first signal, stop at once on the second.

Guarantees: start and stop are legal twice and in any order; the first SIGTERM or SIGINT only asks (`Stopping`), and
what runs has ``grace_s`` to finish; after that, or on a second signal, the work is cancelled and awaited. Cancellation
from outside is passed on. Never exits the process, never swallows what the work raised.

::

    running --TERM/INT--> draining --work returned--> ended          True
                             |--grace over, or TERM/INT--> cancelled  False
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CANCEL_S = 5.0
_AGAIN_S = 0.2


class Stopping:
    """What a process's work looks at: whether it is to take nothing new, or to end at once."""

    def __init__(self) -> None:
        self._drain = asyncio.Event()
        self._now = asyncio.Event()

    @property
    def draining(self) -> bool:
        """True from the first signal on: take nothing new, finish or park what runs."""
        return self._drain.is_set()

    @property
    def now(self) -> bool:
        """True from the second signal on, or when the grace time is over."""
        return self._now.is_set()

    def request(self) -> None:
        """One signal: the first asks to drain, the second to end at once."""
        if self._drain.is_set():
            self._now.set()
        self._drain.set()

    def end_now(self) -> None:
        """Both at once."""
        self._drain.set()
        self._now.set()

    async def wait(self) -> None:
        """Until draining begins."""
        await self._drain.wait()

    async def wait_now(self) -> None:
        """Until everything is to end at once."""
        await self._now.wait()

    async def sleep(self, seconds: float) -> bool:
        """Sleeps, or returns early when draining begins. True if it has begun."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drain.wait(), seconds)
        return self.draining


class Lifecycle:
    """Something that is started and stopped. Subclasses give `_start` and `_stop`.

    A `_start` that fails is followed by `_stop`, so it must cope with what is only half there.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._started = False

    @property
    def started(self) -> bool:
        return self._started

    async def start(self) -> None:
        """Starts unless it runs already."""
        async with self._turn:
            if self._started:
                return
            try:
                await self._start()
            except BaseException:
                await self._stop()
                raise
            self._started = True

    async def stop(self) -> None:
        """Stops if it runs."""
        async with self._turn:
            if not self._started:
                return
            self._started = False
            await self._stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError


async def run_until_signal(
    work: Callable[[Stopping], Awaitable[object]], *, grace_s: float, stopping: Stopping | None = None
) -> bool:
    """Runs ``work`` until it returns, or until signals end it. True if it ended by itself, False if it was cut off.

    ``work`` gets a `Stopping` and is expected to return some time after draining begins. What it raises is raised here.
    Installs handlers for SIGTERM and SIGINT and puts the former ones back; main thread only.
    """
    stopping = stopping or Stopping()
    loop = asyncio.get_running_loop()
    former = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, stopping.request)
    task: asyncio.Future[Any] = asyncio.ensure_future(work(stopping))
    try:
        await _first(task, stopping.wait(), None)
        if not task.done():
            await _first(task, stopping.wait_now(), grace_s)
        if not task.done():
            stopping.end_now()
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_S)
        if not task.done() or task.cancelled():
            return False
        task.result()
        return True
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, former[number])
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_S)


async def _first(task: asyncio.Future[Any], other: Awaitable[None], timeout_s: float | None) -> None:
    """Until ``task`` or ``other`` is done, or the time is over; leaves nothing behind but ``task``."""
    waiter = asyncio.ensure_future(other)
    try:
        await asyncio.wait({task, waiter}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
        await asyncio.wait({waiter})  # not `await waiter`: that could swallow a cancellation of ours


async def cancelled(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """End tasks and wait for their end. Asks more than once: before Python 3.12 ``asyncio.wait_for`` (redis-py uses it)
    may swallow a cancellation that meets an answer."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
