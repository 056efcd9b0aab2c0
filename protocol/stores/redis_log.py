"""A space's record log on Redis Streams: append, read, fold.

Guarantees: append is one atomic step on the server (``append.lua``), a batch is one round trip, and one outcome a
record comes back; a read costs what it returns. Never decides anything that the script decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

from protocol.cursor import parse_moment_ms, parse_since
from protocol.errors import Refused, StoreError
from protocol.keys import Keys
from protocol.ports import Appended, Page
from protocol.ports import Step as Step  # its first home: imported from here as well
from protocol.record import Record
from protocol.stores.client import Client, awaited, error_of, guard
from protocol.stores.scripts import Arg, Scripts
from protocol.stores.wire import SEPARATOR, packed, record_of, record_of_map, space_keys
from protocol.tasks import TaskState, unpack

BATCH_MAX: Final = 100
RECORDS_MAX: Final = 1_000_000
BYTES_MAX: Final = 1_073_741_824
LIMIT_MAX: Final = 1_000
Mode = Literal["batch", "step", "all"]
NO_SPACE: Final = "no_such_space"
UNREADABLE: Final = "unreadable"
Batch = tuple[str, Sequence[Record], str]
"""(space, records, owner): the owner is the writer's start id, empty for people and outside agents."""


class RedisLog:
    """The record store on Redis (port ``RecordStore``)."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        scripts: Scripts | None = None,
        *,
        records_max: int = RECORDS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts or Scripts(client)
        self._records_max = records_max
        self._bytes_max = bytes_max

    async def create(self, space: str, *, meta: Mapping[str, str]) -> bool:
        """Make the space with ``meta`` (``kind``: session | hand, ``policy``, ``session``, ``title``), whole or not at
        all. False where it is there already. The space is listed before its first key is written, and again after it:
        who saw it in between may have taken it for nothing."""
        keys = self._keys.space(space)
        with guard("create space"):
            made = await self.now_ms()
            async with self._client.pipeline(transaction=False) as pipe:
                pipe.zadd(self._keys.spaces, {space: made}, nx=True)
                pipe.sadd(self._keys.spaces_open, space)
                await pipe.execute()
            fields = {"kind": "hand", "created": str(made), **meta}
            flat = [part for pair in fields.items() for part in pair]
            if not await self._scripts.run("make", [keys.meta], flat):
                return False
            await awaited(self._client.sadd(self._keys.spaces_open, space))
            return True

    async def exists(self, space: str) -> bool:
        with guard("space exists"):
            return bool(await awaited(self._client.hexists(self._keys.space(space).meta, "kind")))

    async def spaces(self) -> list[str]:
        """All spaces, the longest unchanged first."""
        with guard("list spaces"):
            return [s.decode() for s in await self._client.zrange(self._keys.spaces, 0, -1)]

    async def open_spaces(self) -> list[str]:
        """The spaces that are not settled."""
        with guard("list open spaces"):
            return sorted(s.decode() for s in await awaited(self._client.smembers(self._keys.spaces_open)))

    async def close_space(self, space: str, *, quiet_ms: int = 0) -> bool:
        """The sweep need not visit the space again until it is opened. False, and nothing is done, where somebody made
        or opened it less than ``quiet_ms`` ago: a write is on its way."""
        keys = [self._keys.spaces, self._keys.spaces_open]
        return bool(await self._scripts.run("shut", keys, [space, quiet_ms]))

    async def open_space(self, space: str) -> None:
        """List the space for the sweep: before something is written to a settled one."""
        now = await self.now_ms()
        with guard("open space"):
            async with self._client.pipeline(transaction=False) as pipe:
                pipe.sadd(self._keys.spaces_open, space)
                pipe.zadd(self._keys.spaces, {space: now})
                await pipe.execute()

    async def meta(self, space: str) -> dict[str, str]:
        """The space's metadata; empty where there is no such space."""
        with guard("space meta"):
            raw = await awaited(self._client.hgetall(self._keys.space(space).meta))
            return {k.decode(): v.decode() for k, v in raw.items()}

    async def set_meta(self, space: str, values: Mapping[str, str]) -> None:
        with guard("space meta"):
            await awaited(self._client.hset(self._keys.space(space).meta, mapping=cast("Any", dict(values))))

    async def append(self, space: str, records: Sequence[Record], *, owner: str = "") -> list[Appended]:
        """Append records, one outcome each. Raises StoreError where there is no such space."""
        outcomes = (await self.append_many([(space, records, owner)]))[0]
        if any(o.reason == NO_SPACE for o in outcomes):
            raise no_such_space(space)
        return outcomes

    async def append_many(
        self, batches: Sequence[Batch], *, then: Sequence[Sequence[Arg]] = (), apart: bool = False
    ) -> list[list[Appended]]:
        """Append to many spaces in one round trip (a batch above 100 records is cut into several scripts). Records of
        a space that is not there come back refused as ``no_such_space``; with ``apart`` those of one that somebody
        damaged as ``unreadable``, so that the others have theirs. ``then``: see ``Scripts.run_many``."""
        calls: list[tuple[list[str], list[Arg]]] = []
        back: list[int] = []
        for at, (space, records, owner) in enumerate(batches):
            for k in range(0, len(records), BATCH_MAX):
                calls.append(self._call(space, records[k : k + BATCH_MAX], owner, mode="batch"))
                back.append(at)
        answers = await self._scripts.run_many("append", calls, then=then, each=True)
        out: list[list[Appended]] = [[] for _ in batches]
        for at, answer in zip(back, answers, strict=True):
            if isinstance(answer, Exception):
                error = error_of("append", answer)
                if error.retryable or not apart:
                    raise error
                out[at] = [Appended("refused", reason=UNREADABLE, message=str(error))] * len(batches[at][1])
                continue
            if answer == b"NOSPACE":
                missing = len(batches[at][1])
                out[at] = [
                    Appended("refused", reason=NO_SPACE, message=f"there is no space {batches[at][0]!r}")
                ] * missing
                continue
            out[at].extend(_outcome(a) for a in answer)
        return out

    async def append_with_file(self, space: str, record: Record, file: bytes) -> Appended:
        """Append a record and, in the same step, write the file of a workspace that it tells of: ``file`` is the JSON
        list [area, path, text]. Refused, neither is there but a violation."""
        keys, args = self._call(space, [record], "", mode="batch")
        packed_record = cast("bytes", args[-1])
        answer = await self._scripts.run("append", keys, [*args[:-1], packed_record + SEPARATOR + file])
        if answer == b"NOSPACE":
            raise no_such_space(space)
        return _outcome(answer[0])

    async def append_step(self, space: str, records: Sequence[Record], *, term: int = 0, holder: str = "") -> Step:
        """Append all records or none. With ``holder`` the lease's term is checked as well; a record whose identity is
        there already counts as done. At most 100 records."""
        if len(records) > BATCH_MAX:
            raise StoreError(f"a step of {len(records)} records: at most {BATCH_MAX}", op="append", retryable=False)
        mode: Mode = "step" if holder else "all"
        keys, args = self._call(space, records, "", mode=mode, term=term, holder=holder)
        answer = await self._scripts.run("append", keys, args)
        if answer == b"NOSPACE":
            raise no_such_space(space)
        if answer == b"TERM":
            return Step(ok=False, refused_term=True)
        if answer and answer[0] == b"STEP":
            return Step(
                ok=False, refused_at=int(float(answer[1])), reason=answer[2].decode(), message=answer[3].decode()
            )
        return Step(ok=True, outcomes=tuple(_outcome(a) for a in answer))

    async def read(
        self,
        space: str,
        *,
        since: str | int = 0,
        who: str = "",
        event: str = "",
        session: str = "",
        limit: int = 20,
        by_time: bool = False,
    ) -> Page:
        """Records after ``since``, filtered on the server, oldest first (``spec``: incremental reads)."""
        if not 1 <= limit <= LIMIT_MAX:
            raise Refused(f"limit={limit!r} is out of range", reason="bad_limit", path="limit", mend="1 to 1000")
        least = ""
        start = parse_since(since)
        if by_time and not start.cursor:
            moment = parse_moment_ms(str(since).strip())
            least = str(moment[0] / 1000) if moment and moment[0] > 0 else ""
            start = parse_since(0)
        keys = self._keys.space(space)
        answer = await self._scripts.run(
            "read", [keys.log, keys.meta, keys.names], [start.redis, limit, who, event, session, least]
        )
        more, cursor, rewound, entries = answer
        pairs = [(e[0].decode(), record_of(e[1])) for e in entries]
        if not pairs and not more and start.cursor and not rewound:
            cursor = max(cursor, str(since).encode(), key=lambda c: tuple(map(int, c.split(b"-"))))
        return Page(
            records=tuple(r for _, r in pairs),
            entries=tuple(e for e, _ in pairs),
            next=cursor.decode(),
            more=bool(more),
            rewound=bool(rewound) and start.cursor,
        )

    async def tail(self, space: str, after: str = "0-0", count: int = 1000) -> list[tuple[str, Record]]:
        """Unfiltered records after the entry ``after``, for folding."""
        with guard("tail"):
            got = await self._client.xrange(self._keys.space(space).log, f"({after}", "+", count=count)
            return [(e.decode(), record_of_map(f)) for e, f in got]

    async def get(self, space: str, entry: str) -> Record | None:
        """The record at one entry."""
        with guard("get record"):
            got = await self._client.xrange(self._keys.space(space).log, entry, entry)
            return record_of_map(got[0][1]) if got else None

    async def task_states(self, space: str) -> dict[str, TaskState]:
        with guard("task states"):
            raw = await awaited(self._client.hgetall(self._keys.space(space).tasks))
            return {k.decode(): unpack(v) for k, v in raw.items()}

    async def task_state(self, space: str, task: str) -> TaskState | None:
        with guard("task state"):
            raw = await awaited(self._client.hget(self._keys.space(space).tasks, task))
            return unpack(cast("bytes", raw)) if raw else None

    async def find(self, space: str, id: str) -> Record | None:
        """A record that is identified by its id alone."""
        with guard("find record"):
            raw = await awaited(self._client.hget(self._keys.space(space).ids, id))
        return await self.get(space, cast("bytes", raw).decode().split(",")[1]) if raw else None

    async def forget_sign(self, space: str, agent: str, last_ms: int) -> None:
        """An outside agent's loss is on record: it is watched again from its next sign of life on."""
        key = self._keys.space(space).beats
        with guard("forget sign"):
            score = await self._client.zscore(key, agent)
            if score is not None and int(score) == last_ms:
                await self._client.zrem(key, agent)

    async def postpone_sign(self, space: str, agent: str, last_ms: int) -> None:
        """The agent is not lost: it has a full interval again from now on."""
        key = self._keys.space(space).beats
        now = await self.now_ms()
        with guard("postpone sign"):
            score = await self._client.zscore(key, agent)
            if score is not None and int(score) == last_ms:
                await self._client.zadd(key, {agent: now}, xx=True)

    async def snapshot(self, space: str) -> bytes | None:
        with guard("snapshot"):
            return cast("bytes | None", await self._client.get(self._keys.space(space).snap))

    async def set_snapshot(self, space: str, data: bytes) -> None:
        with guard("snapshot"):
            await self._client.set(self._keys.space(space).snap, data)

    async def now_ms(self) -> int:
        """The server's clock."""
        with guard("server time"):
            seconds, micros = await self._client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def _call(
        self,
        space: str,
        records: Sequence[Record],
        owner: str,
        *,
        mode: Mode,
        term: int = 0,
        holder: str = "",
    ) -> tuple[list[str], list[Arg]]:
        args: list[Arg] = [mode, term, holder, self._records_max, self._bytes_max, *(packed(r, owner) for r in records)]
        return space_keys(self._keys.space(space)), args


def no_such_space(space: str) -> StoreError:
    error = StoreError(
        f"there is no space {space!r}", op="append", retryable=False, mend="create-task-space, or see list-tasks"
    )
    error.exit_code = 1
    return error


def _outcome(answer: bytes) -> Appended:
    sign, rest = answer[:1], answer[1:].decode()
    if sign == b"+":
        return Appended("added", rest)
    if sign == b"=":
        return Appended("already", rest)
    reason, message, entry = rest.split("\n", 2)
    return Appended("refused", entry, reason, message)
