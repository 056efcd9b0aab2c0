"""Invariants 4 and 8: attempts, claims, zombies, parking; a worker's outcome is in the log or its task goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from protocol.kit.settings import Settings
from protocol.ports import Delivered, Dispatch, Failed, Outcome, Parked, TurnFence
from protocol.stores.redis_claims import NotClaimed
from protocol.stores.redis_dispatch import Ref
from protocol.stores.redis_log import RedisLog
from tests.integration.invariantkit import (
    BY,
    OTHER,
    ROLE,
    SPACE,
    START,
    Bench,
    Kit,
    assigned,
    kit_on,
    manager_of,
    record,
)

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


# -- 4: claims and zombies ------------------------------------------------------------------------------------------


async def test_a_claim_takes_exactly_what_was_assigned_and_never_from_another(kit: Kit) -> None:
    await kit.add(assigned(attempt=2))
    for attempt in (1, 3):
        got = (await kit.claims.claim([Ref(ROLE, SPACE, "T1", attempt)], START, now_s=1))[0]
        assert isinstance(got, NotClaimed)
    await kit.claim(attempt=2)
    stolen = (await kit.claims.claim([Ref(ROLE, SPACE, "T1", 2)], OTHER, now_s=1))[0]
    assert isinstance(stolen, NotClaimed)
    assert (await kit.state()).owner == START
    assert await kit.events() == ["task_assigned", "task_processing"], "a refused claim writes nothing"
    await kit.claim(attempt=2)
    assert await kit.events() == ["task_assigned", "task_processing"], "a claim whose answer was lost is repeated"


async def test_a_zombie_that_wakes_before_its_claim_costs_its_rescuer_nothing(kit: Kit, settings: Settings) -> None:
    """Stopped between read and claim, buried, its entry given back; it wakes and claims the very same attempt."""
    await dispatched(kit, "T1")
    await kit.live()
    old = await kit.streams.read(ROLE, START, 1, 10)
    await kit.workers.bury(START, "test")
    manager = manager_of(kit, settings)
    await manager.sweep()
    await kit.claim(owner=START)
    rescuer = await kit.streams.read(ROLE, OTHER, 1, 10)
    assert isinstance((await kit.claims.claim([rescuer[0][1]], OTHER, now_s=1))[0], NotClaimed)
    await kit.streams.ack(ROLE, rescuer)
    await manager.sweep()
    assert ((await kit.state()).state, (await kit.state()).attempt) == ("assigned", 2), (
        "no entry told of it: the state did"
    )
    late = record("task_completed", who="writer_1", attempt=1, result="晚")
    assert await kit.add(late, owner=START) == ["superseded_attempt"]
    await kit.streams.ack(ROLE, old)
    await kit.claim(attempt=2, owner=OTHER)
    assert await kit.add(record("task_completed", who="writer_1", attempt=2, result="好"), owner=OTHER) == ["added"]


async def test_only_failures_and_deaths_after_the_claim_cost_a_try(kit: Kit) -> None:
    await kit.add(assigned())
    lost = record("task_agent_lost", who="m", attempt=1, agent="a", last_seen=1, by=BY)
    await kit.add(lost, assigned(attempt=2))
    assert (await kit.state()).tries == 0, "died before its claim"
    await kit.claim(attempt=2)
    await kit.add(record("task_retrying", attempt=3, delay_s=0, reason="handed back"), owner=START)
    await kit.claims.fire(SPACE, "T1", 3, who="m", by=BY)
    assert (await kit.state()).tries == 0, "drained"
    await kit.claim(attempt=3)
    await kit.add(record("task_pending", attempt=3, role=ROLE, waiting_for="ASK_1"), owner=START)
    await kit.add(assigned(attempt=4))
    assert (await kit.state()).tries == 0, "parked"
    await kit.claim(attempt=4)
    await kit.add(record("task_agent_lost", who="m", attempt=4, agent="a", last_seen=1, by=BY), assigned(attempt=5))
    assert (await kit.state()).tries == 1


async def test_an_entry_that_comes_twice_runs_once(kit: Kit) -> None:
    """The stream was lost and made again while its work was in hand; or the group forgot what it had given out."""
    ran: list[str] = []
    go = asyncio.Event()

    async def turn(dispatch: Dispatch, fence: TurnFence) -> Outcome:
        ran.append(dispatch.task)
        await go.wait()
        return Delivered({"result": 1})

    await dispatched(kit, "T1")
    bench = Bench(kit, turn)
    await bench.take()
    await kit.poke("XGROUP", "DESTROY", kit.keys.role(ROLE), "workers")
    await kit.streams.ensure_group(ROLE)
    await bench.take()
    await kit.client.delete(kit.keys.role(ROLE))
    await kit.streams.enqueue([REF])
    await bench.take()
    go.set()
    await bench.post()
    assert ran == ["T1"]
    assert await backlog(kit) == 0
    assert bench.consumer.hands == {}
    assert await kit.events() == ["task_assigned", "task_processing", "task_completed"]


async def test_a_task_may_be_called_as_its_agent_is(kit: Kit, settings: Settings) -> None:
    """A plan with tasks `writer_1`, `writer_2` of the role `writer`: the loss of the task is no loss of an agent."""
    await kit.add(assigned("writer_1"))
    await kit.claim("writer_1")
    await kit.live()
    await kit.workers.bury(START, "test")
    await manager_of(kit, settings).sweep()
    state = await kit.state("writer_1")
    assert (state.state, state.attempt, state.tries) == ("assigned", 2, 1)


async def test_a_task_may_be_called_as_a_merge_is(kit: Kit) -> None:
    await kit.add(assigned("MERGE_all"))
    await kit.claim("MERGE_all")
    await kit.add(record("task_completed", "MERGE_all", "writer_1", attempt=1, result=1), owner=START)
    assert (await kit.state("MERGE_all")).state == "completed"
    assert await kit.add(record("task_merged", "MERGE_1", "manager", by=BY)) == ["added"]
    assert set(await kit.log.task_states(SPACE)) == {"MERGE_all"}


@pytest.mark.parametrize("event", ["task_completed", "task_failed", "task_pending"])
async def test_no_record_that_looks_like_a_command_delivers_for_another(kit: Kit, event: str) -> None:
    await kit.add(assigned())
    await kit.claim()
    detail: dict[str, Any] = {"result": 1, "error": {}, "role": ROLE, "waiting_for": "ASK_1", "attempt": 1}
    forged = record(event, who="li", by={"flow": "plan"}, **detail)
    for owner in ("", OTHER):
        assert await kit.add(forged, owner=owner) == ["not_the_owner"]
    assert (await kit.state()).owner == START
    assert await kit.add(forged, owner=START) == ["added"]


# -- 8: parking and alarms ------------------------------------------------------------------------------------------


async def test_parking_is_one_append_and_the_first_answer_assigns_the_next_attempt(kit: Kit) -> None:
    await dispatched(kit, "T1")

    async def turn(dispatch: Dispatch, fence: TurnFence) -> Outcome:
        return Parked("ASK_1", "走哪边？")

    bench = Bench(kit, turn)
    await bench.take()
    await bench.post()
    state = await kit.state()
    assert (state.state, state.owner, state.waiting_for, await backlog(kit)) == ("waiting", "", "ASK_1", 0)
    say: dict[str, Any] = {"action": "answer", "task": "T1", "question": "ASK_1", "by": "p", "why": "w"}
    first = [record("decision", "DEC_1", "p", answer="左", **say), assigned(attempt=2, answer="左")]
    second = [record("decision", "DEC_2", "q", answer="右", **say), assigned(attempt=2, answer="右")]
    assert (await kit.log.append_step(SPACE, first)).ok
    late = await kit.log.append_step(SPACE, second)
    assert (late.ok, late.reason) == (False, "illegal_transition")
    again = await kit.claim(attempt=2, owner=OTHER)
    assert (again.detail["answer"], again.tries, again.agent) == ("左", 0, "writer_1")


async def test_parking_is_taken_by_a_full_space(kit: Kit) -> None:
    """Not taken, the task would be in the hands of a worker that waits for nobody."""

    async def turn(dispatch: Dispatch, fence: TurnFence) -> Outcome:
        return Parked("ASK_1", "走哪边？")

    await dispatched(kit, "T1")
    full = RedisLog(kit.client, kit.keys, records_max=1)
    bench = Bench(kit, turn, store=full)
    await bench.take()
    await bench.post()
    assert (await kit.state()).state == "waiting"
    assert [r.id for _, r in await kit.log.tail(SPACE) if r.event == "info"] == ["ASK_1"]
    assert (await full.append(SPACE, [record("info", "INFO_1")]))[0].reason == "too_large"
    assert (await full.append(SPACE, [assigned("T2")]))[0].reason == "too_large"


async def test_an_alarm_armed_twice_or_fired_twice_assigns_once(kit: Kit, settings: Settings) -> None:
    async def turn(dispatch: Dispatch, fence: TurnFence) -> Outcome:
        return Failed("x", "失败", retryable=True)

    await dispatched(kit, "T1")
    bench = Bench(kit, turn)
    await bench.take()
    await bench.post()
    assert [ref for ref, _ in bench.armed] == [Ref(ROLE, SPACE, "T1", 2)]
    early = await kit.claims.fire(SPACE, "T1", 2, who="m", by=BY)
    assert early.outcome == "early"
    # Its time has come; the alarm of the worker is lost with it, and two managers see it at once.
    key = kit.keys.space(SPACE)
    state = (await kit.client.hget(key.tasks, "T1")).decode().split("|")  # type: ignore[misc]
    state[6] = "1"
    await kit.poke("HSET", key.tasks, "T1", "|".join(state))
    await kit.client.zadd(key.due, {"T1": 1})
    await asyncio.gather(*(manager_of(kit, settings).sweep() for _ in range(3)))
    await bench.postman.fire(Ref(ROLE, SPACE, "T1", 2))
    assert (await kit.events()).count("task_assigned") == 2
    assert await backlog(kit) == 1


async def test_a_reported_retry_of_a_task_that_nobody_assigned_rings_no_alarm(kit: Kit, settings: Settings) -> None:
    await kit.add(record("task_failed", error={}), record("task_retrying", attempt=2, delay_s=0, reason="x"))
    assert await kit.client.zcard(kit.keys.space(SPACE).due) == 0
    await manager_of(kit, settings).sweep()
    assert (await kit.state()).state == "retrying"
