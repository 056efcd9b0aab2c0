"""The postman of one worker: outcomes into the log, alarms armed, entries acknowledged.

Guarantees: the order is append, then alarm, then acknowledgement, each in one round trip for all that is there; a store
that is away is waited for; a delivery that the law refuses is on record as a violation and its entry is acknowledged.
After the server's run id changed, the deliveries of the last 5 s are sent again. Never drops an outcome.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from protocol.errors import GateRefused
from protocol.kit.crash import crash_point
from protocol.kit.lifecycle import Stopping
from protocol.kit.logs import get_log
from protocol.kit.metrics import Metrics
from protocol.kit.patience import Patience
from protocol.ports import Appended, Dispatch, Dropped, Failed, Outcome
from protocol.record import Record
from protocol.stores.redis_claims import Claims
from protocol.stores.redis_dispatch import Ref, RoleStreams
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_wake import Wake
from workers.consumer import Consumer, Hand
from workers.delivery import Letter, Rules, letter_of

log = get_log(__name__)

RESEND_S: Final = 5.0
Arm = Callable[[Ref, float], Awaitable[None]]
"""Arms the alarm of a retry: the reference with its next attempt, and the delay in seconds."""
Check = Callable[[Dispatch, Sequence[Record]], Awaitable[tuple[Record, ...]]]
"""The gates before a delivery: the records as they may be stored (a large result is an artifact by then).
Raises GateRefused."""


class Postman:
    """Delivers for one start."""

    def __init__(
        self, consumer: Consumer, *, store: RedisLog, streams: RoleStreams, claims: Claims, wake: Wake, arm: Arm,
        check: Check, rules: Rules, metrics: Metrics, stopping: Stopping, patience: Patience,
        now: Callable[[], float], random: Callable[[], float],
    ) -> None:  # fmt: skip
        self._consumer = consumer
        self._store = store
        self._streams = streams
        self._claims = claims
        self._wake = wake
        self._arm = arm
        self._check = check
        self._rules = rules
        self._metrics = metrics
        self._stopping = stopping
        self._patiently = patience
        self._now = now
        self._random = random
        self._recent: deque[tuple[float, Hand, Letter]] = deque()

    async def run(self) -> None:
        """Deliver until cancelled."""
        queue = self._consumer.outcomes
        while True:
            hands = [await queue.get()]
            while not queue.empty():
                hands.append(queue.get_nowait())
            await self.deliver(hands)

    async def deliver(self, hands: list[Hand]) -> None:
        """Deliver these outcomes: one round trip a step for all of them."""
        letters = [(hand, await self._letter(hand)) for hand in hands]
        outcomes = await self._append(letters)
        crash_point("worker.after_delivery")
        await self._follow_up(letters, outcomes)
        role = self._consumer.role
        acks = [(hand.entry, hand.ref) for hand in hands]
        await self._patiently("acknowledge", lambda: self._streams.ack(role, acks), even_draining=True)
        self._consumer.done(hands)

    async def _letter(self, hand: Hand) -> Letter:
        outcome: Outcome = hand.outcome if hand.outcome is not None else Dropped("no outcome")
        letter = self._compose(hand.dispatch, outcome)
        if not letter.records:
            return letter
        try:
            records = await self._check(hand.dispatch, letter.records)
        except GateRefused as refusal:
            self._metrics.add("rolecall_gate_refusals_total", gate=str(refusal.gate))
            failed = Failed(f"gate_{refusal.gate}", f"{refusal.path}: {refusal}", retryable=False)
            return self._compose(hand.dispatch, failed)
        return Letter(records, letter.outcome, letter.attempt, letter.arm_s)

    def _compose(self, dispatch: Dispatch, outcome: Outcome) -> Letter:
        return letter_of(dispatch, outcome, now_s=int(self._now()), random=self._random(), rules=self._rules)

    async def _append(self, letters: Sequence[tuple[Hand, Letter]]) -> dict[str, list[Appended]]:
        by_space: dict[str, list[tuple[Hand, Letter]]] = {}
        for hand, letter in letters:
            if letter.records:
                by_space.setdefault(hand.ref.space, []).append((hand, letter))
        batches = [
            (space, [record for _, letter in some for record in letter.records], self._consumer.start)
            for space, some in by_space.items()
        ]
        ring = self._wake.commands(list(by_space))  # in the same round trip: whoever waits hears of it at once
        got = await self._patiently("deliver", lambda: self._store.append_many(batches, then=ring), even_draining=True)
        out: dict[str, list[Appended]] = {}
        for (_, some), answers in zip(by_space.items(), got or [], strict=False):
            at = 0
            for hand, letter in some:
                out[hand.entry] = answers[at : at + len(letter.records)]
                at += len(letter.records)
        return out

    async def _follow_up(self, letters: Sequence[tuple[Hand, Letter]], outcomes: dict[str, list[Appended]]) -> None:
        now = time.monotonic()
        for hand, letter in letters:
            answers = outcomes.get(hand.entry, [])
            refused = [a for a in answers if a.outcome == "refused"]
            for answer in refused:
                log.warning(
                    "delivery refused",
                    task=hand.ref.task,
                    attempt=hand.ref.attempt,
                    why=answer.message or answer.reason,
                )
            role, outcome = self._consumer.role, "refused" if refused else letter.outcome
            self._metrics.add("rolecall_deliveries_total", role=role, outcome=outcome)
            self._metrics.observe("rolecall_task_seconds", now - hand.began, role=role)
            if not refused and letter.arm_s is not None:
                await self._arm_alarm(hand, letter)
            self._recent.append((now, hand, letter))
        while self._recent and self._recent[0][0] < now - RESEND_S:
            self._recent.popleft()

    async def _arm_alarm(self, hand: Hand, letter: Letter) -> None:
        crash_point("worker.before_alarm")
        ref = Ref(hand.ref.role, hand.ref.space, hand.ref.task, letter.attempt)
        delay = letter.arm_s or 0.0
        if delay:
            await self._patiently("arm alarm", lambda: self._arm(ref, delay), even_draining=True)
        else:
            await self._patiently("hand back", lambda: self.fire(ref), even_draining=True)

    async def fire(self, ref: Ref) -> float:
        """Fire an alarm: assign and enqueue what is due. Returns the seconds that remain (0: settled)."""
        by = {"actor": "alarm", "attempt": ref.attempt}
        fired = await self._claims.fire(
            ref.space, ref.task, ref.attempt, who=self._consumer.start.partition("@")[0], by=by
        )
        if fired.ref is not None:
            await self._streams.enqueue([fired.ref])
        return fired.remaining_ms / 1000 if fired.outcome == "early" else 0.0

    async def send_again(self) -> int:
        """After the server came back as another run: claim and deliver the last seconds' work again. Both are safe
        to repeat; what the store still knows stays as it is."""
        recent = [(hand, letter) for _, hand, letter in self._recent if letter.records]
        if not recent:
            return 0
        refs = [hand.ref for hand, _ in recent]
        await self._claims.claim(refs, self._consumer.start, now_s=int(self._now()))
        await self._append(recent)
        return len(recent)
