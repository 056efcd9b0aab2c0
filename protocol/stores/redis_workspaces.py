"""Workspaces on Redis: the areas of a space, small text files in a hash an area.

Guarantees: a file and the record that tells of it are written in one step of ``append.lua``; what an agent may not
write is refused in that step and leaves a ``protocol_violation``, and the file is as it was. There are no links here.
"""

from __future__ import annotations

from typing import Final

import orjson

from protocol.errors import StoreFull
from protocol.keys import Keys
from protocol.ports import Appended
from protocol.record import Record
from protocol.stores.client import Client, awaited, guard
from protocol.stores.redis_log import RedisLog
from protocol.workspaces import Area, Place

FILES_MAX: Final = 10_000
"""Files an area of a space."""


class RedisAreas:
    """The areas of every space on one server (port ``Areas``)."""

    def __init__(self, client: Client, keys: Keys, log: RedisLog) -> None:
        self._client = client
        self._keys = keys
        self._log = log

    async def put(self, space: str, record: Record, place: Place, text: str) -> Appended:
        """Append ``record`` and write the file in the same step; refused, neither is there but a violation."""
        if not place.path:
            return (await self._log.append(space, [record]))[0]
        key = self._keys.space(space).area(place.area)
        with guard("workspace"):
            full = await awaited(self._client.hlen(key)) >= FILES_MAX
            if full and not await awaited(self._client.hexists(key, place.inside)):
                raise StoreFull(
                    f"the area {place.area!r} of {space!r} holds {FILES_MAX} files", op="put", retryable=False,
                    mend="put into fewer files",
                )  # fmt: skip
        return await self._log.append_with_file(space, record, orjson.dumps([place.area, place.inside, text]))

    async def get(self, space: str, place: Place) -> str | None:
        """A file's text; None where there is none."""
        with guard("workspace"):
            found = await awaited(self._client.hget(self._keys.space(space).area(place.area), place.inside))
        return None if found is None else bytes(found).decode("utf-8", "replace")  # type: ignore[arg-type]

    async def listing(self, space: str, area: Area, agent: str = "") -> list[tuple[str, int]]:
        """The paths below an area (of ``private``: below one agent's) with their sizes in bytes, in order."""
        key = self._keys.space(space).area(area)
        below = f"{agent}/" if agent else ""
        with guard("workspace"):
            names = [n.decode() for n in await awaited(self._client.hkeys(key)) if n.decode().startswith(below)]
            async with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hstrlen(key, name)
                sizes = await pipe.execute()
        return sorted((name.removeprefix(below), int(size)) for name, size in zip(names, sizes, strict=True))
