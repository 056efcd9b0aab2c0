"""The postman of one worker: outcomes into the log, alarms armed, entries acknowledged.

Guarantees: the order is append, then alarm, then acknowledgement, each in one round trip for all that is there; a store
that is away is waited for; a delivery that the law refuses is on record as a violation, and its task blocked where it
is still ours; only then its entry is acknowledged. After the server's run id changed, the deliveries of the last 5 s
are sent again. Never drops an outcome.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from protocol.errors import FenceLost, GateRefused, RolecallError, StoreError
from protocol.kit.crash import crash_point
from protocol.kit.lifecycle import Stopping
from protocol.kit.logs import get_log
from protocol.kit.metrics import Metrics
from protocol.kit.patience import Patience
from protocol.ports import Appended, Dispatch, Dropped, Failed, Outcome
from protocol.record import Record
from protocol.stores.redis_claims import Claims
from protocol.stores.redis_dispatch import Ref, RoleStreams
from protocol.stores.redis_log import BATCH_MAX, UNREADABLE, RedisLog
from protocol.stores.redis_wake import Wake
from protocol.tasks import TaskState
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
        """Deliver these outcomes: one round trip a step for all of them. Where the process is to end before the store
        is back, nothing is acknowledged."""
        letters: list[tuple[Hand, Letter]] = []
        for hand in hands:
            letter = await self._letter(hand)
            if letter is None:
                return
            letters.append((hand, letter))
        outcomes = await self._append(letters)
        if outcomes is None:
            return
        crash_point("worker.after_delivery")
        await self._block_refused(letters, outcomes)
        await self._follow_up(letters, outcomes)
        role = self._consumer.role
        dropped = [hand for hand, letter in letters if not letter.records]
        back = await self._put_back(dropped) if dropped else set()
        # What the store could not take stays pending: no error of the store acknowledges an entry.
        back |= {entry for entry, answers in outcomes.items() if any(a.reason == UNREADABLE for a in answers)}
        acks = [(hand.entry, hand.ref) for hand in hands if hand.entry not in back]
        await self._patiently("acknowledge", lambda: self._streams.ack(role, acks), even_draining=True)
        self._consumer.done(hands)

    async def _letter(self, hand: Hand) -> Letter | None:
        outcome: Outcome = hand.outcome if hand.outcome is not None else Dropped("no outcome")
        letter = self._compose(hand.dispatch, outcome)
        if not letter.records:
            return letter
        try:
            records = await self._checked(hand.dispatch, letter.records)
        except FenceLost as lost:
            return self._compose(hand.dispatch, Dropped(str(lost)))
        except GateRefused as refusal:
            self._metrics.add("rolecall_gate_refusals_total", gate=str(refusal.gate))
            failed = Failed(f"gate_{refusal.gate}", f"{refusal.path}: {refusal}", retryable=False)
            return self._compose(hand.dispatch, failed)
        except (RolecallError, ValueError, TypeError) as error:
            failed = Failed("result", f"{type(error).__name__}: {error}", retryable=False)
            return self._compose(hand.dispatch, failed)
        return None if records is None else Letter(records, letter.outcome, letter.attempt, letter.arm_s)

    async def _checked(self, dispatch: Dispatch, records: Sequence[Record]) -> tuple[Record, ...] | None:
        try:
            return await self._check(dispatch, records)
        except StoreError as error:
            if not error.retryable:
                raise
        return await self._patiently("check", partial(self._check, dispatch, records), even_draining=True)

    def _compose(self, dispatch: Dispatch, outcome: Outcome) -> Letter:
        return letter_of(dispatch, outcome, now_s=int(self._now()), random=self._random(), rules=self._rules)

    async def _append(self, letters: Sequence[tuple[Hand, Letter]]) -> dict[str, list[Appended]] | None:
        """What became of each record, by the hand's entry; None where the process is to end before the store is back.
        A letter is never cut: a failure without its retry would wait for nobody."""
        batches: list[tuple[str, list[Record], str]] = []
        places: list[list[tuple[str, int]]] = []
        open_batch: dict[str, int] = {}
        for hand, letter in letters:
            if not letter.records:
                continue
            at = open_batch.get(hand.ref.space)
            if at is None or len(batches[at][1]) + len(letter.records) > BATCH_MAX:
                at = open_batch[hand.ref.space] = len(batches)
                batches.append((hand.ref.space, [], self._consumer.start))
                places.append([])
            batches[at][1].extend(letter.records)
            places[at].append((hand.entry, len(letter.records)))
        if not batches:
            return {}
        ring = self._wake.commands(list(open_batch))  # in the same round trip: whoever waits hears of it at once
        got = await self._patiently(
            "deliver", lambda: self._store.append_many(batches, then=ring, apart=True), even_draining=True
        )
        if got is None:
            return None
        out: dict[str, list[Appended]] = {}
        for some, answers in zip(places, got, strict=True):
            at = 0
            for entry, n in some:
                out[entry] = answers[at : at + n]
                at += n
        return out

    async def _block_refused(self, letters: list[tuple[Hand, Letter]], outcomes: dict[str, list[Appended]]) -> None:
        """A delivery that was refused although the attempt is still ours: its task would be in nobody's hands, held by
        a start that lives. It is failed and blocked by name. Changes both in place."""
        for at, (hand, _) in enumerate(letters):
            why = next((a for a in outcomes.get(hand.entry, ()) if a.outcome == "refused"), None)
            if why is None:
                continue
            log.warning("delivery refused", task=hand.ref.task, attempt=hand.ref.attempt, why=why.message or why.reason)
            state = None if why.reason == UNREADABLE else await self._state(hand.ref)
            if state is None or (state.state, state.attempt) != ("processing", hand.ref.attempt):
                continue
            if state.owner != self._consumer.start:
                continue
            failed = Failed("refused", f"{why.reason}: {why.message}", retryable=False)
            letter = self._compose(hand.dispatch, failed)
            again = await self._append([(hand, letter)])
            if again:
                letters[at] = hand, letter
                outcomes.update(again)

    async def _put_back(self, dropped: Sequence[Hand]) -> set[str]:
        """Entries of dropped attempts that go back into their stream: the store lost the claim (it crashed), the task
        is assigned to nobody."""
        back: set[str] = set()
        for hand in dropped:
            try:
                state = await self._state(hand.ref)
            except StoreError as error:  # its space was damaged: the entry stays, nothing else waits for it
                log.error("a space can't be read: its entry stays", space=hand.ref.space, why=str(error))
                back.add(hand.entry)
                continue
            if state is not None and (state.state, state.attempt) == ("assigned", hand.ref.attempt):
                await self._patiently(
                    "put back", partial(self._streams.requeue, hand.entry, hand.ref), even_draining=True
                )
                back.add(hand.entry)
        return back

    async def _state(self, ref: Ref) -> TaskState | None:
        return await self._patiently(
            "task state", partial(self._store.task_state, ref.space, ref.task), even_draining=True
        )

    async def _follow_up(self, letters: Sequence[tuple[Hand, Letter]], outcomes: dict[str, list[Appended]]) -> None:
        now = time.monotonic()
        for hand, letter in letters:
            answers = outcomes.get(hand.entry, [])
            refused = [a for a in answers if a.outcome == "refused"]
            role, outcome = self._consumer.role, "refused" if refused else letter.outcome
            self._metrics.add("rolecall_deliveries_total", role=role, outcome=outcome)
            self._metrics.observe("rolecall_task_seconds", now - hand.began, role=role)
            if not refused and letter.arm_s is not None:
                await self._arm_alarm(hand, letter)
            self._recent.append((now, hand, letter))

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

    def same_run(self) -> None:
        """The server is known to be the same run as before, now: what was delivered well before is kept there. (While
        the store is away nothing is forgotten here, however long that lasts.)"""
        before = time.monotonic() - RESEND_S
        while self._recent and self._recent[0][0] < before:
            self._recent.popleft()

    async def send_again(self) -> int:
        """After the server came back as another run: claim and deliver the last seconds' work again. Both are safe
        to repeat; what the store still knows stays as it is."""
        recent = [(hand, letter) for _, hand, letter in self._recent if letter.records]
        if not recent:
            return 0
        refs = [hand.ref for hand, _ in recent]
        await self._claims.claim(refs, self._consumer.start, now_s=int(self._now()), detail=self._consumer.processing())
        await self._append(recent)
        return len(recent)
