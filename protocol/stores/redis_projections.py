"""A space's log as it is, and its projections, on Redis: for those who doubt them.

Guarantees: the log is read up to one point, the projections after it, so that what an append wrote in between looks like
nothing wrong; an entry that is no record comes back as it stands. Reads in pages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import orjson

from protocol.keys import Keys
from protocol.projection import Raw
from protocol.record import Json
from protocol.stores.client import Client, awaited, guard
from protocol.stores.wire import loads

PAGE = 1_000


class RedisProjections:
    """The doubter's view of every space on one server."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def last(self, space: str) -> str:
        """The log's last entry, ``0-0`` where there is none."""
        with guard("log"):
            found = await self._client.xrevrange(self._keys.space(space).log, count=1)
            return found[0][0].decode() if found else "0-0"

    async def rows(self, space: str, upto: str, after: str = "0-0") -> AsyncIterator[list[tuple[str, dict[bytes, bytes]]]]:
        """The log's entries after ``after`` up to ``upto``, in pages, bytes as they stand."""
        while True:
            with guard("log"):
                got = await self._client.xrange(self._keys.space(space).log, f"({after}", upto, count=PAGE)
            if not got:
                return
            page = [(entry.decode(), fields) for entry, fields in got]
            yield page
            after = page[-1][0]

    async def ids(self, space: str) -> dict[str, str]:
        """Id of every record that is no task's -> ``digest,entry``."""
        out: dict[str, str] = {}
        with guard("ids"):
            async for id, packed in self._client.hscan_iter(self._keys.space(space).ids, count=PAGE):
                out[id.decode()] = packed.decode()
        return out

    async def read_hash(self, key: str) -> dict[str, str]:
        """A small hash, whole."""
        with guard("hash"):
            raw = await awaited(self._client.hgetall(key))
            return {k.decode(): v.decode() for k, v in raw.items()}

    async def read_scores(self, key: str) -> dict[str, int]:
        """A sorted set, whole."""
        with guard("sorted set"):
            return {m.decode(): int(s) for m, s in await self._client.zrange(key, 0, -1, withscores=True)}


def raw_of(entry: str, fields: Mapping[bytes, bytes]) -> Raw:
    """An entry as plain values; what is no JSON, no number or no text stays as it looks."""
    out: dict[str, Json] = {}
    for name, value in fields.items():
        key = name.decode("utf-8", "backslashreplace")
        if key in ("detail", "trace"):
            try:
                out[key] = loads(value) if key == "detail" else orjson.loads(value)
                continue
            except (ValueError, RecursionError):
                pass
        text = value.decode("utf-8", "backslashreplace")
        out[key] = int(text) if key == "time" and text.isdecimal() else text
    return entry, out
