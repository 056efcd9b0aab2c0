"""The manager: buries the dead, records losses, reassigns, fires what is overdue, enqueues again, merges.

Guarantees: every action is level-triggered from state and idempotent by identity, so that several managers may run and
any may die between two steps; ages count by the server's clock and only while someone watched; each sweep visits at
most 200 spaces and goes on where the last one ended; a space, role or grave that can't be cared for stops no other,
whatever somebody wrote there. Never runs a task and never calls a model.

    news (a ring) ──► look at those spaces ─┐
    every sweep_s ──► bury ─► graves ─► look at open spaces ──► outbox · overdue · held · silent · merge · close
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from coordinator.merging import Merging
from coordinator.openspaces import OpenSpaces
from coordinator.silence import Silence, lost_agents
from coordinator.strays import Strays
from coordinator.takeover import Takeover
from protocol.errors import StoreError
from protocol.keys import Keys
from protocol.kit.crash import crash_point
from protocol.kit.lifecycle import Stopping, cancelled
from protocol.kit.logs import get_log
from protocol.kit.metrics import Metrics
from protocol.kit.patience import Patience
from protocol.kit.settings import Settings
from protocol.record import is_name
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
OVERDUE_MS: Final = 2_000
OUTBOX_MS: Final = 2_000
GAP_S: Final = 5.0
"""A pause of the watch longer than this gives everyone a full interval again."""
BY: Final = {"actor": "manager"}


@dataclass
class _Watching:
    """What this manager remembers between sweeps; none of it is needed after its death."""

    last_sweep: float = 0.0
    server_ms: int = 0
    """The server's clock at that sweep."""
    since_ms: int = 0
    run_id: str = ""
    unknown: dict[str, float] = field(default_factory=dict)
    """Owners that are neither alive nor buried (their register was lost) -> since when."""
    said: dict[str, str] = field(default_factory=dict)
    """What can't be cared for -> why, as last logged."""


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
        self._spaces = OpenSpaces(self._store, self._claims)
        self._strays = Strays(self._streams, self._workers, self._store, unknown_s=settings.dead_s)
        self._merging = Merging(self._store, Artifacts(client, keys), self._roles)
        self._seen = _Watching()
        self._role_names: tuple[str, ...] = ()

    async def run(self, stopping: Stopping) -> None:
        """Manage until draining begins."""
        patience = Patience(stopping)
        log.info("manager started", start=self.start)
        beating = asyncio.create_task(self._beat(stopping))
        listening = asyncio.create_task(self._listen(stopping, patience))
        reopening = asyncio.create_task(patience("spaces", partial(self._each, "spaces", self._spaces.find_given_up)))
        try:
            while not stopping.draining:
                began = time.monotonic()
                await patience("sweep", self.sweep)
                await stopping.sleep(max(0.0, self._settings.sweep_s - (time.monotonic() - began)))
        finally:
            await cancelled((beating, listening, reopening))
            if not stopping.now:
                await self._leave()

    async def sweep(self) -> None:
        """One sweep of everything that is level-triggered."""
        await self._refresh_watch()
        stalled = self._settings.stalled_lost_s
        buried = await self._workers.sweep(
            dead_ms=int(self._settings.dead_s * 1000), run_id=self._seen.run_id,
            stalled_lost_ms=int(stalled * 1000) if stalled else 0, every_ms=int(self._settings.sweep_s * 1000),
        )  # fmt: skip
        for start in buried:
            log.warning("buried", start=start, why="no beat")
        await self._settle_graves()
        await self._mend_streams()
        await self._each("strays", partial(self._strays.look, self._role_names))
        await self.look(await self._spaces.next())
        await self._each("metrics", self._measure)

    async def look(self, spaces: list[str]) -> None:
        """Look at spaces and do what waits there; one bad space never stops the others."""
        if not spaces:
            return
        bad: dict[str, StoreError] = {}
        looks = await self._claims.look(
            spaces, outbox_ms=OUTBOX_MS, overdue_ms=OVERDUE_MS, silent_ms=int(self._settings.lost_s * 1000), bad=bad
        )
        for space, error in bad.items():
            self._say(f"space {space}", error)
        for look in looks:
            await self._each(f"space {look.space}", partial(self._care, look))

    async def _each(self, what: str, act: Callable[[], Awaitable[object]]) -> None:
        """One thing to care for among many: what is wrong with it is said once and stops no other. A store that is
        away is passed on."""
        try:
            await act()
        except StoreError as error:
            if error.retryable:
                raise
            self._say(what, error)
        except Exception as error:  # noqa: BLE001 - a record by hand that no code foresaw must not end every manager
            self._say(what, error)
        else:
            self._seen.said.pop(what, None)

    def _say(self, what: str, error: Exception) -> None:
        words = f"{type(error).__name__}: {error}"
        if self._seen.said.get(what) != words:
            self._seen.said[what] = words
            log.error("can't be cared for", what=what, error=error, why=words)

    async def _care(self, look: SpaceLook) -> None:
        if not look.kind:
            await self._spaces.give_up(look)
            return
        await self._enqueue_again(look)
        for task, state in look.overdue:
            fired = await self._claims.fire(look.space, task, state.attempt, who="manager", by=BY)
            if fired.ref is not None:
                log.info("overdue alarm fired", space=look.space, task=task, attempt=state.attempt)
                await self._enqueue([fired.ref])
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
            await self._spaces.give_up(look)

    async def _enqueue_again(self, look: SpaceLook) -> None:
        refs = [Ref(state.role, look.space, task, state.attempt) for task, state in look.outbox]
        waiting = [ref for ref, (_, state) in zip(refs, look.outbox, strict=True) if state.state == "assigned"]
        if waiting:
            log.info("enqueued again", space=look.space, tasks=len(waiting))
            await self._enqueue(waiting)
        await self._streams.clear_outbox([ref for ref in refs if ref not in waiting])

    async def _enqueue(self, refs: list[Ref]) -> None:
        """Enqueue what a role can be asked for. What an outside agent assigned to a name that can be no role's waits
        in no stream: who was meant reads the log."""
        full = await self._streams.enqueue([ref for ref in refs if is_name(ref.role)])
        await self._streams.postpone(full)
        await self._streams.clear_outbox([ref for ref in refs if not is_name(ref.role)])

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

    async def _settle_graves(self) -> None:
        for grave in await self._workers.graves(unsettled=True):
            await self._each(f"grave {grave.start}", partial(self._settle, grave))

    async def _settle(self, grave: Grave) -> None:
        if grave.info.get("kind", "worker") == "worker":
            crash_point("manager.after_grave")
            await self._takeover.settle(grave)
        else:
            await self._workers.settled(grave.start)

    async def _mend_streams(self) -> None:
        """A role whose stream or group is gone gets it back, and its assigned tasks are enqueued again."""
        self._role_names = tuple(sorted(filter(is_name, await self._roles.all())))
        for role in self._role_names:
            await self._each(f"role {role}", partial(self._mend_stream, role))

    async def _mend_stream(self, role: str) -> None:
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

    async def _refresh_watch(self) -> None:
        """Whether nobody watched for a while, the server is another run, or its clock was set."""
        seen, now, run_id = self._seen, time.monotonic(), await self._workers.run_id()
        server_ms = await self._store.now_ms()
        passed = now - seen.last_sweep
        stepped = abs((server_ms - seen.server_ms) / 1000 - passed) > GAP_S
        if passed > max(GAP_S, 2 * self._settings.sweep_s) or stepped or run_id != seen.run_id:
            seen.since_ms = server_ms
            seen.run_id = run_id
            seen.unknown.clear()
            self._strays.forget()
        seen.last_sweep, seen.server_ms = now, server_ms

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
