"""Patience with a store that is away for a while: back-off, said once, until it is back or the process is to end.

Guarantees: retryable store errors are waited out, everything else is raised; an outage and its end are each logged
once, however many callers wait and although others get through meanwhile (a store whose disk is full still reads).
Never gives up by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from protocol.errors import StoreError
from protocol.kit.lifecycle import Stopping
from protocol.kit.logs import get_log

log = get_log(__name__)
T = TypeVar("T")
PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0)


class Patience:
    """One process's patience. ``outages`` counts the outages that were waited out: a caller that saw it change asks
    for the server's run id again."""

    def __init__(self, stopping: Stopping) -> None:
        self._stopping = stopping
        self._waiting: set[object] = set()
        """The calls that failed and are being tried again."""
        self.outages = 0

    async def __call__(self, op: str, act: Callable[[], Awaitable[T]], *, even_draining: bool = False) -> T | None:
        """``act``'s result; None where the process is to end before the store is back."""
        call, tries = object(), 0
        try:
            while True:
                try:
                    result = await act()
                except StoreError as error:
                    if not error.retryable:
                        raise
                    if not self._waiting:
                        log.warning("the store is away", op=op, why=str(error))
                    self._waiting.add(call)
                    if not await self._pause(tries, even_draining=even_draining):
                        return None
                    tries += 1
                    continue
                if self._waiting == {call}:
                    log.info("the store is back", op=op)
                return result
        finally:
            if call in self._waiting:
                self._waiting.discard(call)
                if not self._waiting:
                    self.outages += 1

    async def _pause(self, tries: int, *, even_draining: bool) -> bool:
        """Wait before the next try; False where the process is to end instead."""
        pause = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
        if not even_draining:
            return not await self._stopping.sleep(pause)
        if self._stopping.now:
            return False
        await asyncio.sleep(pause)
        return True
