"""Faults that systems like this one had, where no other module's subject covers them: a manager on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from coordinator import openspaces
from protocol.errors import FenceLost
from protocol.kit.settings import Settings
from tests.integration.invariantkit import BY, Kit, StillHeart, assigned, kit_on, manager_of, record
from tests.support import wait_until
from workers.fence import Fence
from workers.heartbeat import Heart


@pytest.fixture
async def kit(redis_url: str, prefix: str) -> AsyncIterator[Kit]:
    async with kit_on(redis_url, prefix) as made:
        yield made


async def complete(kit: Kit, task: str) -> None:
    owner = "writer@host:1:abc"
    await kit.add(assigned(task))
    await kit.claim(task, owner=owner)
    assert await kit.add(record("task_completed", task, "writer_1", attempt=1, result=f"结果 {task}"), owner=owner) == [
        "added"
    ]


async def test_nothing_is_merged_between_two_stages_although_all_so_far_is_complete(
    kit: Kit, settings: Settings
) -> None:
    manager = manager_of(kit, settings)
    await complete(kit, "T1")
    for _ in range(3):
        await manager.sweep()
    assert "task_merged" not in await kit.events(), "the flow has not said that this was all"
    await complete(kit, "T2")
    await manager.sweep()
    assert "task_merged" not in await kit.events()
    await kit.add(record("decision", "DEC_f", "leader", action="finish", by=BY, why="完", status="completed"))
    await manager.sweep()
    await manager.sweep()
    merges = [r for _, r in await kit.log.tail("S") if r.event == "task_merged"]
    assert [sorted(m.detail["source_tasks"]) for m in merges] == [["T1", "T2"]]


async def test_every_space_is_visited_however_many_there_are(
    kit: Kit, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 spaces a sweep, 3 here: the next sweep goes on where the last one ended, whoever waits where."""
    monkeypatch.setattr(openspaces, "SPACES_A_SWEEP", 3)
    names = [f"space-{n:02}" for n in range(11)]
    for name in names:
        await kit.make(name)
        await kit.add(assigned(), space=name)
        await kit.age_outbox(name)
    manager = manager_of(kit, settings)
    for _ in range(4):
        await manager.sweep()
    left = [name for name in [*names, "S"] if await kit.outbox(name)]
    assert left == [], "four sweeps of three are twelve spaces"
    assert await kit.streams.backlog(["writer"]) == {"writer": len(names)}


async def test_past_the_last_confirmed_beat_nothing_new_begins() -> None:
    """The store is away for longer than a lease: a turn waits before its next act until it knows whose it is."""
    heart = StillHeart()
    fence = Fence(cast("Heart", heart))
    await fence.check()
    heart.confirmed = False
    waiting = asyncio.create_task(fence.check())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.3)
    heart.confirmed = True
    await asyncio.wait_for(waiting, 5)
    heart.confirmed = False
    waiting = asyncio.create_task(fence.check())
    heart.buried = True
    with pytest.raises(FenceLost, match="buried"):
        await asyncio.wait_for(waiting, 5)
    await wait_until(lambda: fence.lost, "it stays lost")
    heart.confirmed, heart.buried = True, False
    with pytest.raises(FenceLost):
        await fence.check()
