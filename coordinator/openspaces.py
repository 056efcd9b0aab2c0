"""Which spaces are swept: those in which something is, or may come to be, under way.

Guarantees: each open space has its turn; one is given up only when nothing waits there, nothing of it lies in a role's
stream, and nobody has announced a write; what was given up too early (by somebody who died on the way) is found when a
manager starts. Never changes anything but the list.
"""

from __future__ import annotations

from typing import Final

from protocol.kit.logs import get_log
from protocol.record import is_name
from protocol.stores.redis_claims import Claims, SpaceLook
from protocol.stores.redis_log import RedisLog

log = get_log(__name__)
SPACES_A_SWEEP: Final = 200
QUIET_MS: Final = 10_000
"""A space that somebody made or opened more recently is not given up: a write is on its way."""


class OpenSpaces:
    """One manager's view of the list."""

    def __init__(self, store: RedisLog, claims: Claims) -> None:
        self._store = store
        self._claims = claims
        self._cursor = ""
        self._busy: dict[str, str] = {}
        """Spaces with a dispatch in a stream, otherwise idle -> up to which record that was looked up."""

    async def next(self) -> list[str]:
        """The next at most 200 open spaces, round and round."""
        spaces = await self._store.open_spaces()
        self._busy = {space: matter for space, matter in self._busy.items() if space in set(spaces)}
        if len(spaces) <= SPACES_A_SWEEP:
            return spaces
        later = [s for s in spaces if s > self._cursor][:SPACES_A_SWEEP]
        later += spaces[: SPACES_A_SWEEP - len(later)]
        self._cursor = later[-1]
        return later

    async def give_up(self, look: SpaceLook) -> None:
        """Nothing waits in this space: it need not be swept again until someone opens it."""
        if look.kind and await self._has_dispatches(look):
            return
        if not await self._store.close_space(look.space, quiet_ms=QUIET_MS):
            return
        again = (await self._claims.look([look.space], outbox_ms=0, overdue_ms=0, silent_ms=0))[0]
        if any(again.waiting) or again.matter != look.matter or again.kind != look.kind:
            await self._store.open_space(look.space)

    async def _has_dispatches(self, look: SpaceLook) -> bool:
        """Whether a dispatch of this idle space waits in a role's stream: no list of the space tells of it. Looked up
        once for each state of the space."""
        if self._busy.get(look.space) == look.matter:
            return True
        states = await self._store.task_states(look.space)
        if not any(state.state == "assigned" and is_name(state.role) for state in states.values()):
            return False
        self._busy[look.space] = look.matter
        return True

    async def find_given_up(self) -> None:
        """Once, at the start: spaces with something to do that are not swept. (Whoever gave one up died before it
        looked once more.)"""
        swept = set(await self._store.open_spaces())
        closed = [space for space in await self._store.spaces() if space not in swept]
        for at in range(0, len(closed), SPACES_A_SWEEP):
            part = closed[at : at + SPACES_A_SWEEP]
            for look in await self._claims.look(part, outbox_ms=0, overdue_ms=0, silent_ms=0, bad={}):
                if any(look.waiting) or (look.finish and look.judged != look.matter):
                    log.warning("a space was given up too early: swept again", space=look.space)
                    await self._store.open_space(look.space)
