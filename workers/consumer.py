"""The consumer of one role's stream: read new entries, claim, hand over to the runner, deliver, acknowledge.

Guarantees: never holds more entries than it can start; an entry is acknowledged only after its outcome is in the log;
a refused claim is acknowledged, an error of the store is not; an attempt that is in hand is not begun again, however
often its reference comes; every write of an attempt carries its owner. Never takes another worker's entries, and never
decides that anyone is dead.

    read ──► claim ──► run (one asyncio task each) ──► outcomes ──► append ──► acknowledge, ring
     ▲ as many as there are free slots                    (whatever is there, in one round trip each)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from protocol.kit.crash import crash_point
from protocol.kit.lifecycle import Stopping
from protocol.kit.logs import get_log
from protocol.kit.patience import Patience
from protocol.ports import Dispatch, Dropped, HandedBack, Outcome, Runner
from protocol.stores.redis_claims import Claims, NotClaimed
from protocol.stores.redis_dispatch import Ref, RoleStreams
from workers.fence import Fence
from workers.heartbeat import Heart

log = get_log(__name__)

BLOCK_MS: Final = 2_000
READ_MAX: Final = 100
"""Entries a read: with more slots than this one batch is read while another is delivered."""
BURST_BLOCK_MS: Final = 50


@dataclass(eq=False)
class Hand:
    """One entry in hand: its claim, its running turn, its fence, its outcome."""

    entry: str
    ref: Ref
    dispatch: Dispatch
    fence: Fence
    began: float
    beaten: float
    turn: asyncio.Task[None] | None = None
    outcome: Outcome | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class Consumer:
    """Reads, claims and runs; hands outcomes to ``deliver`` through a queue."""

    def __init__(
        self,
        *,
        role: str,
        start: str,
        streams: RoleStreams,
        claims: Claims,
        heart: Heart,
        runner: Runner,
        concurrency: int,
        stopping: Stopping,
        patience: Patience,
        processing: Callable[[], dict[str, Any]],
        after_outage: Callable[[], Awaitable[None]] | None = None,
        burst: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.role = role
        self.start = start
        self.hands: dict[str, Hand] = {}
        self.outcomes: asyncio.Queue[Hand] = asyncio.Queue()
        self.last_read = time.monotonic()
        self._streams = streams
        self._claims = claims
        self._heart = heart
        self._runner = runner
        self._concurrency = concurrency
        self._stopping = stopping
        self._patiently = patience
        self.processing = processing
        self._after_outage = after_outage
        """Called before new work is read where the read before it failed."""
        self._burst = burst
        self._now = now
        self._slot = asyncio.Event()
        self._recheck = False
        self._reading: asyncio.Future[list[tuple[str, Ref]]] | None = None

    async def read(self) -> None:
        """Read until draining begins, the start is buried, or (burst) nothing is left and nothing in hand."""
        while not self._stopping.draining and not self._heart.buried:
            free = self._concurrency - len(self.hands)
            if free <= 0 or not self._heart.confirmed:
                await self._wait_for_slot(0.2)
                continue
            entries = await self._patiently("read dispatches", partial(self._take, min(free, READ_MAX)))
            if entries is None:
                return
            self.last_read = time.monotonic()
            if entries:
                await self._start_all(entries)
            elif self._burst and not self.hands:
                return

    async def _take(self, free: int) -> list[tuple[str, Ref]]:
        if self._recheck:
            if self._after_outage is not None:
                await self._after_outage()
            # An answer may have been lost on the way: what is pending on us and not in hand is taken up now.
            pending = await self._streams.pending_of(self.role, self.start)
            self._recheck = False
            gone = [entry for entry, ref in pending if ref is None]
            await self._streams.drop_unknown(self.role, gone)
            mine = [(entry, ref) for entry, ref in pending if ref is not None and entry not in self.hands]
            if mine:
                return mine[:free]
        self._recheck = True
        self._reading = asyncio.ensure_future(
            self._streams.read(self.role, self.start, free, BURST_BLOCK_MS if self._burst else BLOCK_MS)
        )
        try:
            entries = await self._reading
        except asyncio.CancelledError:
            if self._stopping.draining or self._heart.buried:
                return []  # what was on its way stays pending, unclaimed: the manager enqueues it again
            raise
        finally:
            self._reading = None
        self._recheck = False
        return entries

    def interrupt(self) -> None:
        """End a blocking read early: draining has begun, or the start is buried."""
        if self._reading is not None:
            self._reading.cancel()

    async def _start_all(self, entries: list[tuple[str, Ref]]) -> None:
        crash_point("worker.before_claim")
        entries = await self._without_doubles(entries)
        refs = [ref for _, ref in entries]
        detail = self.processing()
        claimed = await self._patiently(
            "claim",
            lambda: self._claims.claim(refs, self.start, now_s=int(self._now()), detail=detail),
        )
        if claimed is None:
            return
        crash_point("worker.after_claim")
        refused: list[tuple[str, Ref]] = []
        now = time.monotonic()
        for (entry, ref), got in zip(entries, claimed, strict=True):
            if isinstance(got, NotClaimed):
                if got.error is not None:
                    log.error("a space can't be read: its entry stays", space=ref.space, why=str(got.error))
                    continue
                log.info("claim refused", task=ref.task, attempt=ref.attempt, state=got.state, at=got.attempt)
                refused.append((entry, ref))
                continue
            hand = Hand(entry, ref, got, Fence(self._heart), now, now)
            self.hands[entry] = hand
            hand.turn = asyncio.create_task(self._run(hand))
        self._heart.page.in_hand = float(len(self.hands))
        if refused:
            await self._patiently("acknowledge", lambda: self._streams.ack(self.role, refused))

    async def _without_doubles(self, entries: list[tuple[str, Ref]]) -> list[tuple[str, Ref]]:
        """The entries without those whose attempt is in hand: their stream was lost and filled again, or their group
        has forgotten what it gave out. A claim would be granted: it is ours."""
        held = {hand.ref for hand in self.hands.values()}
        fresh: list[tuple[str, Ref]] = []
        doubles: list[tuple[str, Ref]] = []
        for entry, ref in entries:
            if ref not in held:
                held.add(ref)
                fresh.append((entry, ref))
            elif entry not in self.hands:
                doubles.append((entry, ref))
        if doubles:
            await self._patiently("acknowledge", lambda: self._streams.ack(self.role, doubles))
        return fresh

    async def _run(self, hand: Hand) -> None:
        try:
            hand.outcome = await self._runner(hand.dispatch, hand.fence)
        except asyncio.CancelledError:
            if hand.fence.lost:
                hand.outcome = Dropped(hand.fence.lost)
            elif self._stopping.draining:
                hand.outcome = HandedBack("the worker drains")
            else:
                raise
        crash_point("worker.before_delivery")
        self.outcomes.put_nowait(hand)

    def done(self, hands: list[Hand]) -> None:
        """These hands are empty again: delivered and acknowledged."""
        for hand in hands:
            self.hands.pop(hand.entry, None)
        self._heart.page.in_hand = float(len(self.hands))
        self._slot.set()

    async def drain(self, grace_s: float) -> None:
        """Wait for what runs; after the grace time (or a second signal) hand back the rest."""
        until = time.monotonic() + grace_s
        while self.hands and time.monotonic() < until and not self._stopping.now and not self._heart.buried:
            await self._wait_for_slot(min(0.1, max(0.0, until - time.monotonic())))
        self.cancel_turns()

    def cancel_turns(self) -> None:
        """Stop every turn that still runs: while draining its attempt is handed back."""
        for hand in list(self.hands.values()):
            if hand.turn is not None and not hand.turn.done():
                hand.turn.cancel()

    def lose(self, hand: Hand, why: str) -> None:
        """The attempt is no longer ours: its turn stops at its next await, nothing of it is written."""
        if not hand.fence.lost:
            hand.fence.lost = why
            if hand.turn is not None:
                hand.turn.cancel()

    async def _wait_for_slot(self, timeout_s: float) -> None:
        self._slot.clear()
        try:
            await asyncio.wait_for(self._slot.wait(), timeout_s)
        except TimeoutError:
            pass
