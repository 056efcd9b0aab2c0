"""Agents' conversations on Redis: a stream of numbered entries, a hash of metadata, a mailbox stream.

Guarantees: a write is one script call that checks task, attempt and owner first; entries have no holes and are never
saved twice, so a write whose answer was lost may be sent again; a message leaves the mailbox in the same step in which
it enters the conversation. Never edits or removes an entry. Refuses by name what is past the stated limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import orjson

from protocol.errors import FenceLost, StoreFull, TaskError
from protocol.keys import Keys, SpaceKeys, check_name
from protocol.ports import Dispatch, Loaded, Mail, Saved
from protocol.record import Json
from protocol.stores.client import Client, awaited, guard
from protocol.stores.scripts import Arg, Scripts
from protocol.stores.wire import loads

CONVERSATION_MAX_BYTES: Final = 64 * 1024 * 1024
MAILBOX_MAX: Final = 1_000
PAGE: Final = 1_000
_OWN: Final = frozenset({"seq", "bytes", "agent_id", "created_ms", "updated_ms"})
"""Metadata that the script keeps; nobody else writes it."""


class RedisConversations:
    """The conversations of every space on one server."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        scripts: Scripts,
        *,
        max_bytes: int = CONVERSATION_MAX_BYTES,
        mailbox_max: int = MAILBOX_MAX,
    ) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts
        self._max_bytes = max_bytes
        self._mailbox_max = mailbox_max

    def open(self, dispatch: Dispatch) -> RedisConversation:
        """The conversation of ``dispatch.agent``, for this attempt alone. Touches nothing yet."""
        return RedisConversation(self._client, self._scripts, self._keys, dispatch, max_bytes=self._max_bytes)

    async def read(self, space: str, agent: str, *, after: int = 0) -> Loaded:
        """All that is saved of one agent, or the entries after number ``after``; no fence. An agent without a
        conversation is an empty one."""
        return await _load(self._client, self._keys.space(space), check_name(agent, "agent"), after)

    async def agents(self, space: str) -> dict[str, int]:
        """Every agent of the space that ever had a conversation, with its number."""
        with guard("agents"):
            found: dict[bytes, bytes] = await awaited(self._client.hgetall(self._keys.space(space).agents))
        return {name.decode(): int(number) for name, number in found.items()}

    async def meta(self, space: str, agent: str) -> tuple[dict[str, Json], int]:
        """An agent's metadata and the number of messages in its mailbox; no fence."""
        keys = self._keys.space(space)
        with guard("agent meta"):
            async with self._client.pipeline(transaction=False) as pipe:
                pipe.hgetall(keys.conv_meta(check_name(agent, "agent")))
                pipe.xlen(keys.mailbox(agent))
                found, waiting = await pipe.execute()
        return {name.decode(): orjson.loads(value) for name, value in found.items()}, waiting

    async def mail(self, space: str, agent: str, limit: int = MAILBOX_MAX) -> tuple[Mail, ...]:
        """What lies in a mailbox; it stays there."""
        return await _mail(self._client, self._keys.space(space), check_name(agent, "agent"), limit)

    async def count_word(self, space: str) -> int:
        """The number of the next thing that a person says in the space; the goal of a session was the first."""
        with guard("count word"):
            return 1 + int(await awaited(self._client.hincrby(self._keys.space(space).meta, "words", 1)))

    async def mark(self, space: str, agent: str, meta: Mapping[str, Json]) -> bool:
        """Set metadata of an agent without a fence, for people; False where it has no conversation."""
        key = self._keys.space(space).conv_meta(check_name(agent, "agent"))
        fields = {name: orjson.dumps(value) for name, value in meta.items() if name not in _OWN}
        with guard("mark"):
            if not await self._client.exists(key):
                return False
            await awaited(self._client.hset(key, mapping=cast("Any", fields)))
            return True

    async def post(self, space: str, agent: str, mail: Mail) -> bool:
        """Put a message into a mailbox; False where one with this id lies there already. StoreFull when it is full."""
        key = self._keys.space(space).mailbox(check_name(agent, "agent"))
        body = orjson.dumps(
            {
                "sender": mail.sender, "text": mail.text, "kind": mail.kind, "source": mail.source,
                "sender_agent": mail.sender_agent, "at_s": mail.at_s,
            }
        )  # fmt: skip
        answer = await self._scripts.run("post", [key], [self._mailbox_max, mail.id, body])
        word = answer[0].decode()
        if word == "full":
            raise StoreFull(
                f"the mailbox of {agent!r} holds {answer[1]} messages already",
                op="post",
                retryable=False,
                mend="wait until the agent has read them",
            )
        return bool(word == "ok")


class RedisConversation:
    """One agent's conversation in the hands of one attempt (see ``protocol.ports.Conversation``)."""

    def __init__(
        self, client: Client, scripts: Scripts, keys: Keys, dispatch: Dispatch, *,
        max_bytes: int = CONVERSATION_MAX_BYTES,
    ) -> None:  # fmt: skip
        check_name(dispatch.agent, "agent")
        self._client = client
        self._scripts = scripts
        self._keys = keys.space(dispatch.space)
        self._counter = keys.agent_ids
        self._dispatch = dispatch
        self._numbered = False
        self.max_bytes = max_bytes

    async def load(self) -> Loaded:
        """All that is saved."""
        loaded = await _load(self._client, self._keys, self._dispatch.agent)
        self._numbered = "agent_id" in loaded.meta
        return loaded

    async def write(
        self,
        first: int,
        entries: Sequence[tuple[str, Mapping[str, Json]]],
        *,
        meta: Mapping[str, Json] | None = None,
        taken: Sequence[str] = (),
    ) -> int:
        """One fenced, atomic step; returns how many messages wait. Raises FenceLost, StoreFull; TaskError
        (retryable) where the store has fewer entries than were written."""
        made, keys = self._dispatch, self._keys
        args: list[Arg] = [made.task, made.attempt, made.owner, made.agent, first, self.max_bytes, len(entries)]
        for kind, body in entries:
            args += [kind, orjson.dumps(body)]
        fields = {name: value for name, value in (meta or {}).items() if name not in _OWN}
        args.append(len(fields))
        for name, value in fields.items():
            args += [name, orjson.dumps(value)]
        args += [await self._number(), *taken]
        agent = made.agent
        slots = [keys.tasks, keys.conv(agent), keys.conv_meta(agent), keys.mailbox(agent), keys.agents]
        answer = await self._scripts.run("converse", slots, args)
        word = answer[0].decode()
        if word == "ok":
            self._numbered = True
            return int(answer[2])
        if word == "lost":
            why = answer[1].decode()
            raise FenceLost(f"task {made.task!r} attempt {made.attempt} is not {made.owner!r}'s any more: {why}")
        if word == "full":
            raise StoreFull(
                f"the conversation of {agent!r} is at its limit of {self.max_bytes} bytes",
                op="converse",
                retryable=False,
                mend="give the task to another agent",
            )
        # The server lost entries (it came back from an older file): the next attempt folds what is there.
        raise TaskError(
            f"the conversation of {agent!r} ends at entry {answer[1]}, not before {first}",
            kind="conversation_behind",
            retryable=True,
        )

    async def _number(self) -> int | str:
        """A number for an agent that has none: one of a kind in the store. Some stay unused where a write fails."""
        if self._numbered:
            return ""
        with guard("number"):
            known = await awaited(self._client.hexists(self._keys.agents, self._dispatch.agent))
            return "" if known else int(await self._client.incr(self._counter))

    async def close(
        self, first: int, entries: Sequence[tuple[str, Mapping[str, Json]]], *, meta: Mapping[str, Json] | None = None
    ) -> bool:
        """The last words of an attempt whose task was cancelled; False where nothing was saved."""
        made, keys = self._dispatch, self._keys
        args: list[Arg] = [made.task, made.attempt, first, len(entries)]
        for kind, body in entries:
            args += [kind, orjson.dumps(body)]
        for name, value in (meta or {}).items():
            if name not in _OWN:
                args += [name, orjson.dumps(value)]
        answer = await self._scripts.run("close", [keys.tasks, keys.conv(made.agent), keys.conv_meta(made.agent)], args)
        return bool(answer[0] == b"ok")

    async def mail(self, limit: int = 100) -> tuple[Mail, ...]:
        """The oldest messages in the mailbox; they stay there until a write takes them."""
        return await _mail(self._client, self._keys, self._dispatch.agent, limit)


async def _load(client: Client, keys: SpaceKeys, agent: str, after: int = 0) -> Loaded:
    """Metadata and mailbox first, then the entries in pages: what is added meanwhile is at the end."""
    with guard("conversation"):
        async with client.pipeline(transaction=False) as pipe:
            pipe.hgetall(keys.conv_meta(agent))
            pipe.xlen(keys.mailbox(agent))
            pipe.xrange(keys.conv(agent), min=f"({after}-0", count=PAGE)
            meta, waiting, page = await pipe.execute()
        entries: list[Saved] = [_entry(*found) for found in page]
        while len(page) == PAGE:
            page = await awaited(client.xrange(keys.conv(agent), min=f"({entries[-1].n}-0", count=PAGE))
            entries += [_entry(*found) for found in page]
    return Loaded(
        entries=tuple(entries),
        meta={name.decode(): orjson.loads(value) for name, value in meta.items()},
        mail=waiting,
    )


async def _mail(client: Client, keys: SpaceKeys, agent: str, limit: int) -> tuple[Mail, ...]:
    with guard("mail"):
        found: list[tuple[bytes, dict[bytes, bytes]]] = await awaited(client.xrange(keys.mailbox(agent), count=limit))
    return tuple(Mail(id=f[b"i"].decode(), entry=entry.decode(), **orjson.loads(f[b"d"])) for entry, f in found)


def _entry(entry: bytes, fields: Mapping[bytes, bytes]) -> Saved:
    return Saved(
        n=int(entry.split(b"-")[0]),
        kind=fields[b"k"].decode(),
        task=fields[b"s"].decode(),
        attempt=int(fields[b"a"]),
        at_ms=int(fields[b"t"]),
        body=loads(fields[b"d"]),
    )
