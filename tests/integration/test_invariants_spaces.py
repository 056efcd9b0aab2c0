"""Invariants 6, 8 and 9: which spaces are swept. A space with work under way is never given up, whoever races whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from coordinator.intake import take_in
from coordinator.openspaces import SPACES_A_SWEEP
from protocol.kit.lifecycle import Stopping
from protocol.kit.settings import Settings
from protocol.record import canonical
from protocol.stores.redis_dispatch import Ref
from tests.integration.invariantkit import BY, ROLE, SPACE, START, Kit, assigned, kit_on, manager_of, record
from tests.support import wait_until

HAND = "hand"


@pytest.fixture
async def kit(redis_url: str, prefix: str) -> AsyncIterator[Kit]:
    async with kit_on(redis_url, prefix) as made:
        await made.make(HAND, kind="hand", policy="hold")
        await age(made)
        yield made


async def age(kit: Kit) -> None:
    """Nobody has announced a write for long."""
    for space in await kit.log.spaces():
        await kit.client.zadd(kit.keys.spaces, {space: 1})


async def opened(kit: Kit, space: str = HAND) -> bool:
    return space in await kit.log.open_spaces()


async def test_a_space_with_a_dispatch_in_a_stream_is_swept_until_it_is_done(kit: Kit, settings: Settings) -> None:
    manager = manager_of(kit, settings)
    await kit.add(assigned(), space=HAND)
    await kit.streams.enqueue([Ref(ROLE, HAND, "T1", 1)])
    for _ in range(3):
        await manager.sweep()
    assert await opened(kit), "its outbox is empty, and its task is not begun"
    await kit.live()
    await kit.claim(space=HAND)
    await manager.sweep()
    await kit.add(record("task_completed", who="writer_1", attempt=1, result=1), owner=START, space=HAND)
    await manager.sweep()
    assert not await opened(kit)


async def test_a_retry_of_a_space_by_hand_fires_without_its_alarm(kit: Kit, settings: Settings) -> None:
    manager = manager_of(kit, settings)
    await kit.add(assigned(), space=HAND)
    await kit.streams.enqueue([Ref(ROLE, HAND, "T1", 1)])
    await manager.sweep()
    await kit.live()
    await kit.claim(space=HAND)
    await kit.add(
        record("task_failed", who="writer_1", attempt=1, error={}),
        record("task_retrying", who="writer_1", attempt=2, delay_s=0, reason="x"), owner=START, space=HAND,
    )  # fmt: skip
    await kit.client.zadd(kit.keys.space(HAND).due, {"T1": 1})
    await manager.sweep()
    state = await kit.state("T1", HAND)
    assert (state.state, state.attempt) == ("assigned", 2)


async def test_a_space_that_is_being_made_is_not_given_up(kit: Kit, settings: Settings) -> None:
    manager = manager_of(kit, settings)
    looks = await kit.claims.look(["new"], outbox_ms=0, overdue_ms=0, silent_ms=0)
    await kit.make("new")
    await manager._care(looks[0])
    assert await opened(kit, "new"), "the manager saw it before it was there"
    await kit.client.sadd(kit.keys.spaces_open, "never")  # type: ignore[misc]
    await manager.sweep()
    assert not await opened(kit, "never")


async def test_a_space_half_made_is_made(kit: Kit) -> None:
    """Whoever made it died on the way: all of its metadata is there, or none."""
    await kit.client.sadd(kit.keys.spaces_open, "half")  # type: ignore[misc]
    assert await kit.log.create("half", meta={"kind": "session", "policy": "reassign"})
    assert not await kit.log.create("half", meta={"kind": "hand", "policy": "hold"})
    meta = await kit.log.meta("half")
    assert (meta["kind"], meta["policy"]) == ("session", "reassign")
    runs: list[list[str]] = await asyncio.gather(*(_made_by(kit, n) for n in range(8)))
    assert sum(len(made) for made in runs) == 1
    assert (await kit.log.meta("raced"))["title"] == runs[[len(m) for m in runs].index(1)][0]


async def _made_by(kit: Kit, n: int) -> list[str]:
    return [str(n)] if await kit.log.create("raced", meta={"kind": "hand", "title": str(n)}) else []


async def test_who_announced_a_write_has_time_for_it(kit: Kit, settings: Settings) -> None:
    manager = manager_of(kit, settings)
    look = (await kit.claims.look([HAND], outbox_ms=0, overdue_ms=0, silent_ms=0))[0]
    await kit.log.open_space(HAND)  # a person is about to write
    await manager._care(look)  # the manager saw an idle space
    await kit.add(assigned(), space=HAND)
    assert await opened(kit)


async def test_what_comes_between_the_last_look_and_the_end_opens_it_again(kit: Kit, settings: Settings) -> None:
    manager = manager_of(kit, settings)
    look = (await kit.claims.look([HAND], outbox_ms=0, overdue_ms=0, silent_ms=0))[0]
    await kit.add(assigned(), space=HAND)  # without an announcement
    await manager._care(look)
    assert await opened(kit)


async def test_a_record_by_hand_opens_a_settled_space(kit: Kit, settings: Settings) -> None:
    manager = manager_of(kit, settings)
    await manager.sweep()
    assert not await opened(kit)
    taken = await take_in(kit.log, HAND, canonical(assigned().to_json()))
    assert taken[0].outcome == "added"
    assert await opened(kit)
    await kit.age_outbox(HAND)
    await manager.sweep()
    assert await kit.streams.backlog([ROLE]) == {ROLE: 1}


async def test_a_manager_that_starts_finds_what_was_given_up_too_early(kit: Kit, settings: Settings) -> None:
    await kit.add(assigned(), space=HAND)
    await kit.make("idle", kind="hand")
    await kit.log.close_space(HAND)  # and whoever did it died before it looked once more
    await kit.log.close_space("idle")
    await kit.age_outbox(HAND)
    stopping = Stopping()
    running = asyncio.create_task(manager_of(kit, settings).run(stopping))

    async def enqueued() -> bool:
        return (await kit.streams.backlog([ROLE]))[ROLE] == 1

    await wait_until(enqueued, "its dispatch is enqueued")
    assert not await opened(kit, "idle")
    stopping.request()
    await running


async def test_every_open_space_has_its_turn_however_many_there_are(kit: Kit, settings: Settings) -> None:
    names = [f"s{n:04}" for n in range(2 * SPACES_A_SWEEP + 50)]
    async with kit.client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hset(kit.keys.space(name).meta, mapping={"kind": "session"})
            pipe.zadd(kit.keys.spaces, {name: 1})
            pipe.sadd(kit.keys.spaces_open, name)
        await pipe.execute()
    manager = manager_of(kit, settings)
    seen: list[str] = []
    for _ in range(3):
        part = await manager._spaces.next()
        assert len(part) <= SPACES_A_SWEEP
        seen += part
    assert set(names) <= set(seen)


async def test_a_finished_session_is_given_up_when_it_is_merged_and_taken_up_again_by_a_person(
    kit: Kit, settings: Settings
) -> None:
    manager = manager_of(kit, settings)
    await kit.add(
        record("task_started", SPACE, session=SPACE, flow="plan"),
        record("task_completed", "T1", session=SPACE, result=1),
    )
    await manager.sweep()
    assert await opened(kit, SPACE), "not finished"
    await kit.add(
        record("decision", "DEC_f", "leader", session=SPACE, action="finish", by=BY, why="w", status="completed")
    )
    await age(kit)
    await manager.sweep()
    await manager.sweep()
    assert (await kit.log.meta(SPACE))["merged"]
    assert not await opened(kit, SPACE)
