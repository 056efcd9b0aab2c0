"""Hints that a space has news: everyone who leads or manages reads all of them.

Guarantees: a lost hint costs one sweep interval and nothing else. Never
carries anything that is not in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.cursor import entry_key
from protocol.keys import Keys
from protocol.record import is_name
from protocol.stores.client import Client, guard
from protocol.stores.scripts import Arg

CAPPED_AT: Final = 10_000


class Wake:
    """Rings, and listens on a connection of its own."""

    def __init__(self, client: Client, keys: Keys, *, reader: Client | None = None) -> None:
        self._client = client
        self._reader = reader or client
        self._keys = keys

    async def ring(self, spaces: Sequence[str]) -> None:
        """Say that ``spaces`` have news ('' = the workers have)."""
        if not spaces:
            return
        with guard("wake"):
            async with self._client.pipeline(transaction=False) as pipe:
                for command in self.commands(spaces):
                    pipe.execute_command(*command)
                await pipe.execute()

    def commands(self, spaces: Sequence[str]) -> list[tuple[Arg, ...]]:
        """The same as commands, to ride along in a caller's round trip."""
        return [("XADD", self._keys.wake, "MAXLEN", "~", CAPPED_AT, "*", "s", space) for space in spaces]

    async def now(self) -> str:
        """The last id, from which to listen on."""
        with guard("wake"):
            got = await self._client.xrevrange(self._keys.wake, count=1)
            return got[0][0].decode() if got else "0-0"

    async def listen(self, last: str, block_ms: int) -> tuple[str, set[str]]:
        """(new last id, spaces with news), waiting at most ``block_ms``. Where the stream is behind ``last`` (the
        server forgot, or its clock fell back) the new last id is the stream's own."""
        with guard("wake"):
            got = await self._reader.xread({self._keys.wake: last}, count=1000, block=block_ms)
        if not got:
            newest = await self.now()
            return (newest if entry_key(newest) < entry_key(last) else last), set()
        entries = got[0][1]
        names = {fields.get(b"s", b"?").decode("utf-8", "replace") for _, fields in entries}
        return entries[-1][0].decode(), {name for name in names if not name or is_name(name)}
