"""Reporting a child's death to the store, so that the manager need not wait for its beats to run out.

Guarantees: a start is named by the end of its id (pid and token of the child), so nobody else's start is ever buried;
the report is one write and one ring. Never decides what happens to the dead start's tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.keys import Keys
from protocol.stores.client import Client, connect, guard
from protocol.stores.redis_lease import Leases
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_wake import Wake
from protocol.stores.redis_workers import Workers
from protocol.stores.scripts import Scripts

WORKERS_HAVE_NEWS: Final = ""
"""What a ring says when it is about no space but about who lives."""


class Deaths:
    """One connection to the store for a supervisor."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        scripts = Scripts(client)
        self._workers = Workers(client, keys, scripts)
        self._log = RedisLog(client, keys, scripts)
        self._leases = Leases(client, keys, scripts)
        self._wake = Wake(client, keys)

    @classmethod
    async def open(cls, url: str, prefix: str) -> Deaths:
        """Connect, and prove it. Raises StoreError."""
        client = connect(url, pool=4)
        try:
            with guard("connect"):
                await client.ping()
        except BaseException:
            await client.aclose()
            raise
        return cls(client, Keys(prefix))

    async def close(self) -> None:
        await self._client.aclose()

    async def report(self, suffix: str, reason: str) -> str:
        """Bury the living start whose id ends in ``suffix`` (``:<pid>:<token>``) and tell the managers; its id, or ""
        where none had registered. Raises StoreError."""
        for info in await self._workers.live():
            if info.start.endswith(suffix):
                await self._workers.bury(info.start, reason)
                led = await self._release(info.start) if info.role == "leader" else []
                await self._wake.ring([WORKERS_HAVE_NEWS, *led])
                return info.start
        return ""

    async def _release(self, holder: str) -> list[str]:
        """A dead leader's leases end now, not when they run out; the spaces that it led."""
        spaces = await self._log.open_spaces()
        with guard("lease holders"):
            async with self._client.pipeline(transaction=False) as pipe:
                for space in spaces:
                    pipe.hget(self._keys.space(space).meta, "lease_holder")
                holders = await pipe.execute()
        led = [space for space, found in zip(spaces, holders, strict=True) if found == holder.encode()]
        for space in led:
            await self._leases.release(space, holder)
        return led

    async def all_beat(self, suffixes: Sequence[str]) -> bool:
        """Whether each of these starts has registered."""
        starts = [info.start for info in await self._workers.live()]
        return all(any(start.endswith(suffix) for start in starts) for suffix in suffixes)
