"""The manager: buries the dead, records losses, reassigns, fires what is overdue, enqueues again, merges.

Guarantees: every action is level-triggered from state and idempotent by identity, so that several managers may run and
any may die between two steps; ages count by the server's clock and only while someone watched; each sweep visits at
most 200 spaces and goes on where the last one ended. Never runs a task and never calls a model.

    news (a ring) ──► look at those spaces ─┐
    every sweep_s ──► bury ─► graves ─► look at open spaces ──► outbox · overdue · held · silent · merge · close
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from coordinator.merging import Merging
from coordinator.silence import Silence, lost_agents
from coordinator.takeover import Takeover
from protocol.errors import StoreError
from protocol.keys import Keys
from protocol.kit.crash import crash_point
from protocol.kit.lifecycle import Stopping, cancelled
from protocol.kit.logs import get_log
from protocol.kit.metrics import Metrics
from protocol.kit.patience import Patience
from protocol.kit.settings import Settings
from protocol.stores.client import Client
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_claims import Claims, SpaceLook
from protocol.stores.redis_dispatch import Ref, RoleStreams
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_roles import Roles
from protocol.stores.redis_wake import Wake
from protocol.stores.redis_workers import Grave, Workers
from protocol.stores.scripts import Scripts

log = get_log(__name__)
SPACES_A_SWEEP: Final = 200
OVERDUE_MS: Final = 2_000
OUTBOX_MS: Final = 2_000
GAP_S: Final = 5.0
"""A pause of the watch longer than this gives everyone a full interval again."""
BY: Final = {"actor": "manager"}


@dataclass
class _Watching:
    """What this manager remembers between sweeps; none of it is needed after its death."""

    last_sweep: float = 0.0
    since_ms: int = 0
    run_id: str = ""
    cursor: str = ""
    unknown: dict[str, float] = field(default_factory=dict)
    """Owners that are neither alive nor buried (their register was lost) -> since when."""


class Manager:
    """One manager process."""

    def __init__(
        self, client: Client, reader: Client, keys: Keys, settings: Settings, metrics: Metrics, *, host: str = "host"
    ) -> None:
        scripts = Scripts(client)
        self.start = f"manager@{host}:{os.getpid()}:{secrets.token_hex(4)}"
        self._settings = settings
        self._metrics = metrics
        self._client = client
        self._keys = keys
        self._store = RedisLog(client, keys, scripts)
        self._streams = RoleStreams(client, keys, scripts)
        self._claims = Claims(client, keys, scripts)
        self._workers = Workers(client, keys, scripts, stalled_s=settings.stalled_s)
        self._roles = Roles(client, keys)
        self._wake = Wake(client, keys, reader=reader)
        self._takeover = Takeover(
            store=self._store, streams=self._streams, workers=self._workers, wake=self._wake, metrics=metrics,
            tries=settings.tries,
        )  # fmt: skip
        self._silence = Silence(self._store)
        self._merging = Merging(self._store, Artifacts(client, keys), self._roles)
        self._seen = _Watching()
        self._role_names: tuple[str, ...] = ()

    async def run(self, stopping: Stopping) -> None:
        """Manage until draining begins."""
        patience = Patience(stopping)
        log.info("manager started", start=self.start)
        beating = asyncio.create_task(self._beat(stopping))
        listening = asyncio.create_task(self._listen(stopping, patience))
        try:
            while not stopping.draining:
                began = time.monotonic()
                await patience("sweep", self.sweep)
                await stopping.sleep(max(0.0, self._settings.sweep_s - (time.monotonic() - began)))
        finally:
            await cancelled((beating, listening))
            await self._leave()

    async def sweep(self) -> None:
        """One sweep of everything that is level-triggered."""
        await self._refresh_watch()
        stalled = self._settings.stalled_lost_s
        buried = await self._workers.sweep(
            dead_ms=int(self._settings.dead_s * 1000), run_id=self._seen.run_id,
            stalled_lost_ms=int(stalled * 1000) if stalled else 0,
        )  # fmt: skip
        for start in buried:
            log.warning("buried", start=start, why="no beat")
        await self._settle_graves()
        await self._mend_streams()
        spaces = await self._next_spaces()
        await self.look(spaces)
        await self._measure()

    async def look(self, spaces: list[str]) -> None:
        """Look at spaces and do what waits there; one bad space never stops the others."""
        if not spaces:
            return
        looks = await self._claims.look(
            spaces, outbox_ms=OUTBOX_MS, overdue_ms=OVERDUE_MS, silent_ms=int(self._settings.lost_s * 1000)
        )
        for look in looks:
            try:
                await self._care(look)
            except StoreError as error:
                if error.retryable:
                    raise
                log.error("a space can't be cared for", space=look.space, why=str(error))

    async def _care(self, look: SpaceLook) -> None:
        if not look.kind:
            await self._store.close_space(look.space)
            return
        await self._enqueue_again(look)
        for task, state in look.overdue:
            fired = await self._claims.fire(look.space, task, state.attempt, who="manager", by=BY)
            if fired.ref is not None:
                log.info("overdue alarm fired", space=look.space, task=task, attempt=state.attempt)
                await self._streams.enqueue([fired.ref])
        await self._care_for_held(look)
        for agent in lost_agents(
            look.silent, now_ms=look.now_ms, since_ms=self._seen.since_ms, lost_s=self._settings.lost_s
        ):
            for task in await self._silence.record(look.space, agent, look.silent[agent]):
                await self._takeover.resolve(look.space, task, look.policy)
        if look.finish and look.judged != look.matter:
            await self._merging.settle(look.space)
            await self._wake.ring([look.space])
        elif not any(look.waiting) and (look.finish or look.kind != "session"):
            await self._close(look)

    async def _enqueue_again(self, look: SpaceLook) -> None:
        refs = [
            Ref(state.role, look.space, task, state.attempt) for task, state in look.outbox if state.state == "assigned"
        ]
        if refs:
            log.info("enqueued again", space=look.space, tasks=len(refs))
            await self._streams.enqueue(refs)
        stale = [Ref(state.role, look.space, task, 0) for task, state in look.outbox if state.state != "assigned"]
        await self._streams.clear_outbox(stale)

    async def _care_for_held(self, look: SpaceLook) -> None:
        """Tasks whose holder is buried although no entry tells so, and losses that wait for their policy."""
        owners = sorted({owner for owner in look.held.values() if owner != "!lost"})
        buried = await self._workers.buried(owners)
        alive = await self._workers.known([o for o in owners if o not in buried])
        now = time.monotonic()
        for owner in owners:
            if owner in buried or owner in alive:
                self._seen.unknown.pop(owner, None)
            elif now - self._seen.unknown.setdefault(owner, now) > self._settings.dead_s:
                await self._workers.bury(owner, "unknown to the register")
        graves = {g.start: g for g in await self._workers.graves()} if buried else {}
        for task, owner in look.held.items():
            if owner == "!lost":
                await self._takeover.resolve(look.space, task, look.policy)
            elif owner in buried:
                state = await self._store.task_state(look.space, task)
                if state is not None and state.owner == owner:
                    grave = graves.get(owner) or Grave(owner, state.role, "buried", look.now_ms, look.now_ms)
                    await self._takeover.lose(look.space, task, state, grave)

    async def _close(self, look: SpaceLook) -> None:
        """Nothing waits here: the sweep need not come by again until someone opens the space."""
        await self._store.close_space(look.space)
        again = (await self._claims.look([look.space], outbox_ms=0, overdue_ms=0, silent_ms=0))[0]
        if any(again.waiting) or again.matter != look.matter:
            await self._store.open_space(look.space)

    async def _settle_graves(self) -> None:
        for grave in await self._workers.graves(unsettled=True):
            if grave.info.get("kind", "worker") == "worker":
                crash_point("manager.after_grave")
                await self._takeover.settle(grave)
            else:
                await self._workers.settled(grave.start)

    async def _mend_streams(self) -> None:
        """A role whose stream or group is gone gets it back, and its assigned tasks are enqueued again."""
        self._role_names = tuple(sorted(await self._roles.all()))
        for role in self._role_names:
            if not await self._streams.has_group(role):
                await self._streams.ensure_group(role)
                log.warning("stream or group was missing: made again", role=role)
                await self._enqueue_role(role)

    async def _enqueue_role(self, role: str) -> None:
        for space in await self._store.open_spaces():
            states = await self._store.task_states(space)
            refs = [
                Ref(role, space, t, s.attempt) for t, s in states.items() if s.state == "assigned" and s.role == role
            ]
            await self._streams.enqueue(refs)

    async def _next_spaces(self) -> list[str]:
        """The next at most 200 open spaces, round and round."""
        spaces = await self._store.open_spaces()
        if len(spaces) <= SPACES_A_SWEEP:
            return spaces
        later = [s for s in spaces if s > self._seen.cursor][:SPACES_A_SWEEP]
        later += spaces[: SPACES_A_SWEEP - len(later)]
        self._seen.cursor = later[-1]
        return later

    async def _refresh_watch(self) -> None:
        now, run_id = time.monotonic(), await self._workers.run_id()
        if now - self._seen.last_sweep > GAP_S or run_id != self._seen.run_id:
            self._seen.since_ms = await self._store.now_ms()
            self._seen.run_id = run_id
            self._seen.unknown.clear()
        self._seen.last_sweep = now

    async def _listen(self, stopping: Stopping, patience: Patience) -> None:
        """Act on news at once; what a lost ring would have told, the next sweep finds."""
        last = await patience("listen", self._wake.now) or "0-0"
        while not stopping.draining:
            heard = await patience("listen", partial(self._wake.listen, last, 2_000))
            if heard is None:
                return
            last, news = heard
            if "" in news:
                news.discard("")
                await patience("graves", self._settle_graves)
            await patience("look", partial(self.look, sorted(news)))

    async def _beat(self, stopping: Stopping) -> None:
        info = {
            "role": "manager",
            "kind": "manager",
            "pid": os.getpid(),
            "host": self.start.split("@")[1].split(":")[0],
        }
        while not stopping.draining:
            try:
                if not await self._workers.beat(self.start, info):
                    self.start = f"{self.start.rpartition(':')[0]}:{secrets.token_hex(4)}"
            except StoreError:
                pass  # the sweep says that the store is away
            await stopping.sleep(self._settings.beat_s)

    async def _leave(self) -> None:
        try:
            await asyncio.wait_for(self._workers.bury(self.start, "left"), 2)
        except (StoreError, TimeoutError):
            pass

    async def _measure(self) -> None:
        backlog = await self._streams.backlog(self._role_names)
        for role, length in backlog.items():
            self._metrics.admit("role", role)
            self._metrics.set("rolecall_role_backlog", length, role=role)
        counts: dict[tuple[str, str], int] = {
            (role, state): 0 for role in self._role_names for state in ("live", "stalled")
        }
        for worker in await self._workers.live():
            if worker.kind == "worker":
                counts[worker.role, worker.state] = counts.get((worker.role, worker.state), 0) + 1
        for (role, state), n in counts.items():
            self._metrics.set("rolecall_workers", n, role=role, state=state)
