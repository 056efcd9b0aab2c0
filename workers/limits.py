"""How often a model may be called: permits in front of each call.

Guarantees: a call that got a permit is within the limits of its entry in the models list, as far as this keeper sees;
a 429 with ``Retry-After`` holds back every call to that entry. Never calls a model. ``NoLimits`` lets everything
through; ``LocalLimits`` sees the calls of one process, ``SharedLimits`` those of every host of the fleet.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from protocol.errors import StoreError
from protocol.kit.modellist import ModelEntry
from protocol.ports import Clock, Random

WINDOW_S: Final = 60.0
Sleep = Callable[[float], Awaitable[None]]


@dataclass(slots=True)
class Permit:
    """One call's permit. Set ``used`` to the tokens that it took, as soon as they are known."""

    used: int | None = None


class ModelLimits(Protocol):
    """Permits for model calls."""

    def permit(self, spec: ModelEntry, tokens: int) -> AbstractAsyncContextManager[Permit]:
        """Wait for a permit for a call of about ``tokens`` tokens, and hold it for the length of the call."""

    async def cool_down(self, spec: ModelEntry, seconds: float) -> None:
        """Hold back every call to this entry for so long: the endpoint asked for it."""


class NoLimits:
    """Lets everything through at once."""

    @asynccontextmanager
    async def permit(self, spec: ModelEntry, tokens: int) -> AsyncIterator[Permit]:
        yield Permit()

    async def cool_down(self, spec: ModelEntry, seconds: float) -> None:
        return None


@dataclass(slots=True)
class _Gauge:
    """What one entry's calls of the last minute took."""

    calls: deque[tuple[float, Permit, int]] = field(default_factory=deque)
    running: int = 0
    free_at: float = 0.0
    freed: asyncio.Event = field(default_factory=asyncio.Event)


class LocalLimits:
    """The limits of the models list, within this process. ``clock`` is monotonic seconds."""

    def __init__(self, *, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._gauges: dict[str, _Gauge] = {}

    @asynccontextmanager
    async def permit(self, spec: ModelEntry, tokens: int) -> AsyncIterator[Permit]:
        gauge = self._gauges.setdefault(spec.key, _Gauge())
        while (wait := self._wait(gauge, spec, tokens)) is not None:
            if wait > 0:
                await self._sleep(wait)
            else:
                gauge.freed.clear()
                await gauge.freed.wait()
        permit = Permit()
        gauge.calls.append((self._clock(), permit, tokens))
        gauge.running += 1
        try:
            yield permit
        finally:
            gauge.running -= 1
            gauge.freed.set()

    async def cool_down(self, spec: ModelEntry, seconds: float) -> None:
        gauge = self._gauges.setdefault(spec.key, _Gauge())
        gauge.free_at = max(gauge.free_at, self._clock() + seconds)

    def _wait(self, gauge: _Gauge, spec: ModelEntry, tokens: int) -> float | None:
        """None: go. 0: until another call ends. Else seconds."""
        now = self._clock()
        while gauge.calls and gauge.calls[0][0] <= now - WINDOW_S:
            gauge.calls.popleft()
        if gauge.free_at > now:
            return gauge.free_at - now
        if spec.concurrent is not None and gauge.running >= spec.concurrent:
            return 0.0
        oldest = gauge.calls[0][0] + WINDOW_S - now if gauge.calls else 0.0
        if spec.requests_per_minute is not None and len(gauge.calls) >= spec.requests_per_minute:
            return oldest
        if spec.tokens_per_minute is not None and gauge.calls:  # a call larger than the limit alone goes by itself
            taken = sum(guess if permit.used is None else permit.used for _, permit, guess in gauge.calls)
            if taken + tokens > spec.tokens_per_minute:
                return oldest
        return None


class PermitStore(Protocol):
    """Where permits are counted for every host (``protocol.stores.redis_permits``)."""

    lease_ms: int

    async def take(
        self,
        endpoint: str,
        call: str,
        tokens: int,
        *,
        requests: int | None,
        tokens_most: int | None,
        at_once: int | None,
    ) -> float:
        """0.0 granted, else the seconds after which to ask again."""

    async def renew(self, endpoint: str, call: str) -> None:
        """The call still runs."""

    async def settle(self, endpoint: str, call: str, used: int | None) -> None:
        """The call has ended."""

    async def cool(self, endpoint: str, seconds: float) -> None:
        """No call for so long."""


class SharedLimits:
    """The limits of the models list for every process that shares the store. Every call costs two round trips;
    a store that is away holds a call back, it never lets one through."""

    def __init__(
        self, store: PermitStore, *, sleep: Sleep = asyncio.sleep, random: Random = random.random, pause_s: float = 0.5
    ) -> None:
        self._store = store
        self._sleep = sleep
        self._random = random
        self._pause_s = pause_s

    @asynccontextmanager
    async def permit(self, spec: ModelEntry, tokens: int) -> AsyncIterator[Permit]:
        endpoint, call, permit = _endpoint(spec), secrets.token_hex(8), Permit()
        while True:
            try:
                wait = await self._store.take(
                    endpoint, call, tokens, requests=spec.requests_per_minute, tokens_most=spec.tokens_per_minute,
                    at_once=spec.concurrent,
                )  # fmt: skip
            except StoreError as error:
                if not error.retryable:
                    raise
                wait = self._pause_s
            if not wait:
                break
            # A little later each, so that all who wait do not ask at one moment.
            await self._sleep(wait + self._random() * min(1.0, wait / 4))
        renewing = asyncio.create_task(self._renew(endpoint, call))
        try:
            yield permit
        finally:
            renewing.cancel()
            try:
                await self._store.settle(endpoint, call, permit.used)
            except StoreError:
                pass  # the lease ends by itself; the guess stands for what was used

    async def cool_down(self, spec: ModelEntry, seconds: float) -> None:
        try:
            await self._store.cool(_endpoint(spec), seconds)
        except StoreError:
            pass  # the others will be told by the endpoint itself

    async def _renew(self, endpoint: str, call: str) -> None:
        while True:
            await asyncio.sleep(self._store.lease_ms / 3000)
            try:
                await self._store.renew(endpoint, call)
            except StoreError:
                pass  # tried again in a third of the lease


def _endpoint(spec: ModelEntry) -> str:
    """Two entries that call the same model at the same place share its limits."""
    return f"{spec.base_url or ''}|{spec.model}"
