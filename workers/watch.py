"""What a worker keeps an eye on while turns run: its attempts in the store, its own grave, the server's run.

Guarantees: at least once a second, in one round trip, every running attempt is compared with the store; one that was
taken over or cancelled is stopped within about a second. Writes the heartbeat records of long turns and the sign that
this role is served. Never takes, buries or reassigns anything.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from secrets import token_hex
from typing import Final

from protocol.errors import StoreError
from protocol.keys import Keys
from protocol.kit.logs import get_log
from protocol.record import Record, Trace
from protocol.stores.client import Client, guard
from protocol.stores.redis_log import RedisLog
from protocol.tasks import TaskState, unpack
from workers.consumer import Consumer, Hand
from workers.heartbeat import Heart

log = get_log(__name__)
EVERY_S: Final = 0.75
READ_SILENCE_S: Final = 8.0
"""A consumer that has not come back from a read for longer is deaf: the role is not served by it."""


class Watch:
    """Watches for one start."""

    def __init__(
        self, consumer: Consumer, *, client: Client, keys: Keys, store: RedisLog, heart: Heart, heartbeat_s: float,
        dead_s: float, now: Callable[[], float],
    ) -> None:  # fmt: skip
        self._consumer = consumer
        self._client = client
        self._keys = keys
        self._store = store
        self._heart = heart
        self._heartbeat_s = heartbeat_s
        self._dead_s = dead_s
        self._now = now

    async def run(self) -> None:
        """Watch until the start is buried (then every turn is stopped) or cancelled."""
        while not self._heart.buried:
            try:
                await self.look()
            except StoreError as error:
                if not error.retryable:
                    log.warning("the watch can't read the store", why=str(error))
            await asyncio.sleep(EVERY_S)
        log.warning("this start is buried: its turns stop, the worker registers anew", start=self._consumer.start)
        for hand in list(self._consumer.hands.values()):
            self._consumer.lose(hand, "this worker's start is buried")
        self._consumer.interrupt()

    async def look(self) -> None:
        """One look: attempts, heartbeat records, the sign of service."""
        hands = list(self._consumer.hands.values())
        by_space: dict[str, list[Hand]] = defaultdict(list)
        for hand in hands:
            if hand.outcome is None:
                by_space[hand.ref.space].append(hand)
        serving = time.monotonic() - self._consumer.last_read < READ_SILENCE_S or bool(hands)
        with guard("watch"):
            async with self._client.pipeline(transaction=False) as pipe:
                for space, some in by_space.items():
                    pipe.hmget(self._keys.space(space).tasks, [hand.ref.task for hand in some])
                if serving and self._heart.confirmed:
                    pipe.set(self._keys.health(self._consumer.role), self._consumer.start, px=int(self._dead_s * 2000))
                answers = await pipe.execute() if by_space or serving else []
        for some, states in zip(by_space.values(), answers, strict=False):
            for hand, packed in zip(some, states, strict=True):
                if why := self._lost(hand, unpack(packed) if packed else None):
                    self._consumer.lose(hand, why)
        await self._beat_records(hands)

    def _lost(self, hand: Hand, state: TaskState | None) -> str:
        if hand.outcome is not None:
            return ""
        if state is None:
            return "the task is gone from the store"
        if state.attempt > hand.ref.attempt:
            return f"attempt {hand.ref.attempt} was superseded by {state.attempt}"
        if state.state != "processing":
            return f"the task is {state.state}"
        return "" if state.owner == self._consumer.start else f"the task is owned by {state.owner}"

    async def _beat_records(self, hands: list[Hand]) -> None:
        now = time.monotonic()
        due = [h for h in hands if h.outcome is None and not h.fence.lost and now - h.beaten >= self._heartbeat_s]
        by_space: dict[str, list[Record]] = defaultdict(list)
        for hand in due:
            hand.beaten = now
            by_space[hand.ref.space].append(self._beat_of(hand))
        if by_space:
            await self._store.append_many([(space, some, self._consumer.start) for space, some in by_space.items()])

    def _beat_of(self, hand: Hand) -> Record:
        d = hand.dispatch
        detail = {
            "current_task": d.task,
            "status": hand.fence.status,
            "progress": hand.fence.progress,
            "attempt": d.attempt,
        }
        return Record(
            id=f"HB_{d.agent}_{token_hex(6)}", who=d.agent, time=int(self._now()), event="heartbeat",
            what=f"{d.agent} works on {d.task}", detail=detail, trace=Trace(parent_id=d.task, session_id=d.session),
        )  # fmt: skip
