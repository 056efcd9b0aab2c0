"""The fence of one running attempt: is it still this worker's?

Guarantees: ``check`` passes only while the last beat is confirmed and nothing has said that the attempt is lost; the
store checks the same again at every write. Never writes.
"""

from __future__ import annotations

import asyncio
from typing import Final

from protocol.errors import FenceLost
from workers.heartbeat import Heart

PAUSE_S: Final = 0.1


class Fence:
    """One attempt's fence (port ``TurnFence``). ``status`` and ``progress`` go into the agent's heartbeat records."""

    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        self.lost = ""
        self.status = "running"
        self.progress = ""

    async def check(self) -> None:
        """Returns when a new act may begin; waits while the store has confirmed no beat for dead-after. Raises
        FenceLost where the attempt was taken over, cancelled, or the start is buried."""
        while not self.lost and not self._heart.buried and not self._heart.confirmed:  # noqa: ASYNC110 - another process beats
            await asyncio.sleep(PAUSE_S)
        if self._heart.buried and not self.lost:
            self.lost = "this worker's start is buried"
        if self.lost:
            raise FenceLost(self.lost)
