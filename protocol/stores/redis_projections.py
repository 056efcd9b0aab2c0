"""A space's log as it is, and its projections, on Redis: read by those who doubt them, made anew where they are wrong.

Guarantees: an entry that is no record comes back as it stands; what is made anew stands beside the live projections
until it takes their place in one step, and only if nothing was appended meanwhile. What was made and not used expires
within the hour. Reads and writes in pages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from protocol.keys import Keys
from protocol.projection import Projection, Raw
from protocol.record import Json
from protocol.stores.client import Client, awaited, guard
from protocol.stores.scripts import Arg, Scripts
from protocol.stores.wire import loads, space_keys
from protocol.tasks import pack

PAGE: Final = 1_000
HOUR_MS: Final = 3_600_000
INDEX_FROM: Final = 256
"""Records from which on a space is indexed (``law.lua`` has the same number)."""
STAGED: Final = ("tasks", "ids", "outbox", "due", "held", "names")
Bytes = dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Live:
    """The projections as they are: hashes (task states packed), and the sorted sets' members with their scores."""

    meta: dict[str, str]
    tasks: dict[str, str]
    ids: dict[str, str]
    held: dict[str, str]
    names: dict[str, str]
    due: dict[str, str]
    outbox: dict[str, str]


class RedisProjections:
    """The projections of every space on one server."""

    def __init__(self, client: Client, keys: Keys, scripts: Scripts | None = None) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts or Scripts(client)

    async def last(self, space: str) -> str:
        """The log's last entry, ``0-0`` where there is none."""
        with guard("log"):
            found = await self._client.xrevrange(self._keys.space(space).log, count=1)
            return found[0][0].decode() if found else "0-0"

    async def rows(self, space: str, upto: str, after: str = "0-0") -> AsyncIterator[list[tuple[str, Bytes]]]:
        """The log's entries after ``after`` up to ``upto``, in pages, bytes as they stand."""
        while True:
            with guard("log"):
                got = await self._client.xrange(self._keys.space(space).log, f"({after}", upto, count=PAGE)
            if not got:
                return
            page = [(entry.decode(), cast("Bytes", fields)) for entry, fields in got]
            yield page
            after = page[-1][0]

    async def ids(self, space: str) -> dict[str, str]:
        """Id of every record that is no task's -> ``digest,entry``."""
        return await self._hash(self._keys.space(space).ids)

    async def live(self, space: str) -> Live:
        """All projections. Not one step: compare the log's last entry before and after."""
        keys = self._keys.space(space)
        return Live(
            meta=await self._hash(keys.meta),
            tasks=await self._hash(keys.tasks),
            ids=await self._hash(keys.ids),
            held=await self._hash(keys.held),
            names=await self._hash(keys.names),
            due=await self._scores(keys.due),
            outbox=await self._scores(keys.outbox),
        )

    async def reindex(self, space: str, after: str, upto: str) -> str:
        """Index the log's entries after ``after`` beside the live indexes; the last one that was indexed."""
        keys = self._keys.space(space)
        while after != upto:
            answer = await self._scripts.run("reindex", [keys.log, keys.rebuilt("names")], [after, PAGE])
            after = answer[0].decode()
            if not answer[1]:
                break
        return after

    async def staged_names(self, space: str) -> dict[str, str]:
        """The names that were made anew: ``w:<who>`` or ``s:<session>`` -> its entries (``*``: it has a stream)."""
        return await self._hash(self._keys.space(space).rebuilt("names"))

    async def stream_differs(self, space: str, name: str) -> str:
        """How the index stream ``name`` differs from the one made anew; '' where it does not."""
        keys = self._keys.space(space)
        live, made = f"{keys.base}:ix:{name}", keys.rebuilt(f"ix:{name}")
        with guard("index"):
            sizes = int(await self._client.xlen(live)), int(await self._client.xlen(made))
            if sizes[0] != sizes[1]:
                return f"{sizes[0]} entries, {sizes[1]} in the log"
            after = "0-0"
            while True:
                one, other = [
                    [entry for entry, _ in await self._client.xrange(key, f"({after}", "+", count=PAGE)]
                    for key in (live, made)
                ]
                for here, there in zip(one, other, strict=False):
                    if here != there:
                        return f"{here.decode()} stands for {there.decode()}"
                if not one:
                    return ""
                after = one[-1].decode()

    async def stage(self, space: str, made: Projection) -> None:
        """Write what was folded from the log beside the live projections."""
        keys = self._keys.space(space)
        await self._put(keys.rebuilt("tasks"), {task: pack(state) for task, state in made.tasks.items()})
        await self._put(keys.rebuilt("ids"), made.ids)
        await self._put(keys.rebuilt("held"), made.held)
        await self._rank(keys.rebuilt("due"), made.due)
        await self._rank(keys.rebuilt("outbox"), made.assigned)

    async def swap(self, space: str, last: str, meta: Mapping[str, str], streams: Iterable[str]) -> bool:
        """Let what was made take the place of the live projections; False where the log went on meanwhile. A field of
        ``meta`` that is '' is removed."""
        keys = self._keys.space(space)
        fields = [part for pair in meta.items() for part in pair]
        args: list[Arg] = [last, len(meta), *fields, *streams]
        return bool(await self._scripts.run("rebuild", space_keys(keys), args) == b"OK")

    async def clear(self, space: str, streams: Iterable[str]) -> None:
        """Remove what was made and is not used."""
        keys = self._keys.space(space)
        names = [keys.rebuilt(name) for name in STAGED] + [keys.rebuilt(f"ix:{name}") for name in streams]
        with guard("rebuild"):
            for at in range(0, len(names), PAGE):
                await self._client.unlink(*names[at : at + PAGE])

    async def _hash(self, key: str) -> dict[str, str]:
        out: dict[str, str] = {}
        with guard("projection"):
            async for name, value in self._client.hscan_iter(key, count=PAGE):
                out[name.decode()] = value.decode()
        return out

    async def _scores(self, key: str) -> dict[str, str]:
        with guard("projection"):
            return {m.decode(): str(int(s)) for m, s in await self._client.zrange(key, 0, -1, withscores=True)}

    async def _put(self, key: str, values: Mapping[str, str]) -> None:
        rows = list(values.items())
        with guard("rebuild"):
            await self._client.unlink(key)
            for at in range(0, len(rows), PAGE):
                await awaited(self._client.hset(key, mapping=cast("Any", dict(rows[at : at + PAGE]))))
                await self._client.pexpire(key, HOUR_MS)

    async def _rank(self, key: str, values: Mapping[str, int]) -> None:
        rows = list(values.items())
        with guard("rebuild"):
            await self._client.unlink(key)
            for at in range(0, len(rows), PAGE):
                await self._client.zadd(key, cast("Any", dict(rows[at : at + PAGE])))
                await self._client.pexpire(key, HOUR_MS)


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


def weight(fields: Mapping[bytes, bytes]) -> int:
    """The bytes of an entry as the append counts them."""
    return 60 + sum(len(fields.get(name, b"")) for name in (b"id", b"who", b"what", b"detail", b"trace"))
