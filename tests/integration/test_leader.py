"""Leaders on a real server: sessions led to their end, shared out, taken over, each command written once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from coordinator.session import Order, start
from protocol.errors import PlanRefused
from protocol.kit.settings import Settings
from protocol.ports import Dispatch
from protocol.record import Record, Trace
from protocol.stores.client import connect
from tests.integration.fleetkit import PERSON, ROLE, Fleet, delivery, doubled, leading, until, working
from tests.memory import graph
from tests.support import wait_until


@pytest.fixture
async def fleet(redis_url: str, prefix: str) -> AsyncIterator[Fleet]:
    client = connect(redis_url)
    fleet = Fleet(client, prefix)
    async with working(fleet):
        yield fleet
    await client.aclose()


async def test_a_session_is_led_from_its_start_to_its_finish(settings: Settings, redis_url: str, fleet: Fleet) -> None:
    async with leading(settings, redis_url):
        session = await fleet.start(
            Order("读一遍\nsecond line", plan=graph({"a": [], "b": ["a"], "c": ["a", "b"]})["plan"])
        )
        finish = await fleet.end(session)
    records = await fleet.records(session)
    assert finish.detail["status"] == "completed"
    assert not doubled(records)
    assert [r.event for r in records[:4]] == ["task_started", "task_pending", "task_pending", "task_pending"]
    done = [r.id for r in records if r.event == "task_completed"]
    assert done == ["a", "b", "c"]
    last = next(r for r in records if r.event == "task_assigned" and r.id == "c")
    assert last.detail["results"] == {"a": {"result": "结果 a"}, "b": {"result": "结果 b"}}
    assert last.detail["by"]["flow"] == "plan"
    meta = await fleet.log.meta(session)
    assert (meta["kind"], meta["title"], meta["flow"]) == ("session", "读一遍", "plan")
    assert not await fleet.client.exists(fleet.keys.space(session).outbox)


async def test_the_first_dispatch_does_not_wait_for_any_sweep(redis_url: str, settings: Settings, fleet: Fleet) -> None:
    slow = Settings(data_dir=settings.data_dir, prefix=settings.prefix, sweep_s=60)
    async with leading(slow, redis_url):
        began = time.monotonic()
        session = await fleet.start(Order("一件事", flow="solo", role=ROLE))
        await fleet.end(session)
        assert time.monotonic() - began < 5, "a hint is enough"


async def test_three_leaders_share_the_sessions_and_write_nothing_twice(
    settings: Settings, redis_url: str, fleet: Fleet
) -> None:
    edges = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
    async with AsyncExitStack() as stack:
        leaders = [await stack.enter_async_context(leading(settings, redis_url)) for _ in range(3)]
        sessions = [await fleet.start(Order(f"目标 {n}", plan=graph(edges)["plan"])) for n in range(30)]
        for session in sessions:
            await fleet.end(session)
        held = [made.leads for made in leaders]
    assert len(set(sessions)) == 30
    assert not (held[0] & held[1] or held[0] & held[2] or held[1] & held[2])
    for session in sessions:
        records = await fleet.records(session)
        assert not doubled(records)
        assert Counter(r.event for r in records)["task_completed"] == len(edges)
        assert not [r for r in records if r.event == "protocol_violation"]


async def test_a_leader_that_died_is_followed_by_another(settings: Settings, redis_url: str, fleet: Fleet) -> None:
    await fleet.roles.publish("late", {"name": "Late"}, "d")  # nobody works for it yet
    plan = {"tasks": [{"id": "a", "role": "late", "prompt": "a"}, {"id": "b", "role": ROLE, "depends_on": ["a"]}]}
    async with leading(settings, redis_url, crash=True) as first:
        session = await fleet.start(Order("接手", plan=plan))
        await until(lambda: fleet.streams.backlog(["late"]), "a is dispatched")
        await wait_until(lambda: session in first.leads, "the first leader holds it")
    term = (await fleet.log.meta(session))["lease_term"]
    async with leading(settings, redis_url) as second:
        await wait_until(lambda: session in second.leads, "the lease ended and the second leader has it")
        found = await until(lambda: fleet.streams.read("late", "x", 1, 100), "the dispatch is there, once")
        [dispatch] = await fleet.claims.claim([found[0][1]], "late@here:2:def", now_s=1)
        assert isinstance(dispatch, Dispatch)
        await fleet.log.append(session, [delivery(dispatch)], owner="late@here:2:def")
        await fleet.wake.ring([session])
        assert (await fleet.end(session)).detail["status"] == "completed"
    records = await fleet.records(session)
    assert not doubled(records)
    terms = {r.id: r.detail["by"]["term"] for r in records if r.event == "task_assigned"}
    assert terms["a"] == int(term)
    assert terms["b"] > terms["a"]


async def test_a_lost_hint_costs_one_sweep(settings: Settings, redis_url: str, fleet: Fleet) -> None:
    class Deaf:
        async def ring(self, spaces: list[str]) -> None:
            assert spaces

    async with leading(settings, redis_url):
        session = await start(
            Order("没有铃声", flow="solo", role=ROLE), log=fleet.log, artifacts=fleet.artifacts, bell=Deaf(), who=PERSON
        )
        assert (await fleet.end(session)).detail["status"] == "completed"


async def test_a_plan_too_large_for_a_record_travels_as_an_artifact(
    settings: Settings, redis_url: str, fleet: Fleet
) -> None:
    plan = graph({f"t{n}": [] for n in range(120)})["plan"]
    for task in plan["tasks"]:
        task["prompt"] = "长" * 1000
    async with leading(settings, redis_url):
        session = await fleet.start(Order("大", plan=plan))
        finish = await fleet.end(session)
    records = await fleet.records(session)
    assert finish.detail["status"] == "completed"
    assert "plan" not in records[0].detail
    assert records[0].detail["plan_artifact"]["size"] > 200_000
    assert sum(r.event == "task_completed" for r in records) == 120
    sizes = Counter(r.detail["by"]["as_of"] for r in records if "by" in r.detail and isinstance(r.detail["by"], dict))
    assert max(sizes.values()) <= 100


async def test_a_plan_with_an_unknown_role_is_refused_before_there_is_a_space(fleet: Fleet) -> None:
    with pytest.raises(PlanRefused, match="'nobody'"):
        await fleet.start(Order("x", plan={"tasks": [{"id": "a", "role": "nobody"}]}))
    assert await fleet.log.spaces() == []


async def test_a_space_made_by_hand_is_left_alone(settings: Settings, redis_url: str, fleet: Fleet) -> None:
    await fleet.log.create("myproject", meta={"kind": "hand"})
    root = Record(
        id="myproject", who=PERSON, time=1, event="task_started", what="x",
        detail={"goal": "x", "flow": "solo", "role": ROLE}, trace=Trace(parent_id=None, session_id="s"),
    )  # fmt: skip
    await fleet.log.append("myproject", [root])
    async with leading(settings, redis_url) as made:
        await fleet.wake.ring(["myproject"])
        session = await fleet.start(Order("另一个", flow="solo", role=ROLE))
        await fleet.end(session)
        assert "myproject" not in made.leads
    assert len(await fleet.records("myproject")) == 1


async def test_a_session_of_a_flow_that_is_not_here_holds_up_nobody(
    settings: Settings, redis_url: str, fleet: Fleet
) -> None:
    await fleet.log.create("conv_x", meta={"kind": "session"})
    root = Record(
        id="conv_x", who=PERSON, time=1, event="task_started", what="x", detail={"goal": "x", "flow": "dance"},
        trace=Trace(parent_id=None, session_id="conv_x"),
    )  # fmt: skip
    await fleet.log.append("conv_x", [root])
    async with leading(settings, redis_url):
        await fleet.wake.ring(["conv_x"])
        session = await fleet.start(Order("另一个", flow="solo", role=ROLE))
        assert (await fleet.end(session)).detail["status"] == "completed"
    assert len(await fleet.records("conv_x")) == 1


async def test_a_person_takes_up_a_blocked_task_after_the_finish(
    settings: Settings, redis_url: str, fleet: Fleet
) -> None:
    await fleet.roles.publish("late", {"name": "Late"}, "d")
    plan = {"tasks": [{"id": "a", "role": "late"}, {"id": "b", "role": ROLE}]}
    async with leading(settings, redis_url):
        session = await fleet.start(Order("迟", plan=plan))
        [(entry, ref)] = await until(lambda: fleet.streams.read("late", "x", 1, 100), "a is dispatched")
        [dispatch] = await fleet.claims.claim([ref], "late@here:2:def", now_s=1)
        blocked = {"attempt": 1, "requires_human_intervention": True, "reason": "坏了"}
        trace = Trace(parent_id=session, session_id=session)
        record = Record(id="a", who="late_1", time=1, event="task_blocked", what="x", detail=blocked, trace=trace)
        await fleet.log.append(session, [record], owner="late@here:2:def")
        await fleet.streams.ack("late", [(entry, ref)])
        await fleet.wake.ring([session])
        assert (await fleet.end(session)).detail["missing"] == [{"task": "a", "reason": "blocked: 坏了"}]
        decision = {"action": "retry", "task": "a", "by": PERSON, "why": "again"}
        record = Record(id="DEC_1", who=PERSON, time=1, event="decision", what="x", detail=decision, trace=trace)
        await fleet.log.append(session, [record])
        await fleet.wake.ring([session])
        [(_, again)] = await until(lambda: fleet.streams.read("late", "x", 1, 100), "a is dispatched again")
        assert again.attempt == 2
        [dispatch] = await fleet.claims.claim([again], "late@here:2:def", now_s=1)
        assert isinstance(dispatch, Dispatch)
        assert dispatch.agent == "late_1"
        await fleet.log.append(session, [delivery(dispatch)], owner="late@here:2:def")
        await fleet.wake.ring([session])

        async def both() -> list[str]:
            found = [r.detail["status"] for r in await fleet.finishes(session)]
            return found if len(found) == 2 else []

        statuses = await until(both, "there are two finishes")
    assert statuses == ["partial", "completed"]
