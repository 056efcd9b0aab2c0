"""The text of a turn on its way to people who watch: gathered, and sent a few times a second.

Guarantees: never holds a turn up and never fails it: a store that is away, or a fence that has fallen, only means that
nobody sees the text. Bounded in memory. Keeps nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Literal, Protocol

from protocol.errors import StoreError
from protocol.ports import Dispatch

EVERY_S: Final = 0.15
HELD_MAX: Final = 64 * 1024
"""Characters that wait to be sent; what comes on top of them is not shown."""


class LiveStore(Protocol):
    """Where watchers read (``protocol.stores.redis_live``)."""

    async def add(self, dispatch: Dispatch, pieces: Sequence[tuple[str, str]]) -> bool:
        """Add pieces; False where the attempt is no longer the owner's."""


class LiveText:
    """One attempt's text. An async context; ``delta`` is the model's ``on_delta``."""

    def __init__(self, store: LiveStore, dispatch: Dispatch, *, every_s: float = EVERY_S) -> None:
        self._store = store
        self._dispatch = dispatch
        self._every_s = every_s
        self._pieces: list[tuple[str, str]] = []
        self._held = 0
        self._sending: asyncio.Task[None] | None = None
        self._over = False

    async def __aenter__(self) -> LiveText:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sending, self._over = self._sending, True
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        if kind is None:
            await self._send()

    def delta(self, kind: Literal["content", "reasoning"], text: str) -> None:
        """A piece of text has come."""
        if self._over or self._held > HELD_MAX:
            return
        self._held += len(text)
        if self._pieces and self._pieces[-1][0] == kind:
            self._pieces[-1] = (kind, self._pieces[-1][1] + text)
        else:
            self._pieces.append((kind, text))
        if self._sending is None:
            self._sending = asyncio.create_task(self._later())

    async def _later(self) -> None:
        while self._pieces and not self._over:
            await asyncio.sleep(self._every_s)
            await self._send()
        self._sending = None

    async def _send(self) -> None:
        pieces, self._pieces, self._held = self._pieces, [], 0
        if not pieces:
            return
        try:
            if not await self._store.add(self._dispatch, pieces):
                self._over = True
        except (StoreError, UnicodeEncodeError):
            pass  # nobody sees these
