"""Role streams: enqueue, read, acknowledge references to dispatched tasks.

Guarantees: enqueueing is safe to repeat; acknowledging removes the entry, so that a stream's length is its backlog; a
missing stream or group is made again. Only references travel here: the task itself is in the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from redis import exceptions as rx

from protocol.keys import GROUP, Keys
from protocol.record import is_name
from protocol.stores.client import Client, awaited, guard
from protocol.stores.scripts import Arg, Scripts

ENQUEUE_MAX: Final = 1_000
"""References a script: nothing else runs on the server meanwhile."""
ACK_MAX: Final = 200
BACKLOG_MAX: Final = 100_000
"""Entries a role's stream may hold; beyond that a dispatch waits in its space's outbox."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to one attempt of a task."""

    role: str
    space: str
    task: str
    attempt: int

    @property
    def field(self) -> str:
        return f"{self.space}:{self.task}:{self.attempt}"


class RoleStreams:
    """The streams of all roles."""

    def __init__(
        self, client: Client, keys: Keys, scripts: Scripts | None = None, *, reader: Client | None = None,
        backlog_max: int = BACKLOG_MAX,
    ) -> None:  # fmt: skip
        self._client = client
        self._reader = reader or client
        """A connection of its own for blocking reads (its answer timeout is longer than the block)."""
        self._keys = keys
        self._scripts = scripts or Scripts(client)
        self._backlog_max = backlog_max

    async def enqueue(self, refs: Sequence[Ref]) -> list[Ref]:
        """Enqueue references (one round trip), then clear them from their outboxes (one more). Returns those that a
        full backlog left in the outbox."""
        by_role: dict[str, list[Ref]] = defaultdict(list)
        for ref in refs:
            by_role[ref.role].append(ref)
        parts = [some[at : at + ENQUEUE_MAX] for some in by_role.values() for at in range(0, len(some), ENQUEUE_MAX)]
        calls: list[tuple[list[str], list[Arg]]] = []
        for some in parts:
            args: list[Arg] = [self._backlog_max]
            for ref in some:
                args.extend((ref.space, ref.task, ref.attempt))
            role = some[0].role
            calls.append(([self._keys.role(role), self._keys.queued(role)], args))
        answers = await self._scripts.run_many("enqueue", calls, each=True)
        full: list[Ref] = []
        done: list[Ref] = []
        failed: Exception | None = None
        for some, answer in zip(parts, answers, strict=True):
            if isinstance(answer, Exception):
                failed = answer
                continue
            for ref, entry in zip(some, answer, strict=True):
                (done if entry else full).append(ref)
        await self.clear_outbox(done)
        if failed is not None:  # one role's stream is not as it should be: the others have theirs
            with guard("enqueue"):
                raise failed
        return full

    async def clear_outbox(self, refs: Sequence[Ref]) -> None:
        """Take references out of their outboxes; what was assigned anew meanwhile stays."""
        calls: dict[str, list[Arg]] = defaultdict(list)
        for ref in refs:
            calls[ref.space].extend((ref.task, ref.attempt))
        spaces = [(self._keys.space(space), args) for space, args in calls.items()]
        answers = await self._scripts.run_many("clear", [([s.tasks, s.outbox], args) for s, args in spaces])
        for answer in answers:
            if isinstance(answer, Exception):
                with guard("clear outbox"):
                    raise answer

    async def postpone(self, refs: Sequence[Ref]) -> None:
        """These could not be enqueued (their role's backlog is full): they go to the end of their outbox, so that
        others have their turn."""
        if not refs:
            return
        with guard("outbox"):
            seconds, micros = await self._client.time()
            now = int(seconds) * 1000 + int(micros) // 1000
            async with self._client.pipeline(transaction=False) as pipe:
                for ref in refs:
                    pipe.zadd(self._keys.space(ref.space).outbox, {ref.task: now}, xx=True)
                await pipe.execute()

    async def read(self, role: str, consumer: str, count: int, block_ms: int) -> list[tuple[str, Ref]]:
        """New entries of the role's stream, at most ``count``, waiting at most ``block_ms`` for the first."""
        stream = self._keys.role(role)
        with guard("read dispatches"):
            try:
                got = await self._reader.xreadgroup(GROUP, consumer, {stream: ">"}, count=count, block=block_ms)
            except rx.ResponseError as error:
                # Before 7.2 a read that is cut off by the end of its stream has an answer of its own.
                if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                    raise
                await self.ensure_group(role)
                return []
        found = [(e.decode(), ref_of(role, f)) for _, entries in got or () for e, f in entries if f]
        await self.drop_unknown(role, [entry for entry, ref in found if ref is None])
        return [(entry, ref) for entry, ref in found if ref is not None]

    async def ensure_group(self, role: str) -> None:
        """The stream and its group exist afterwards; the group begins at 0, so that no backlog is skipped."""
        with guard("make group"):
            try:
                await self._client.xgroup_create(self._keys.role(role), GROUP, id="0", mkstream=True)
            except rx.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise

    async def ack(self, role: str, done: Sequence[tuple[str, Ref]]) -> None:
        """Acknowledge and remove entries in one step."""
        if not done:
            return
        keys = [self._keys.role(role), self._keys.queued(role)]
        for k in range(0, len(done), ACK_MAX):
            args: list[Arg] = []
            for entry, ref in done[k : k + ACK_MAX]:
                args.extend((entry, ref.field))
            await self._scripts.run("ack", keys, args)

    async def pending_of(self, role: str, consumer: str, count: int = 500) -> list[tuple[str, Ref | None]]:
        """What a consumer holds: (entry, reference); None where the entry itself was deleted, or is no reference."""
        stream = self._keys.role(role)
        with guard("pending"):
            try:
                rows = await self._client.xpending_range(stream, GROUP, "-", "+", count, consumername=consumer)
            except rx.ResponseError as error:
                if str(error).startswith("NOGROUP"):
                    return []
                raise
            ids = [row["message_id"].decode() for row in rows]
            async with self._client.pipeline(transaction=False) as pipe:
                for entry in ids:
                    pipe.xrange(stream, entry, entry)
                found = await pipe.execute()
        return [(entry, ref_of(role, got[0][1]) if got else None) for entry, got in zip(ids, found, strict=True)]

    async def requeue(self, entry: str, ref: Ref) -> None:
        """Put an entry that was read but never claimed back into its stream, in one step."""
        keys = [self._keys.role(ref.role), self._keys.queued(ref.role)]
        await self._scripts.run("requeue", keys, [entry, ref.space, ref.task, ref.attempt])

    async def retire(self, role: str, consumer: str) -> bool:
        """Remove a dead consumer from the group; False while something is pending on it."""
        return bool(await self._scripts.run("retire", [self._keys.role(role)], [consumer]))

    async def drop_unknown(self, role: str, entries: Sequence[str]) -> None:
        """Acknowledge and remove pending entries whose message is gone, or is no reference."""
        if entries:
            with guard("ack"):
                await self._client.xack(self._keys.role(role), GROUP, *entries)
                await self._client.xdel(self._keys.role(role), *entries)

    async def backlog(self, roles: Sequence[str]) -> dict[str, int]:
        """Entries in each role's stream."""
        with guard("backlog"):
            async with self._client.pipeline(transaction=False) as pipe:
                for role in roles:
                    pipe.xlen(self._keys.role(role))
                lengths = await pipe.execute(raise_on_error=False)
        return {role: int(n) for role, n in zip(roles, lengths, strict=True) if not isinstance(n, rx.ResponseError)}

    async def short_roles(self, roles: Sequence[str]) -> list[str]:
        """Roles whose stream holds fewer entries than their companion names: someone else deleted or trimmed some."""
        with guard("backlog"):
            async with self._client.pipeline(transaction=False) as pipe:
                for role in roles:
                    pipe.xlen(self._keys.role(role))
                    pipe.hlen(self._keys.queued(role))
                counts = await pipe.execute(raise_on_error=False)
        pairs = zip(roles, counts[::2], counts[1::2], strict=True)  # a count may be an error: a key of another type
        return [
            role for role, there, named in pairs if isinstance(there, int) and isinstance(named, int) and there < named
        ]

    async def missing(self, role: str) -> list[tuple[str, Ref]]:
        """References whose entry is gone from the role's stream, with that entry's id. Costs the whole backlog."""
        stream = self._keys.role(role)
        out: list[tuple[str, Ref]] = []
        cursor = 0
        while True:
            with guard("missing entries"):
                cursor, page = await awaited(self._client.hscan(self._keys.queued(role), cursor, count=1000))
                async with self._client.pipeline(transaction=False) as pipe:
                    for entry in page.values():
                        pipe.xrange(stream, entry, entry)
                    found = await pipe.execute()
            gone = [pair for pair, there in zip(page.items(), found, strict=True) if not there]
            out += [(entry.decode(), ref) for name, entry in gone if (ref := ref_from(role, name.decode()))]
            if cursor == 0:
                return out

    async def consumers(self, role: str) -> list[str]:
        """The names of the group's consumers."""
        with guard("consumers"):
            try:
                rows = await awaited(self._client.xinfo_consumers(self._keys.role(role), GROUP))
            except rx.ResponseError:
                return []  # no stream or no group: nobody reads
            return [row["name"].decode() for row in rows]

    async def has_group(self, role: str) -> bool:
        with guard("group"):
            try:
                groups = await awaited(self._client.xinfo_groups(self._keys.role(role)))
            except rx.ResponseError:
                return False
            return any(g["name"] == GROUP.encode() for g in groups)


def ref_from(role: str, field: str) -> Ref | None:
    """The reference of a field of a role's companion, None for one that is none of ours. A task's id may hold colons,
    a space's name does not."""
    space, _, rest = field.partition(":")
    task, _, attempt = rest.rpartition(":")
    return Ref(role, space, task, int(attempt)) if is_name(space) and task and attempt.isdecimal() else None


def ref_of(role: str, fields: dict[bytes, bytes]) -> Ref | None:
    """The reference in an entry's fields; None where they are none (somebody wrote into the stream)."""
    try:
        ref = Ref(role, fields[b"s"].decode(), fields[b"t"].decode(), int(fields[b"a"]))
    except (KeyError, ValueError):
        return None
    return ref if is_name(ref.space) and ref.attempt >= 1 else None
