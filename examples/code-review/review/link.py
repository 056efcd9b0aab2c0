"""The review's own connection to the fleet's store: starts the session, reads its log on, fetches the merge.

Guarantees: incremental reads from a cursor, so that every record is read once, over a broken connection and a restarted
server too (which may come back at another address). Never leads, assigns or merges anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Self

import orjson

from coordinator import session
from coordinator.cli.store import person_name
from coordinator.outcome import Outcome, merged_text
from coordinator.person import Person
from protocol.errors import Refused, StoreUnreachable
from protocol.keys import Keys
from protocol.record import Record
from protocol.stores.client import Client, connect, guard
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_dispatch import RoleStreams
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_roles import Roles
from protocol.stores.redis_wake import Wake
from protocol.stores.redis_workers import WorkerInfo, Workers

PAGE = 500
WAIT_MS = 500
PAUSE_S = 0.25


class Link:
    """A connection to the store at ``url()``, which is asked again whenever the connection broke."""

    def __init__(self, url: Callable[[], str], prefix: str) -> None:
        self._url = url
        self._keys = Keys(prefix)
        self._open()

    def _open(self) -> None:
        self._at = self._url()
        self._client: Client = connect(self._at, pool=4)
        self.log = RedisLog(self._client, self._keys)
        self.workers = Workers(self._client, self._keys)
        self.artifacts = Artifacts(self._client, self._keys)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def start(self, plan: Mapping[str, Any]) -> str:
        """Start the session; its id. Raises PlanRefused or StoreError."""
        roles = await Roles(self._client, self._keys).all()
        return await session.start(
            session.Order(goal=plan["goal"], flow="plan", plan=dict(plan)),
            log=self.log,
            artifacts=self.artifacts,
            bell=Wake(self._client, self._keys),
            who=person_name(),
            known_roles=roles,
        )

    async def cancel(self, space: str) -> None:
        """Cancel the session, if it still can be."""
        streams, wake = RoleStreams(self._client, self._keys), Wake(self._client, self._keys)
        person = Person(self.log, streams, wake, Roles(self._client, self._keys), who=person_name())
        try:
            await person.session(space, "cancel", "the review was interrupted")
        except Refused:
            pass  # it has ended meanwhile

    async def records(self, space: str, tell: Callable[[str], None]) -> AsyncIterator[tuple[str, Record] | None]:
        """The session's records with their entries as they arrive, for ever; None whenever there is nothing new."""
        cursor = "0"
        while True:
            try:
                page = await self.log.read(space, since=cursor, limit=PAGE)
                for pair in zip(page.entries, page.records, strict=True):
                    yield pair
                cursor = page.next
                if not page.more:
                    yield None
                    with guard("follow"):
                        await self._client.xread({self._keys.space(space).log: cursor}, count=1, block=WAIT_MS)
            except StoreUnreachable as error:
                tell(f"{error.message}; trying again")
                yield None
                await asyncio.sleep(PAUSE_S)
                if self._url() != self._at:
                    await self._client.aclose()
                    self._open()

    async def worker(self, start: str) -> WorkerInfo | None:
        """A living start as its last beat told."""
        return next((info for info in await self.workers.live() if info.start == start), None)

    async def merged(self, outcome: Outcome) -> dict[str, Any]:
        """The merged artifact; empty where nothing was merged."""
        text = await merged_text(self.artifacts, outcome.session, outcome.merge, "json") if outcome.merge else None
        return dict(orjson.loads(text)) if text else {}
