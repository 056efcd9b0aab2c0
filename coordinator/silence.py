"""Agents that are not fleet workers: silent for longer than allowed, they are lost.

Guarantees: silence is measured by arrival at the store; exactly the limit is not yet lost; a loss is written once for
each task that the agent held, or once under its own id; after a pause of the watcher everyone has a full interval.
Never judges waiting agents and never fleet workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from protocol.kit.logs import get_log
from protocol.record import Record, Trace
from protocol.stores.redis_log import RedisLog
from protocol.tasks import TaskState, agent_id

log = get_log(__name__)
WHO: Final = "manager"
HELD: Final = ("started", "assigned", "processing")


def lost_agents(signs: Mapping[str, int], *, now_ms: int, since_ms: int, lost_s: float) -> list[str]:
    """Which agents are lost at ``now_ms``: agent -> server ms of its last sign; nobody is judged for the time before
    ``since_ms``, when the watch began (again). A sign from the future (the clock was set back) counts from there as
    well. Pure."""
    limit = lost_s * 1000
    return sorted(
        agent for agent, last in signs.items() if now_ms - (since_ms if last > now_ms else max(last, since_ms)) > limit
    )


def tasks_of(agent: str, states: Mapping[str, TaskState]) -> list[tuple[str, TaskState]]:
    """The tasks that an outside agent holds. Pure."""
    return [
        (task, state)
        for task, state in states.items()
        if state.state in HELD
        and not state.fleet_owned
        and (state.owner == f"~{agent}" or (not state.owner and state.agent == agent))
    ]


class Silence:
    """Records the losses of silent outside agents."""

    def __init__(self, store: RedisLog, *, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now

    async def record(self, space: str, agent: str, last_ms: int) -> list[str]:
        """Write the losses of one silent agent; the tasks that it held."""
        states = await self._store.task_states(space)
        held = tasks_of(agent, states)
        if not held and any(s.state == "waiting" and s.agent == agent for s in states.values()):
            await self._store.postpone_sign(space, agent, last_ms)  # who waits for an answer has nothing to say
            return []
        session = (await self._store.meta(space)).get("session", space)
        by = {"actor": WHO}
        records = [
            self._loss(
                task, {"agent": agent, "last_seen": last_ms // 1000, "attempt": state.attempt, "by": by}, session, agent
            )
            for task, state in held
        ]
        if not held:
            records = [await self._own_loss(space, agent, last_ms, session)]
        for record in records:
            await self._store.append_step(space, [record])
        await self._store.forget_sign(space, agent, last_ms)
        log.warning("agent lost", space=space, agent=agent, tasks=len(held))
        return [task for task, _ in held]

    async def _own_loss(self, space: str, agent: str, last_ms: int, session: str) -> Record:
        """The loss of an agent that held nothing: under its own id, numbered from its second loss on."""
        detail: dict[str, object] = {
            "agent": agent,
            "last_seen": last_ms // 1000,
            "last_sign_ms": last_ms,
            "by": {"actor": WHO},
        }
        number, own = 1, agent_id(agent)
        while True:
            id = own if number == 1 else f"{own}#{number}"
            known = await self._store.find(space, id)
            if known is None or known.detail.get("last_sign_ms") == last_ms:
                return self._loss(id, detail, session, agent)
            number += 1

    def _loss(self, id: str, detail: dict[str, object], session: str, agent: str) -> Record:
        return Record(
            id=id,
            who=WHO,
            time=int(self._now()),
            event="task_agent_lost",
            what=f"{agent} is lost: no sign of life",
            detail=detail,
            trace=Trace(parent_id=None, session_id=session),
        )
