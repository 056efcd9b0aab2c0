"""Imported conversations on Redis: a space of kind ``imported`` holds one, whole, as it was read from files.

Its messages are entries of conversation streams, as a worker's journal writes them, so that whatever reads an agent's
history reads these too; everything that stands beside them is kept word for word in the space's ``docs``.

Guarantees: a space counts as imported only when all of it is there (until then its kind is ``importing``); no number of
an imported agent is given out again. Never touches a space of another kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from protocol.errors import StoreFull
from protocol.keys import Keys, check_name
from protocol.ports import Loaded
from protocol.record import Json
from protocol.stores.client import Client, awaited, guard
from protocol.stores.redis_conversations import CONVERSATION_MAX_BYTES, RedisConversations
from protocol.stores.redis_log import RedisLog
from protocol.stores.scripts import Scripts
from protocol.stores.wire import json_text

KIND: Final = "imported"
UNDER_WAY: Final = "importing"
OWN: Final = "_session"
"""In a space of this kind: the name under which the session's own conversation is kept."""
BATCH: Final = 500
_KIND_OF: Final[Mapping[str, str]] = {"assistant": "reply", "tool": "result"}


class Imports:
    """The imported conversations of one store."""

    def __init__(self, client: Client, keys: Keys, scripts: Scripts, log: RedisLog) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts
        self._log = log
        self._conversations = RedisConversations(client, keys, scripts)

    async def begin(self, space: str, meta: Mapping[str, str]) -> bool:
        """Make the space, empty; False where there is one of that name."""
        if await self._log.exists(space):
            return False
        made = await self._log.create(space, meta={**meta, "kind": UNDER_WAY, "session": space})
        if made:
            await self._log.close_space(space)
        return made

    async def wipe(self, space: str) -> None:
        """Take back what an earlier import left, before it is written again."""
        keys = self._keys.space(space)
        names = [*await self._conversations.agents(space), OWN]
        doomed = [key for name in names for key in (keys.conv(name), keys.conv_meta(name), keys.mailbox(name))]
        with guard("wipe import"):
            await awaited(self._client.hset(keys.meta, "kind", UNDER_WAY))
            await self._client.delete(*doomed, keys.agents, keys.docs)

    async def keep(self, space: str, docs: Mapping[str, str]) -> None:
        """Keep what stands beside the messages: path -> text."""
        if docs:
            with guard("keep documents"):
                await awaited(self._client.hset(self._keys.space(space).docs, mapping=cast("Any", dict(docs))))

    async def docs(self, space: str) -> dict[str, str]:
        """What `keep` kept."""
        with guard("documents"):
            found = await awaited(self._client.hgetall(self._keys.space(space).docs))
        return {name.decode(): text.decode() for name, text in found.items()}

    async def put(
        self, space: str, agent: str, number: int, messages: Sequence[Json], meta: Mapping[str, Json]
    ) -> None:
        """Write one conversation; number 0 (the session's own) is nobody's. Raises StoreFull past the limit."""
        keys = self._keys.space(space)
        bodies = [self._entry(message) for message in messages]
        size = sum(len(data) for _, data in bodies)
        if size > CONVERSATION_MAX_BYTES:
            raise StoreFull(
                f"the conversation of {agent!r} has {size} bytes, at most {CONVERSATION_MAX_BYTES}", op="import",
                retryable=False, mend="leave it out",
            )  # fmt: skip
        at = str(await self._log.now_ms())
        with guard("import"):
            for first in range(0, len(bodies), BATCH):
                async with self._client.pipeline(transaction=False) as pipe:
                    for n, (kind, data) in enumerate(bodies[first : first + BATCH], first + 1):
                        fields: dict[Any, Any] = {"k": kind, "s": KIND, "a": 0, "t": at, "d": data}
                        pipe.xadd(keys.conv(check_name(agent, "agent")), fields, id=f"{n}-0")
                    await pipe.execute()
            own: dict[str, Json] = {
                **meta, "seq": len(bodies), "bytes": size, "agent_id": number, "created_ms": int(at),
                "updated_ms": int(at),
            }  # fmt: skip
            mapping = cast("Any", {name: json_text(value) for name, value in own.items()})
            await awaited(self._client.hset(keys.conv_meta(agent), mapping=mapping))
            if number:
                await awaited(self._client.hset(keys.agents, agent, str(number)))
        await self._scripts.run("raise", [self._keys.agent_ids], [number])

    async def done(self, space: str, meta: Mapping[str, str], counter: int) -> None:
        """All of it is there. ``counter``: no agent of this store gets a number up to it any more."""
        await self._scripts.run("raise", [self._keys.agent_ids], [counter])
        await self._log.set_meta(space, {**meta, "kind": KIND})

    async def read(self, space: str, agent: str) -> Loaded:
        """One conversation as it was put; `OWN` is the session's."""
        return await self._conversations.read(space, agent)

    @staticmethod
    def _entry(message: Json) -> tuple[str, bytes]:
        role = message.get("role") if isinstance(message, dict) else None
        body: dict[str, Json] = {"message": message}
        if role == "tool":
            body |= {"call": message.get("tool_call_id"), "ok": True, "run": False}
        return _KIND_OF.get(str(role), "message"), json_text(body)
