"""Invariants 7 and 10: terms and leases; a store that goes away, comes back as another run, answers with an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from redis import exceptions as rx

from coordinator.leader import Leader
from protocol.errors import StoreDenied, StoreError, StoreFull, StoreUnreachable
from protocol.kit.lifecycle import cancelled
from protocol.stores.client import guard
from protocol.stores.redis_dispatch import Ref
from tests.integration.invariantkit import BY, ROLE, SPACE, START, Bench, Kit, assigned, kit_on, record
from tests.support import wait_until
from workers.worker import _Runs

ONE, TWO = "leader@h:1:a", "leader@h:2:b"


@pytest.fixture
async def kit(redis_url: str, prefix: str) -> AsyncIterator[Kit]:
    async with kit_on(redis_url, prefix) as made:
        yield made


# -- 7: leaders -------------------------------------------------------------------------------------------------------


async def test_one_leads_at_a_time_and_every_new_one_has_a_higher_term(kit: Kit) -> None:
    assert await kit.leases.acquire(SPACE, ONE, 60_000) == 1
    assert await kit.leases.acquire(SPACE, ONE, 60_000) == 1, "its answer was lost: the same again"
    assert await kit.leases.acquire(SPACE, TWO, 60_000) is None
    assert await kit.leases.renew([SPACE, "nowhere"], ONE, 60_000) == {SPACE}
    await kit.leases.release(SPACE, TWO)
    assert await kit.leases.acquire(SPACE, TWO, 60_000) is None, "nobody gives up what another has"
    await kit.poke("HSET", kit.keys.space(SPACE).meta, "lease_until", 1)
    assert await kit.leases.renew([SPACE], ONE, 60_000) == {SPACE}, "late, and nobody took it"
    await kit.poke("HSET", kit.keys.space(SPACE).meta, "lease_until", 1)
    assert await kit.leases.acquire(SPACE, TWO, 60_000) == 2
    assert await kit.leases.renew([SPACE], ONE, 60_000) == set()
    assert await kit.leases.acquire("nowhere", ONE, 60_000) is None


async def test_a_step_of_an_older_term_or_another_holder_writes_nothing(kit: Kit) -> None:
    await kit.leases.acquire(SPACE, ONE, 60_000)
    await kit.leases.release(SPACE, ONE)
    assert await kit.leases.acquire(SPACE, TWO, 60_000) == 2
    for term, holder in ((1, ONE), (1, TWO), (2, ONE), (3, TWO)):
        step = await kit.log.append_step(SPACE, [assigned()], term=term, holder=holder)
        assert (step.ok, step.refused_term) == (False, True)
    assert await kit.events() == []
    command = assigned(by={"flow": "plan", "version": 1, "as_of": "0-0", "term": 2})
    assert (await kit.log.append_step(SPACE, [command], term=2, holder=TWO)).ok
    again = command.model_copy(update={"detail": {**command.detail, "prompt": "x", "by": {"flow": "plan", "term": 3}}})
    step = await kit.log.append_step(SPACE, [again], term=2, holder=TWO)
    assert [o.outcome for o in step.outcomes] == ["already"], "the same effect is the same identity"


async def test_a_step_is_all_or_none_whatever_is_refused_in_it(kit: Kit) -> None:
    await kit.leases.acquire(SPACE, ONE, 60_000)
    small = type(kit.log)(kit.client, kit.keys, records_max=0)
    note = record("decision", "DEC_0", action="note", by=BY, why="w")
    for log, rest in (
        (kit.log, [assigned(), record("task_completed", "T1", result=1)]),
        (small, [assigned("T3")]),
        (kit.log, [record("decision", "DEC_1", action="retry", task="T9", by=BY, why="w")]),
        (kit.log, [record("task_merged", "MERGE_1", as_of="crooked")]),
    ):
        step = await log.append_step(SPACE, [note, *rest], term=1, holder=ONE)
        assert (step.ok, step.refused_at) == (False, len(rest))
        assert await kit.events() == []
        assert await kit.log.task_states(SPACE) == {}


# -- 10: the store may go away ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", ["READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "NOREPLICAS", "TRYAGAIN", "UNBLOCKED"]
)
@pytest.mark.parametrize("where", ["{}", "Command # 1 (ZREM a b) of pipeline caused error: ('{}',)"])
def test_a_server_that_is_not_ready_is_waited_for(code: str, where: str) -> None:
    with pytest.raises(StoreUnreachable) as caught, guard("op"):
        raise rx.ResponseError(where.format(f"{code} You must wait."))
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("raised", "kind", "retryable"),
    [
        (rx.ResponseError("MISCONF errors writing to the AOF"), StoreFull, True),
        (rx.OutOfMemoryError("command not allowed"), StoreFull, True),
        (rx.ResponseError("NOPERM no permissions"), StoreDenied, False),
        (rx.ResponseError("WRONGTYPE Operation against"), StoreError, False),
        (rx.ResponseError("user_script:3: boom"), StoreError, False),
        (rx.ConnectionError("gone"), StoreUnreachable, True),
        (rx.BusyLoadingError("loading"), StoreUnreachable, True),
    ],
)
def test_what_trying_again_cannot_mend_is_told_from_what_it_can(
    raised: Exception, kind: type[StoreError], retryable: bool
) -> None:
    with pytest.raises(kind) as caught, guard("op"):
        raise raised
    assert caught.value.retryable is retryable


async def test_a_pipeline_on_a_replica_is_waited_for(kit: Kit) -> None:
    """After a failover the old master refuses writes: whoever writes waits, and does not end."""
    await kit.poke("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(StoreUnreachable):
            await kit.wake.ring([SPACE])
        with pytest.raises(StoreUnreachable):
            await kit.log.append(SPACE, [assigned()])
        with pytest.raises(StoreUnreachable):
            await kit.streams.enqueue([Ref(ROLE, SPACE, "T1", 1), Ref("painter", SPACE, "T2", 1)])
    finally:
        await kit.poke("REPLICAOF", "NO", "ONE")


async def test_a_worker_that_waits_for_work_outlives_its_stream(kit: Kit) -> None:
    """Redis 6.2 and 7.0 answer a blocked read with an error of their own when its stream is deleted."""
    await kit.streams.ensure_group(ROLE)
    reading = asyncio.create_task(kit.streams.read(ROLE, START, 1, 2_000))

    async def blocked() -> bool:
        return bool((await kit.poke("INFO", "clients"))["blocked_clients"] == 1)

    await wait_until(blocked, "the worker waits")
    await kit.client.delete(kit.keys.role(ROLE))
    await kit.add(assigned())
    await kit.streams.enqueue([Ref(ROLE, SPACE, "T1", 1)])
    found = await reading or await kit.streams.read(ROLE, START, 1, 100)
    assert [ref.task for _, ref in found] == ["T1"]


async def test_a_flushed_server_ends_no_claim_no_delivery_and_no_read(kit: Kit) -> None:
    await kit.add(assigned())
    await kit.streams.enqueue([Ref(ROLE, SPACE, "T1", 1)])
    bench = Bench(kit)
    await bench.take()
    await kit.client.flushall()
    await bench.post()
    assert bench.consumer.hands == {}
    assert await kit.streams.read(ROLE, START, 1, 10) == []
    assert not await kit.log.exists(SPACE), "nothing of ours made half a space of it"
    with pytest.raises(StoreError, match="no space"):
        await kit.log.append(SPACE, [assigned()])


async def test_after_another_run_of_the_server_deliveries_go_out_again_before_new_work_is_read(kit: Kit) -> None:
    await kit.add(assigned())
    await kit.streams.enqueue([Ref(ROLE, SPACE, "T1", 1)])
    bench = Bench(kit)
    order: list[str] = []
    ids = iter(["r1", "r1", "r2", "r2"])

    class Said:
        async def run_id(self) -> str:
            return next(ids)

    runs = _Runs(cast("Any", Said()))
    runs.postman = bench.postman
    send_again = bench.postman.send_again

    async def noted() -> int:
        order.append("again")
        return await send_again()

    bench.postman.send_again = noted  # type: ignore[method-assign]
    bench.consumer._after_outage = runs.check
    await runs.check()
    await bench.take()
    await bench.post()
    bench.consumer._recheck = True  # the read before this one failed
    await bench.take()
    assert order == []
    bench.consumer._recheck = True
    read = kit.streams.read

    async def reads(*args: Any) -> Any:
        order.append("read")
        return await read(*args)

    kit.streams.read = reads  # type: ignore[method-assign, assignment]
    await bench.take()
    assert order == ["again", "read"]
    assert (await kit.events()).count("task_completed") == 1


async def test_a_leader_folds_again_before_it_leads_on_another_run() -> None:
    """It hears of the restart by its cut connection: what it has in memory may never have happened."""
    said: list[tuple[str, bool]] = []
    ids = iter(["r1", *["r2"] * 100])

    class Wake:
        times = 0

        async def now(self) -> str:
            return "1-0"

        async def listen(self, last: str, block_ms: int) -> tuple[str, set[str]]:
            self.times += 1
            if self.times == 1:
                made._leads[SPACE] = cast("Any", object())
                raise StoreUnreachable("cut", op="wake")
            await asyncio.Event().wait()
            raise AssertionError

    async def look_at_all() -> None:
        said.append(("look", bool(made._leads)))

    async def open_spaces() -> list[str]:
        return []

    async def run_id() -> str:
        return next(ids)

    made = Leader(
        cast("Any", _NoStores()), cast("Any", None), cast("Any", Wake()), open_spaces=open_spaces, run_id=run_id,
        holder=ONE, sweep_s=60,
    )  # fmt: skip
    made._look_at_all = look_at_all  # type: ignore[method-assign]
    task = asyncio.create_task(made._listen())
    await wait_until(lambda: len(said) == 2, "it looks again")
    await cancelled([task])
    assert said == [("look", False), ("look", False)]


class _NoStores:
    roles = None


async def test_no_new_act_begins_without_a_confirmed_beat(kit: Kit) -> None:
    bench = Bench(kit)
    fence = bench.fence()
    await fence.check()
    bench.heart.confirmed = False
    waiting = asyncio.create_task(fence.check())
    await asyncio.sleep(0)
    assert not waiting.done()
    bench.heart.confirmed = True
    await waiting
    bench.heart.buried = True
    with pytest.raises(Exception, match="buried"):
        await fence.check()
