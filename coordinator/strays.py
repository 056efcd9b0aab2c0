"""Strays in the role streams: entries that someone deleted, consumers that nobody knows.

Guarantees: a task that is assigned has an entry again soon after its own was deleted or trimmed by someone else; a
consumer that is neither alive nor buried, or that came back after its burial (a stopped process whose read was still on
its way), has its entries taken care of and is removed. Level-triggered, so that several managers may do it at once.
Never takes an entry from a start that beats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from protocol.kit.logs import get_log
from protocol.stores.redis_dispatch import Ref, RoleStreams
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_workers import Workers

log = get_log(__name__)


class Strays:
    """One manager's eye on them. ``unknown_s``: how long a consumer may be unknown before it counts as dead."""

    def __init__(
        self, streams: RoleStreams, workers: Workers, store: RedisLog, *, unknown_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._streams = streams
        self._workers = workers
        self._store = store
        self._unknown_s = unknown_s
        self._clock = clock
        self._looked = float("-inf")
        self._unknown: dict[str, float] = {}

    async def look(self, roles: Sequence[str]) -> None:
        """Entries at every call (two counts a role), consumers every ``unknown_s``. Raises StoreError."""
        for role in await self._streams.short_roles(roles):
            await self.enqueue_missing(role)
        if self._clock() - self._looked >= self._unknown_s:
            self._looked = self._clock()
            await self.bury_unknown(roles)

    async def enqueue_missing(self, role: str) -> None:
        """What is assigned and lost its entry gets another; references of what is settled are forgotten."""
        missing = await self._streams.missing(role)
        again: list[tuple[str, Ref]] = []
        settled: list[tuple[str, Ref]] = []
        for entry, ref in missing:
            state = await self._store.task_state(ref.space, ref.task)
            waits = state is not None and state.state == "assigned" and state.attempt == ref.attempt
            (again if waits else settled).append((entry, ref))
        await self._streams.ack(role, settled)
        left = await self._streams.enqueue([ref for _, ref in again])
        if again:
            log.warning(
                "entries were deleted from a role's stream: enqueued again", role=role, tasks=len(again) - len(left)
            )

    async def bury_unknown(self, roles: Sequence[str]) -> None:
        """Consumers that nobody knows are buried; those of the buried that are there (again) are settled again."""
        role_of = {name: role for role in roles for name in await self._streams.consumers(role)}
        strangers = role_of.keys() - await self._workers.known(sorted(role_of))
        buried = await self._workers.buried(sorted(strangers))
        await self._workers.unsettle(sorted(buried))
        now = self._clock()
        self._unknown = {name: self._unknown.get(name, now) for name in strangers - buried}
        for name, since in self._unknown.items():
            if now - since >= self._unknown_s:
                log.warning("buried", start=name, why="a consumer that the register does not know")
                await self._workers.beat(
                    name, {"role": role_of[name], "kind": "worker"}
                )  # so that its grave says where
                await self._workers.bury(name, "unknown to the register")

    def forget(self) -> None:
        """Nobody watched for a while, or the server is another run: who is unknown gets a fresh window."""
        self._unknown.clear()
