"""Invariant 5: death is a write, ages count only while someone watched, and no record by hand stops a manager."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coordinator.manager import Manager
from coordinator.silence import lost_agents
from protocol.kit.settings import Settings
from protocol.stores.redis_dispatch import Ref
from tests.integration.invariantkit import (
    BY,
    OTHER,
    ROLE,
    SPACE,
    START,
    Kit,
    assigned,
    kit_on,
    manager_of,
    record,
)
from tests.support import wait_until


@pytest.fixture
async def kit(redis_url: str, prefix: str) -> AsyncIterator[Kit]:
    async with kit_on(redis_url, prefix) as made:
        yield made


async def sweep_until(manager: Manager, condition: Any, what: str) -> None:
    async def look() -> bool:
        await manager.sweep()
        return bool(await condition())

    await wait_until(look, what, 8)


async def has_watched(kit: Kit, manager: Manager) -> None:
    """As if this manager had swept for long: silence counts from the start."""
    await manager.sweep()
    manager._seen.since_ms = 1


# -- death is a write -------------------------------------------------------------------------------------------------


async def test_a_start_is_buried_once_and_for_ever(kit: Kit) -> None:
    await kit.live()
    assert await kit.workers.bury(START, "test")
    assert not await kit.workers.bury(START, "again")
    assert not await kit.workers.beat(START, {}), "a buried start's beat is refused"
    assert [(g.start, g.reason) for g in await kit.workers.graves()] == [(START, "test")]
    assert await kit.workers.live() == []


async def test_ages_count_only_while_someone_watched(kit: Kit) -> None:
    """After a pause of the watch, and on another run of the server, everyone has a full interval."""
    k, watch = kit.keys, kit.keys.watch

    async def sweep(run: str = "r1") -> list[str]:
        return await kit.workers.sweep(dead_ms=1_000, run_id=run)

    async def watched(last_ago: int, from_ago: int, run: str = "r1") -> None:
        now = await kit.log.now_ms()
        await kit.poke("HSET", watch, "last", now - last_ago, "from", now - from_ago, "run", run)
        await kit.client.zadd(k.workers, {START: now - 60_000})

    await kit.live()
    await kit.client.zadd(k.workers, {START: 1})
    assert await sweep() == [], "the first sweep of all"
    await watched(last_ago=6_000, from_ago=60_000)
    assert await sweep() == [], "nobody watched for 6 s"
    await watched(last_ago=100, from_ago=60_000)
    assert await sweep("r2") == [], "another run of the server"
    await watched(last_ago=100, from_ago=900)
    assert await sweep() == [], "watched for less than dead-after"
    await watched(last_ago=100, from_ago=60_000)
    assert await sweep() == [START]
    assert await sweep() == []


async def test_sweeps_further_apart_than_five_seconds_still_find_the_dead(kit: Kit) -> None:
    await kit.live()
    now = await kit.log.now_ms()
    await kit.client.zadd(kit.keys.workers, {START: now - 60_000})
    await kit.poke("HSET", kit.keys.watch, "last", now - 8_000, "from", now - 60_000, "run", "r1")
    assert await kit.workers.sweep(dead_ms=1_000, run_id="r1", every_ms=8_000) == [START]


async def test_a_stale_watcher_judges_no_silence_of_the_time_before_it_watched() -> None:
    signs = {"a": 0, "b": 699_999, "c": 700_000}
    assert lost_agents(signs, now_ms=1_000_000, since_ms=0, lost_s=300) == ["a", "b"], "exactly 300 s is not yet lost"
    assert lost_agents(signs, now_ms=1_000_000, since_ms=700_000, lost_s=300) == []


async def test_a_worker_that_lives_keeps_its_task_however_long_and_a_dead_ones_goes_on(
    kit: Kit, settings: Settings
) -> None:
    manager = manager_of(kit, settings)
    await kit.live()
    await kit.add(assigned("T1"), assigned("T2"))
    await kit.claim("T1")
    await kit.claim("T2", owner=OTHER)
    await kit.workers.bury(OTHER, "test")
    await sweep_until(manager, lambda: _attempt(kit, "T2", 2), "T2 is taken over")
    assert (await kit.state("T1")).owner == START
    assert await kit.events("T2") == ["task_assigned", "task_processing", "task_agent_lost", "task_assigned"]
    second = manager_of(kit, settings)
    await second.sweep()
    await manager.sweep()
    assert len(await kit.events("T2")) == 4, "several managers, and the same one again, do nothing twice"


async def _attempt(kit: Kit, task: str, attempt: int) -> bool:
    state = await kit.state(task)
    return (state.state, state.attempt) == ("assigned", attempt)


async def test_a_grave_of_a_role_whose_stream_or_group_is_gone_is_settled(kit: Kit, settings: Settings) -> None:
    await kit.live()
    await kit.streams.enqueue([Ref(ROLE, SPACE, "T9", 1)])
    assert len(await kit.streams.read(ROLE, START, 1, 10)) == 1
    await kit.workers.bury(START, "test")
    await kit.poke("XGROUP", "DESTROY", kit.keys.role(ROLE), "workers")
    await kit.poke("XGROUP", "CREATE", kit.keys.role(ROLE), "somebodys", "0")
    manager = manager_of(kit, settings)
    await manager.sweep()
    assert await kit.workers.graves(unsettled=True) == []
    await kit.live(OTHER)
    await kit.workers.bury(OTHER, "test")
    await kit.client.delete(kit.keys.role(ROLE))
    await manager.sweep()
    assert await kit.workers.graves(unsettled=True) == []


# -- records by hand that once ended every manager ------------------------------------------------------------------


async def works(kit: Kit, manager: Manager) -> None:
    """The manager still does its work: an assigned task whose leader died is enqueued."""
    if not await kit.log.exists("good"):
        await kit.make("good")
        await kit.add(assigned("G1"), space="good")
    await kit.age_outbox("good")

    async def enqueued() -> bool:
        return "G1" not in await kit.outbox("good")

    await sweep_until(manager, enqueued, "the other space is cared for")


@pytest.mark.parametrize("worker", ["li@laptop", "a.b@laptop", "a.b@host:1:x", "@", "x@h:1"])
async def test_an_outside_agent_may_name_its_worker_as_it_likes(kit: Kit, settings: Settings, worker: str) -> None:
    manager = manager_of(kit, settings)
    assert await kit.add(assigned(), record("task_processing", who="li", worker=worker, attempt=1)) == [
        "added",
        "added",
    ]
    assert (await kit.state()).owner == "~li"
    await works(kit, manager)
    assert await kit.workers.graves() == [], "nobody was found dead"
    assert await kit.add(record("task_completed", who="li", attempt=1, result="好")) == ["added"]


async def test_a_forged_start_of_a_role_that_is_none_is_buried_and_stops_nothing(kit: Kit, settings: Settings) -> None:
    forged = f"{'r' * 90}@host:1:x"
    await kit.add(assigned(), record("task_processing", who="li", worker=forged, attempt=1))
    await kit.workers.bury(forged, "test")
    await kit.workers.bury("a.b@host:1:x", "test")
    await kit.workers.bury("", "test")
    manager = manager_of(kit, settings)
    await works(kit, manager)
    await sweep_until(manager, lambda: _attempt(kit, "T1", 2), "its task goes on")
    assert await kit.workers.graves(unsettled=True) == []


@pytest.mark.parametrize("role", ["代码审查", "a.b", "code reviewer", "x" * 65, "team/reviewer", "a:b"])
async def test_a_dispatch_to_what_is_no_roles_name_stops_no_manager(kit: Kit, settings: Settings, role: str) -> None:
    await kit.add(record("task_assigned", role=role, attempt=1, agent="li"))
    await kit.age_outbox()
    manager = manager_of(kit, settings)
    await works(kit, manager)
    assert await kit.outbox() == set(), "there is no stream that it could wait for"
    assert await kit.add(record("task_processing", who="li", attempt=1, worker="laptop")) == ["added"]


@pytest.mark.parametrize("agent", ["li@laptop", "a#1", "a#1@b", "li", "#", "a/b@c"])
async def test_an_agent_of_any_name_is_lost_once_a_silence_under_its_own_id(
    kit: Kit, settings: Settings, agent: str
) -> None:
    manager = manager_of(kit, settings)
    beats = kit.keys.space(SPACE).beats

    async def lost(n: int) -> bool:
        return len([e for e in await kit.events() if e == "task_agent_lost"]) == n

    for n in (1, 2):
        await kit.add(record("heartbeat", f"HB_{n}", agent, current_task=None, status="x", progress=""))
        await has_watched(kit, manager)
        await kit.client.zadd(beats, {agent: n})
        await sweep_until(manager, lambda n=n: lost(n), f"loss {n} is on record")
        await manager.sweep()
        assert await lost(n)
    assert await kit.log.task_states(SPACE) == {}, "an agent is no task"
    await works(kit, manager)


async def test_a_lost_task_that_no_role_was_named_for_waits_for_a_person(kit: Kit, settings: Settings) -> None:
    await kit.add(record("task_processing", who="li", attempt=1, worker="laptop"))
    await kit.add(record("task_agent_lost", who="manager", attempt=1, agent="li", last_seen=1, by=BY))
    manager = manager_of(kit, settings)
    await works(kit, manager)
    assert (await kit.state()).state == "lost"


async def test_a_waiting_outside_agent_is_never_lost(kit: Kit, settings: Settings) -> None:
    await kit.add(record("heartbeat", "HB_1", "li", current_task="T1", status="x", progress=""))
    await kit.add(record("task_processing", who="li", attempt=1, worker="laptop"))
    await kit.add(record("task_pending", who="li", attempt=1, role="r", agent="li", waiting_for="ASK_1"))
    manager = manager_of(kit, settings)
    await has_watched(kit, manager)
    await kit.client.zadd(kit.keys.space(SPACE).beats, {"li": 1})
    await works(kit, manager)
    assert "task_agent_lost" not in await kit.events()
    score = await kit.client.zscore(kit.keys.space(SPACE).beats, "li")
    assert score is not None
    assert score > 1, "it has a full interval again, and is not looked at every sweep"


async def test_attempts_by_the_billion_cost_no_time(kit: Kit, settings: Settings) -> None:
    far = 10**12
    await kit.add(assigned(), record("task_processing", who="li", attempt=far, worker=START))
    await kit.live()
    await kit.workers.bury(START, "test")
    began = time.monotonic()
    await sweep_until(manager_of(kit, settings), lambda: _attempt(kit, "T1", far + 1), "it is taken over")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("part", ["tasks", "outbox", "due", "held", "beats", "meta"])
async def test_a_space_whose_keys_are_of_another_type_stops_no_other(kit: Kit, settings: Settings, part: str) -> None:
    await kit.make("bad")
    await kit.add(assigned(), space="bad")
    await kit.age_outbox("bad")
    key = getattr(kit.keys.space("bad"), part)
    await kit.client.delete(key)
    await kit.poke("SET", key, "x")
    await works(kit, manager_of(kit, settings))


async def test_a_role_whose_stream_is_of_another_type_stops_no_other(kit: Kit, settings: Settings) -> None:
    await kit.poke("SET", kit.keys.role("painter"), "x")
    await kit.poke("HSET", kit.keys.roles, "painter", '{"name":"p","digest":"d"}')
    await kit.add(assigned("P1", role="painter"), assigned("T1"))
    await kit.age_outbox()
    await kit.live("painter@h:1:x", "painter")
    await kit.workers.bury("painter@h:1:x", "test")
    await works(kit, manager_of(kit, settings))
    assert "T1" not in await kit.outbox()


async def test_hints_that_are_none_stop_no_listener(kit: Kit, settings: Settings) -> None:
    last = await kit.wake.now()
    await kit.poke("XADD", kit.keys.wake, "*", "x", "y")
    await kit.poke("XADD", kit.keys.wake, "*", "s", "a b c")
    await kit.poke("XADD", kit.keys.wake, "*", "s", b"\xff")
    await kit.wake.ring([SPACE])
    last, news = await kit.wake.listen(last, 10)
    assert SPACE in news
    await manager_of(kit, settings).look(sorted(news))


async def test_a_listener_ahead_of_the_stream_hears_again(kit: Kit) -> None:
    """The server forgot (or its clock fell back): the listener is not deaf until the clock has caught up."""
    await kit.wake.ring([SPACE])
    ahead = "99999999999999-0"
    ahead, news = await kit.wake.listen(ahead, 10)
    assert news == set()
    await kit.wake.ring([SPACE])
    assert (await kit.wake.listen(ahead, 10))[1] == {SPACE}


async def test_garbage_in_the_registers_stops_no_manager(kit: Kit, settings: Settings) -> None:
    """A worker's credential reaches them all."""
    for n, garbage in enumerate(("{", "[]", "7", '{"loop_age_s":"x","pid":"y","in_hand":[]}', "\ud7ff")):
        start = f"writer@h:{n}:x"
        await kit.poke("HSET", kit.keys.workers_info, start, garbage)
        await kit.client.zadd(kit.keys.workers, {start: await kit.log.now_ms()})
        await kit.poke("HSET", kit.keys.roles, f"r{n}", garbage)
    await kit.poke("HSET", kit.keys.roles, "a b", "{}")
    await kit.poke("HSET", kit.keys.queued("r0"), "garbage", "1-1")
    manager = manager_of(kit, settings)
    await works(kit, manager)
    for n in range(5):
        await kit.workers.bury(f"writer@h:{n}:x", "test")
    await works(kit, manager)
    assert await kit.workers.graves(unsettled=True) == []
    assert await kit.workers.sweep(dead_ms=1000, run_id="r", stalled_lost_ms=1000) == []
