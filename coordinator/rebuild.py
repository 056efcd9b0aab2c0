"""The projections of a space made anew from its log: compared, or put in place of the live ones.

Guarantees: comparing changes nothing; what is put in place is what the log says at one point, in one step; a space that
goes on meanwhile is read again. The log itself is never changed. What is assigned is put back into the outbox: to
enqueue it again is safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.errors import StoreError
from protocol.projection import Projection, record_of_raw
from protocol.record import Json
from protocol.stores.jsonfile import JsonFile
from protocol.stores.ledger import Ledger, state_to
from protocol.stores.redis_projections import INDEX_FROM, Live, RedisProjections, raw_of, weight
from protocol.tasks import pack

TIMES: Final = 10
"""How often a space that goes on meanwhile is caught up with."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One value of a projection: as it is (``live``, '' where it is missing) and as the log says."""

    projection: str
    key: str
    live: str
    rebuilt: str

    def to_json(self) -> dict[str, Json]:
        return {"projection": self.projection, "key": self.key, "live": self.live, "rebuilt": self.rebuilt}


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was compared. ``written``: the projections were put in place (only where they differed)."""

    records: int
    faults: int
    """Entries of the log that are no records; ``detect-anomalies`` names them."""
    differences: tuple[Difference, ...]
    written: bool

    def to_json(self) -> dict[str, Json]:
        return {
            "records": self.records, "no_records": self.faults, "equal": not self.differences, "written": self.written,
            "differences": [one.to_json() for one in self.differences[:1_000]], "differ": len(self.differences),
        }  # fmt: skip


def compare(projection: str, live: Mapping[str, str], made: Mapping[str, str]) -> list[Difference]:
    """Where two hashes differ. Pure."""
    return [
        Difference(projection, key, live.get(key, ""), made.get(key, ""))
        for key in sorted({*live, *made})
        if live.get(key) != made.get(key)
    ]


async def rebuild_file(log: JsonFile, space: str, *, check: bool) -> Rebuilt:
    """The same for a state file, under its lock."""

    def work(ledger: Ledger) -> tuple[Rebuilt, bool]:
        made, faults = Projection(), 0
        for row in ledger.rows:
            record = record_of_raw(row["record"])
            faults += record is None
            made.see(row["entry"], record)
        live_tasks = {task: pack(state) for task, state in ledger.states().items()}
        marks = {name: ledger.meta.get(name, "") for name in ("matter", "finish", "merged")}
        found = [
            *compare("tasks", live_tasks, {task: pack(state) for task, state in made.tasks.items()}),
            *compare("ids", ledger.ids, made.ids),
            *compare("meta", marks, {name: made.marks.get(name, "") for name in marks}),
        ]
        done = Rebuilt(made.count, faults, tuple(found), bool(found) and not check)
        if done.written:
            ledger.tasks = {task: state_to(state) for task, state in made.tasks.items()}
            ledger.ids = dict(made.ids)
            ledger.meta = {name: value for name, value in ledger.meta.items() if name not in marks} | made.marks
        return done, done.written

    return await log.change(space, work)


class Rebuilding:
    """A space on Redis, made anew step by step."""

    def __init__(self, projections: RedisProjections, space: str) -> None:
        self._store = projections
        self._space = space
        self._made = Projection()
        self._after = "0-0"
        self._indexed = "0-0"
        self._bytes = 0
        self._faults = 0
        self._events: set[str] = set()

    async def run(self, *, check: bool) -> Rebuilt:
        """Compare and, unless ``check``, put in place what differs. Raises StoreError where the space never holds
        still."""
        await self._store.clear(self._space, ())
        try:
            for _ in range(TIMES):
                await self._catch_up()
                live = await self._store.live(self._space)
                if await self._store.last(self._space) != self._after:
                    continue
                found = await self._differences(live)
                if check or not found:
                    return self._said(found, written=False)
                await self._store.stage(self._space, self._made)
                if await self._store.swap(self._space, self._after, self._meta(live.meta), await self._streams()):
                    return self._said(found, written=True)
        finally:
            await self._store.clear(self._space, await self._streams())
        raise StoreError(
            f"{self._space!r} went on {TIMES} times while it was read",
            op="rebuild",
            mend="try again when it is quieter",
        )

    def _said(self, found: Iterable[Difference], *, written: bool) -> Rebuilt:
        return Rebuilt(self._made.count, self._faults, tuple(found), written)

    async def _catch_up(self) -> None:
        """Fold the log up to its last entry now, and index it where a space of that size has indexes."""
        upto = await self._store.last(self._space)
        async for page in self._store.rows(self._space, upto, self._after):
            for entry, fields in page:
                record = record_of_raw(raw_of(entry, fields)[1])
                self._faults += record is None
                self._made.see(entry, record)
                self._bytes += weight(fields)
                self._events.add(fields.get(b"event", b"").decode("utf-8", "replace"))
        self._after = upto
        if self._made.count >= INDEX_FROM:
            self._indexed = await self._store.reindex(self._space, self._indexed, upto)

    def _meta(self, live: Mapping[str, str]) -> dict[str, str]:
        """The space's metadata as far as it follows from its log."""
        marks = self._made.marks
        indexed = self._made.count >= INDEX_FROM
        return {
            "n": str(self._made.count) if self._made.count or "n" in live else "",
            "bytes": str(self._bytes) if self._bytes or "bytes" in live else "",
            "matter": marks.get("matter", ""), "finish": marks.get("finish", ""), "merged": marks.get("merged", ""),
            "indexed": "1" if indexed else "",
        }  # fmt: skip

    async def _streams(self) -> list[str]:
        """The index streams that were made."""
        if self._made.count < INDEX_FROM:
            return []
        names = await self._store.staged_names(self._space)
        return [f"e:{event}" for event in sorted(self._events)] + [n for n, value in names.items() if value == "*"]

    async def _differences(self, live: Live) -> list[Difference]:
        made = self._made
        wanted = self._meta(live.meta)
        found = [
            *compare("meta", {name: live.meta.get(name, "") for name in wanted}, wanted),
            *compare("tasks", live.tasks, {task: pack(state) for task, state in made.tasks.items()}),
            *compare("ids", live.ids, made.ids),
            *compare("held", live.held, made.held),
            *compare("due", live.due, {task: str(ms) for task, ms in made.due.items()}),
            # An assigned task that was enqueued is in the outbox no more, and the log does not say which were.
            *(Difference("outbox", t, ms, "") for t, ms in live.outbox.items() if t not in made.assigned),
        ]
        names = await self._store.staged_names(self._space) if made.count >= INDEX_FROM else {}
        found += compare("names", live.names, names)
        for name in await self._streams():
            why = await self._store.stream_differs(self._space, name)
            if why:
                found.append(Difference("index", name, why, "as the log has it"))
        return found
