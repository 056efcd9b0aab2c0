"""Invariants 4 and 10: a worker's outcome is in the log or its task goes on, whatever store and result are like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from protocol.errors import FenceLost, GateRefused, StoreError, StoreFull, StoreUnreachable
from protocol.kit.metrics import Metrics
from protocol.kit.settings import Settings
from protocol.ports import Appended, Delivered, Dispatch, Dropped, Failed, Outcome, TurnFence
from protocol.record import Record
from protocol.stores.redis_dispatch import Ref
from protocol.stores.redis_log import BATCH_MAX, RedisLog
from tests.integration.invariantkit import (
    OTHER,
    ROLE,
    SPACE,
    START,
    Bench,
    Kit,
    assigned,
    kit_on,
)
from tests.support import wait_until
from workers.checking import Checker

REF = Ref(ROLE, SPACE, "T1", 1)


@pytest.fixture
async def kit(redis_url: str, prefix: str) -> AsyncIterator[Kit]:
    async with kit_on(redis_url, prefix) as made:
        yield made


async def dispatched(kit: Kit, *tasks: str) -> None:
    await kit.add(*(assigned(task) for task in tasks))
    await kit.streams.enqueue([Ref(ROLE, SPACE, task, 1) for task in tasks])


async def backlog(kit: Kit) -> int:
    return (await kit.streams.backlog([ROLE]))[ROLE]


class Flaky(RedisLog):
    """A store that is away (``away``) for so many appends."""

    def __init__(self, kit: Kit, away: int = 0) -> None:
        super().__init__(kit.client, kit.keys)
        self.away = away
        self.batches: list[int] = []

    async def append_many(self, batches: Sequence[Any], **more: Any) -> list[list[Appended]]:
        self.batches += [len(records) for _, records, _ in batches]
        if self.away:
            self.away -= 1
            raise StoreUnreachable("away", op="append")
        return await super().append_many(batches, **more)


async def test_an_entry_is_acknowledged_only_when_its_outcome_is_in_the_log(kit: Kit) -> None:
    await dispatched(kit, "T1")
    store = Flaky(kit, away=10**9)
    bench = Bench(kit, store=store)
    await bench.take()
    posting = asyncio.create_task(bench.post())
    await wait_until(lambda: store.batches, "it tries")
    bench.stopping.request()
    bench.stopping.request()  # the second signal: end now, the store is still away
    await asyncio.wait({posting}, timeout=5)
    assert await backlog(kit) == 1, "the entry is still there for whoever comes after"
    assert bench.armed == []
    assert (await kit.state()).state == "processing"


async def test_an_outage_while_delivering_repeats_and_writes_once(kit: Kit) -> None:
    await dispatched(kit, "T1", "T2")
    bench = Bench(kit, store=Flaky(kit, away=2))
    await bench.take()
    await bench.post(2)
    assert (await kit.events()).count("task_completed") == 2
    assert await backlog(kit) == 0


async def test_a_failure_and_what_follows_from_it_are_one_step_in_any_batch(kit: Kit) -> None:
    """99 records before it: a failure without its retry would wait for nobody."""

    async def turn(dispatch: Dispatch, fence: TurnFence) -> Outcome:
        return Failed("x", "失败", retryable=True)

    names = [f"T{n}" for n in range(60)]
    await dispatched(kit, *names)
    store = Flaky(kit)
    bench = Bench(kit, turn, store=store)
    bench.consumer._concurrency = 100
    for _ in range(8):
        await bench.take()
    sent = [await bench.consumer.outcomes.get() for _ in range(59)]
    odd = next(h for h in sent)
    odd.outcome = Delivered({"result": 1})
    await bench.postman.deliver(sent)
    assert len(store.batches) > 1
    assert all(n <= BATCH_MAX for n in store.batches)
    cut = 0
    for n in store.batches[:-1]:
        cut += n
        assert cut % 2 == 1, "the odd delivery came first: every cut lies after a retry, none after a failure"


async def test_a_store_that_is_away_while_a_result_is_checked_ends_no_worker(kit: Kit) -> None:
    away = [StoreUnreachable("away", op="put")] * 2

    async def check(dispatch: Dispatch, records: Sequence[Record]) -> tuple[Record, ...]:
        if away:
            raise away.pop()
        return tuple(records)

    await dispatched(kit, "T1")
    bench = Bench(kit, check=check)
    await bench.take()
    await bench.post()
    assert (await kit.state()).state == "completed"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (FenceLost("taken over"), "processing"),
        (GateRefused("no", gate=4, path="detail.result"), "blocked"),
        (ValueError("no JSON"), "blocked"),
        (StoreError("no such artifact", retryable=False), "blocked"),
        (StoreFull("the space is full", retryable=False), "blocked"),
    ],
)
async def test_whatever_a_check_raises_becomes_an_outcome(kit: Kit, error: Exception, state: str) -> None:
    async def check(dispatch: Dispatch, records: Sequence[Record]) -> tuple[Record, ...]:
        if records[0].event == "task_completed":
            raise error
        return tuple(records)

    await dispatched(kit, "T1")
    bench = Bench(kit, check=check)
    await bench.take()
    await bench.post()
    assert (await kit.state()).state == state
    assert await backlog(kit) == 0


@pytest.mark.parametrize(
    "result", [float("nan"), {"x": [float("inf")]}, "\ud800", {"\udfff": 1}, {1: 2}, {"s": {1, 2}}]
)
async def test_a_result_that_is_no_json_is_blocked_and_ends_no_worker(
    kit: Kit, settings: Settings, result: Any
) -> None:
    class Source:
        role = None

    checker = Checker(Source(), kit.client, kit.keys, settings, Metrics(process=False))  # type: ignore[arg-type]

    async def turn(dispatch: Dispatch, fence: TurnFence) -> Outcome:
        return Delivered({"result": result})

    await dispatched(kit, "T1")
    bench = Bench(kit, turn, check=checker.check)
    await bench.take()
    await bench.post()
    assert (await kit.state()).state == "blocked"


async def test_what_was_dropped_because_the_store_lost_its_claim_goes_back(kit: Kit) -> None:
    """The server crashed and lost its last second: the task is assigned again, nobody's, and its entry is in hand."""

    await dispatched(kit, "T1")
    before = await kit.client.hget(kit.keys.space(SPACE).tasks, "T1")  # type: ignore[misc]
    gate = asyncio.Event()

    async def waits(dispatch: Dispatch, fence: TurnFence) -> Outcome:
        await gate.wait()
        raise AssertionError("it was cancelled")

    bench = Bench(kit, waits)
    await bench.take()
    last = (await kit.client.xrevrange(kit.keys.space(SPACE).log, count=1))[0][0]
    await kit.client.xdel(kit.keys.space(SPACE).log, last)
    await kit.poke("HSET", kit.keys.space(SPACE).tasks, "T1", before)
    await kit.client.delete(kit.keys.space(SPACE).held)
    hand = next(iter(bench.consumer.hands.values()))
    bench.consumer.lose(hand, "the task is assigned")
    await bench.post()
    again = await kit.streams.read(ROLE, OTHER, 1, 10)
    assert [ref for _, ref in again] == [REF], "its dispatch is not lost with its claim"
    await kit.claim(owner=OTHER)


async def test_a_delivery_that_is_refused_while_the_task_is_its_own_is_blocked_not_forgotten(kit: Kit) -> None:
    async def turn(dispatch: Dispatch, fence: TurnFence) -> Outcome:
        return Delivered({"result": 1, "workspace": {"area": "private", "path": "other/x"}})

    await dispatched(kit, "T1")
    bench = Bench(kit, turn)
    await bench.take()
    await bench.post()
    state = await kit.state()
    assert (state.state, await backlog(kit)) == ("blocked", 0)
    assert "protocol_violation" in await kit.events()


async def test_after_an_outage_of_any_length_the_last_deliveries_are_sent_again(kit: Kit) -> None:
    """The server crashed right after a delivery and lost it; the next delivery waited out a minute of outage."""
    await dispatched(kit, "T1", "T2")
    bench = Bench(kit)
    await bench.take()
    hands = [await bench.consumer.outcomes.get() for _ in range(2)]
    before = await kit.client.hget(kit.keys.space(SPACE).tasks, hands[0].ref.task)  # type: ignore[misc]
    await bench.postman.deliver(hands[:1])
    task = hands[0].ref.task
    log = await kit.client.xrevrange(kit.keys.space(SPACE).log, count=1)
    await kit.client.xdel(kit.keys.space(SPACE).log, log[0][0])
    await kit.poke("HSET", kit.keys.space(SPACE).tasks, task, before)
    bench.postman._recent[0] = (bench.postman._recent[0][0] - 60, *bench.postman._recent[0][1:])
    await bench.postman.deliver(hands[1:])
    assert (await kit.state(task)).state == "processing", "as the server has it now"
    await bench.postman.send_again()
    assert (await kit.state(task)).state == "completed"
    bench.postman.same_run()
    bench.postman._recent[0] = (bench.postman._recent[0][0] - 60, *bench.postman._recent[0][1:])
    bench.postman.same_run()
    assert len(bench.postman._recent) < 2, "what a run is known to have kept is forgotten"


async def test_a_space_that_was_damaged_stops_no_other_spaces_work(kit: Kit) -> None:
    await kit.make("bad")
    await kit.make("worse")
    await dispatched(kit, "T1")
    for space in ("bad", "worse"):
        await kit.add(assigned(), space=space)
        await kit.streams.enqueue([Ref(ROLE, space, "T1", 1)])
    await kit.client.delete(kit.keys.space("bad").tasks)
    await kit.poke("SET", kit.keys.space("bad").tasks, "x")
    bench = Bench(kit)
    await bench.take()
    assert {h.ref.space for h in bench.consumer.hands.values()} == {SPACE, "worse"}
    await kit.client.delete(kit.keys.space("worse").tasks)
    await kit.poke("SET", kit.keys.space("worse").tasks, "x")
    await bench.post(2)
    assert (await kit.state()).state == "completed"
    pending = await kit.streams.pending_of(ROLE, START)
    assert {ref.space for _, ref in pending if ref} == {"bad", "worse"}, "no error of the store acknowledges an entry"


async def test_a_turn_that_was_dropped_in_a_damaged_space_ends_no_worker(kit: Kit) -> None:
    async def turn(dispatch: Dispatch, fence: TurnFence) -> Outcome:
        return Dropped("cancelled")

    await dispatched(kit, "T1")
    bench = Bench(kit, turn)
    await bench.take()
    await kit.client.delete(kit.keys.space(SPACE).tasks)
    await kit.poke("SET", kit.keys.space(SPACE).tasks, "x")
    await bench.post()
    assert bench.consumer.hands == {}
    assert await backlog(kit) == 1
