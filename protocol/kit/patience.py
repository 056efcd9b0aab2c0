"""Patience with a store that is away for a while: back-off, said once, until it is back or the process is to end.

Guarantees: retryable store errors are waited out, everything else is raised; the outage and its end are each logged
once a caller. Never gives up by itself.
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
        self._away = False
        self.outages = 0

    async def __call__(self, op: str, act: Callable[[], Awaitable[T]], *, even_draining: bool = False) -> T | None:
        """``act``'s result; None where the process is to end before the store is back."""
        tries = 0
        while True:
            try:
                result = await act()
            except StoreError as error:
                if not error.retryable:
                    raise
                if not self._away:
                    self._away = True
                    log.warning("the store is away", op=op, why=str(error))
                pause = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
                tries += 1
                if even_draining:
                    if self._stopping.now:
                        return None
                    await asyncio.sleep(pause)
                elif await self._stopping.sleep(pause):
                    return None
                continue
            if self._away:
                self._away = False
                self.outages += 1
                log.info("the store is back", op=op)
            return result
