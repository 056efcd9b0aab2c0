"""Takeover: the dead's tasks become losses, and losses become new assignments or wait for a person.

Guarantees: level-triggered from state, so that a manager may die between any two steps and several may do the same at
once: the loss of an attempt is one identity, the next assignment another. A task that was read but never claimed goes
back unharmed. Never buries anyone and never takes from a start that lives.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from protocol.kit.crash import crash_point
from protocol.kit.logs import get_log
from protocol.kit.metrics import Metrics
from protocol.record import Record, Trace, is_name
from protocol.stores.redis_dispatch import Ref, RoleStreams
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_wake import Wake
from protocol.stores.redis_workers import Grave, Workers
from protocol.tasks import TaskState

log = get_log(__name__)
WHO: Final = "manager"
PENDING_AT_ONCE: Final = 500


class Takeover:
    """What follows a grave."""

    def __init__(
        self, *, store: RedisLog, streams: RoleStreams, workers: Workers, wake: Wake, metrics: Metrics, tries: int,
        now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._streams = streams
        self._workers = workers
        self._wake = wake
        self._metrics = metrics
        self._tries = tries
        self._now = now

    async def settle(self, grave: Grave) -> None:
        """Take care of everything that the buried start held; the grave is settled when nothing is left."""
        if not is_name(grave.role):  # somebody forged a start: no stream can have it as a consumer
            await self._workers.settled(grave.start)
            return
        while True:
            pending = await self._streams.pending_of(grave.role, grave.start, PENDING_AT_ONCE)
            if not pending:
                break
            gone = [entry for entry, ref in pending if ref is None]
            if gone:
                log.warning("entries of a dead start were deleted from its stream", role=grave.role, entries=len(gone))
                await self._streams.drop_unknown(grave.role, gone)
            for entry, ref in pending:
                if ref is not None:
                    await self._settle_entry(grave, entry, ref)
        if await self._streams.retire(grave.role, grave.start):
            await self._workers.settled(grave.start)

    async def _settle_entry(self, grave: Grave, entry: str, ref: Ref) -> None:
        state = await self._store.task_state(ref.space, ref.task)
        if state is not None and state.attempt == ref.attempt and state.state == "assigned":
            await self._streams.requeue(entry, ref)  # read, never claimed: nothing was started, no try is lost
            return
        if state is not None and state.attempt == ref.attempt and state.owner == grave.start:
            await self.lose(ref.space, ref.task, state, grave)
        await self._streams.ack(grave.role, [(entry, ref)])

    async def lose(self, space: str, task: str, state: TaskState, grave: Grave) -> None:
        """Record the loss of an attempt (once), then do what the space's policy says."""
        last_seen = grave.last_beat_ms // 1000
        silent_s = max(0.0, (grave.at_ms - grave.last_beat_ms) / 1000)
        detail = {
            "agent": state.agent or state.role, "last_seen": last_seen, "attempt": state.attempt, "worker": grave.start,
            "reason": grave.reason, "silent_s": round(silent_s, 1), "by": {"actor": WHO},
        }  # fmt: skip
        what = f"the worker of {task} is lost ({grave.reason}): last beat {silent_s:.0f} s before its burial"
        step = await self._store.append_step(
            space, [await self._record(space, task, state, "task_agent_lost", what, detail)]
        )
        if not step.ok:
            log.info("no loss", task=task, why=step.message)  # it was delivered, cancelled or lost meanwhile
            return
        if step.outcomes[0].outcome == "added":
            self._metrics.add("rolecall_agents_lost_total", role=state.role)
            log.warning(
                "agent lost", space=space, task=task, attempt=state.attempt, worker=grave.start, why=grave.reason
            )
        crash_point("manager.after_loss")
        await self.resolve(space, task)

    async def resolve(self, space: str, task: str, policy: str | None = None) -> None:
        """A lost task goes on by its space's policy: the next attempt, a block after the last try, or it is held."""
        state = await self._store.task_state(space, task)
        if state is None or state.state != "lost":
            return
        if policy is None:
            policy = (await self._store.meta(space)).get("policy", "hold")
        if state.tries >= self._tries:
            reason = f"lost or failed {state.tries} times"
            detail = {
                "attempt": state.attempt, "requires_human_intervention": True, "reason": reason, "by": {"actor": WHO},
            }  # fmt: skip
            what = f"{task} needs a person: {reason}"
            await self._store.append_step(space, [await self._record(space, task, state, "task_blocked", what, detail)])
        elif policy == "reassign" and is_name(state.role):
            await self._reassign(space, task, state)
        else:
            return
        await self._wake.ring([space])

    async def _reassign(self, space: str, task: str, state: TaskState) -> None:
        assigned = await self._last_assignment(space, state)
        attempt = state.attempt + 1
        detail = {
            **(assigned.detail if assigned else {"role": state.role, "agent": state.agent}),
            "attempt": attempt, "by": {"actor": WHO, "takeover_of": state.attempt},
        }  # fmt: skip
        what = f"{task} is taken over: attempt {attempt} goes to {state.agent or state.role}"
        record = await self._record(space, task, state, "task_assigned", what, detail)
        step = await self._store.append_step(space, [record])
        if not step.ok:
            return
        log.info("reassigned", space=space, task=task, attempt=attempt, role=state.role)
        crash_point("manager.after_reassign")
        await self._streams.enqueue([Ref(state.role, space, task, attempt)])

    async def _record(
        self, space: str, task: str, state: TaskState, event: str, what: str, detail: dict[str, object]
    ) -> Record:
        assigned = await self._last_assignment(space, state)
        trace = assigned.trace if assigned else Trace(parent_id=None, session_id=space)
        return Record(
            id=task, who=WHO, time=int(self._now()), event=event, what=what, detail=detail, trace=trace,  # type: ignore[arg-type]  # one of the 17
        )  # fmt: skip

    async def _last_assignment(self, space: str, state: TaskState) -> Record | None:
        entry = state.last_assignment
        if entry is None:  # an outside agent's task that nobody assigned
            entry = next((entry for _, entry in state.seen.values()), None)
        return await self._store.get(space, entry) if entry else None
