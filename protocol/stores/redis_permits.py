"""Permits for model calls on Redis: one count per endpoint and model for every process of the fleet.

Guarantees: each question is one atomic step by the server's clock (see ``lua/permit.lua``). Holds no count of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.keys import Keys
from protocol.record import digest
from protocol.stores.client import Client
from protocol.stores.scripts import Arg, Scripts

LEASE_MS: Final = 30_000


class Permits:
    """The permits of every endpoint that the fleet calls."""

    def __init__(self, client: Client, keys: Keys, scripts: Scripts | None = None, *, lease_ms: int = LEASE_MS) -> None:
        self._keys = keys
        self._scripts = scripts or Scripts(client)
        self.lease_ms = lease_ms

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
        """Ask for a permit for ``call`` (an id of its own): 0.0 granted, else the seconds after which to ask again.
        Limits are per minute; None is none. ``endpoint`` names endpoint and model, whatever its form."""
        args = ("take", call, tokens, requests or 0, tokens_most or 0, at_once or 0, self.lease_ms)
        answer = await self._run(endpoint, args)
        return 0.0 if answer[0] == b"ok" else max(1, int(answer[1])) / 1000

    async def renew(self, endpoint: str, call: str) -> None:
        """The call still runs."""
        await self._run(endpoint, ("renew", call, self.lease_ms))

    async def settle(self, endpoint: str, call: str, used: int | None) -> None:
        """The call has ended; ``used`` tokens take the place of the guess where they are known."""
        await self._run(endpoint, ("settle", call, "" if used is None else used))

    async def cool(self, endpoint: str, seconds: float) -> None:
        """No call to this endpoint for so long."""
        await self._run(endpoint, ("cool", max(0, round(seconds * 1000))))

    async def _run(self, endpoint: str, args: Sequence[Arg]) -> list[bytes]:
        mark = digest(endpoint)
        keys = [self._keys.limit(mark, part) for part in ("calls", "running", "state")]
        answer: list[bytes] = await self._scripts.run("permit", keys, args)
        return answer
