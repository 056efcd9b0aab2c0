"""The budget of a session: set aside before each call in one atomic step, and a clean end where it is used up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.session import Order
from protocol.errors import FenceLost, StoreUnreachable, TaskError
from protocol.keys import Keys
from protocol.kit.modellist import ModelEntry
from protocol.ports import Dispatch
from protocol.record import Json, Record, Trace
from protocol.stores.client import Client, awaited, connect
from protocol.stores.redis_budget import Budgets, Granted, Limits, UsedRow, Wanted
from protocol.stores.redis_log import RedisLog
from tests.integration.cli_support import Cli
from tests.integration.endpoint import Answer, Endpoint, serving
from tests.integration.modelfleet import model_fleet, says_using
from tests.support import wait_until
from workers.budget import OverBudget, SharedBudget
from workers.stream import Usage

OWNER = "writer@here:1:aa"
SPEC = ModelEntry("main", "m", "http://127.0.0.1:9/v1")
CALL = Wanted(prompt=100, least=50, most=200)
MADE = Dispatch("s1", "T1", 1, "writer", "writer_1", "s1", OWNER, 0, {})


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    made = connect(redis_url)
    yield made
    await made.aclose()


@pytest.fixture
async def budgets(client: Client, prefix: str) -> Budgets:
    """The budgets of a fleet in which MADE is claimed."""
    log = RedisLog(client, Keys(prefix))
    await log.create("s1", meta={"kind": "session", "session": "s1"})
    detail: dict[str, Json] = {"role": "writer", "attempt": 1, "worker": OWNER}
    for event, who in (("task_assigned", "leader"), ("task_processing", "writer_1")):
        record = Record(
            id="T1", who=who, time=1, event=event, what=event, detail=detail,  # type: ignore[arg-type]
            trace=Trace(parent_id=None, session_id="s1"),
        )  # fmt: skip
        assert (await log.append("s1", [record], owner=OWNER))[0].outcome == "added"
    return Budgets(client, Keys(prefix))


async def spend(budgets: Budgets, call: str, prompt: int, completion: int, micros: int = 0, **more: Any) -> bool:
    given = {"row": ("writer", "main"), **more}
    return await budgets.spend("s1", call, prompt=prompt, completion=completion, micros=micros, **given)


async def test_what_is_set_aside_and_used_never_passes_the_limit(budgets: Budgets) -> None:
    limits = Limits(tokens=1_000)
    assert await budgets.reserve(MADE, "c1", limits, CALL) == Granted("ok", answer=200)
    asked = await asyncio.gather(*(budgets.reserve(MADE, f"d{n}", limits, CALL) for n in range(5)))
    first, second = [f"d{n}" for n, granted in enumerate(asked) if granted.outcome == "ok"]
    assert sorted(granted.outcome for granted in asked) == ["ok", "ok", "wait", "wait", "wait"], "whoever came first"
    assert await spend(budgets, "c1", 90, 10)
    assert (await budgets.reserve(MADE, "c2", limits, CALL)).outcome == "ok"
    for call in (first, second, "c2"):
        await spend(budgets, call, 100, 160)
    # 880 are used: 120 leave room for a prompt of 60 and an answer of 60, for no other.
    assert await budgets.reserve(MADE, "c3", limits, CALL) == Granted("over", limit="tokens", used=880, most=1_000)
    assert await budgets.reserve(MADE, "c4", limits, replace(CALL, prompt=60)) == Granted("ok", answer=60)
    assert await budgets.used("s1") == [UsedRow("writer", "main", 4, 390, 490, 0)]


async def test_money_is_a_limit_of_its_own(budgets: Budgets) -> None:
    limits = Limits(tokens=10_000, micros=1_000)
    wanted = replace(CALL, prompt_micros=200, micros_a_token=2.5)
    assert await budgets.reserve(MADE, "c1", limits, wanted) == Granted("ok", answer=200)
    await spend(budgets, "c1", 100, 20, 250)
    assert await budgets.reserve(MADE, "c2", limits, replace(wanted, prompt_micros=600)) == Granted("ok", answer=60)
    await spend(budgets, "c2", 100, 60, 750)
    over = await budgets.reserve(MADE, "c3", limits, wanted)
    assert over == Granted("over", limit="money", used=1_000, most=1_000)
    assert [row.to_json()["cost"] for row in await budgets.used("s1")] == [0.001]


async def test_asking_and_settling_again_count_once(budgets: Budgets) -> None:
    limits = Limits(tokens=500)
    for _ in range(3):
        assert (await budgets.reserve(MADE, "c1", limits, CALL)).outcome == "ok"
    assert [await spend(budgets, "c1", 100, 50, unnamed=True) for _ in range(3)] == [True, False, False]
    assert await budgets.used("s1") == [UsedRow("writer", "main", 1, 100, 50, 0, 1)]


async def test_a_resumed_session_counts_anew(budgets: Budgets) -> None:
    await budgets.reserve(MADE, "c1", Limits(tokens=400), CALL)
    await spend(budgets, "c1", 300, 100)
    assert (await budgets.reserve(MADE, "c2", Limits(tokens=400), CALL)).outcome == "over"
    assert (await budgets.reserve(MADE, "c3", Limits(tokens=400, epoch=1), CALL)).outcome == "ok"
    await spend(budgets, "c3", 300, 100)
    assert (await budgets.reserve(MADE, "c4", Limits(tokens=400, epoch=0), CALL)).outcome == "over"


async def test_what_a_dead_holder_set_aside_counts_as_used(client: Client, prefix: str, budgets: Budgets) -> None:
    brief = Budgets(client, Keys(prefix), lease_ms=1)
    limits = Limits(tokens=500)
    await brief.reserve(MADE, "dead", limits, CALL)
    # The next question finds the lease ended (a millisecond passes between two round trips, or the next one finds it).
    while (granted := await budgets.reserve(MADE, "c1", limits, replace(CALL, prompt=250))).outcome == "wait":
        pass
    assert granted == Granted("over", limit="tokens", used=300, most=500)
    assert await spend(brief, "dead", 10, 10), "it was stopped, not dead: its late word corrects the count"
    assert (await budgets.reserve(MADE, "c2", limits, replace(CALL, prompt=250))).outcome == "ok"


async def test_only_the_owner_of_the_attempt_is_given_anything(budgets: Budgets) -> None:
    zombie = replace(MADE, owner="writer@here:2:bb")
    assert (await budgets.reserve(zombie, "c1", Limits(), CALL)).outcome == "lost"
    budget = SharedBudget(budgets)
    with pytest.raises(FenceLost):
        async with budget.hold(zombie, SPEC, 10):
            raise AssertionError("nothing runs under a lost attempt")


async def test_a_hold_waits_for_others_and_ends_where_nothing_is_left(budgets: Budgets) -> None:
    made = replace(MADE, detail={"budget": {"tokens": 1_000, "epoch": 0}})
    budget = SharedBudget(budgets)
    order: list[str] = []

    async def second() -> None:
        async with budget.hold(made, SPEC, 100) as hold:
            order.append("second")
            hold.used = Usage(prompt=100, completion=400, total=500, calls=1)

    async with budget.hold(made, SPEC, 100) as hold:
        assert hold.answer == 900
        waiting = asyncio.create_task(second())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.5)
        order.append("first")
        hold.used = Usage(prompt=100, completion=300, total=400, calls=1)
    await waiting
    assert order == ["first", "second"]
    with pytest.raises(OverBudget) as over:
        async with budget.hold(made, SPEC, 100):
            raise AssertionError("no call is made")
    assert (over.value.kind, over.value.retryable) == ("budget", False)
    assert over.value.guard == {"budget": "tokens", "used": 900, "limit": 1_000}


async def test_a_call_that_broke_off_counts_its_prompt(budgets: Budgets) -> None:
    made = replace(MADE, detail={"budget": {"tokens": 1_000, "epoch": 0}})

    async def broken() -> None:
        async with SharedBudget(budgets).hold(made, SPEC, 600) as hold:
            hold.guess = 600
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await broken()
    assert (await budgets.reserve(made, "c1", Limits(tokens=1_000), replace(CALL, prompt=400))).used == 600
    assert await budgets.used("s1") == [], "it gave no answer"


async def test_money_without_a_price_is_refused_by_name(budgets: Budgets) -> None:
    made = replace(MADE, detail={"budget": {"money": 1, "epoch": 0}})
    with pytest.raises(TaskError, match=r"models\.main has no price") as refused:
        async with SharedBudget(budgets).hold(made, SPEC, 10):
            raise AssertionError("no call is made")
    assert not refused.value.retryable


async def test_a_store_that_is_away_holds_back() -> None:
    tries: list[float] = []

    class Away(Budgets):
        def __init__(self) -> None:
            self.lease_ms = 1_000

        async def reserve(self, *given: Any) -> Granted:
            if len(tries) < 2:
                raise StoreUnreachable("gone")
            return Granted("ok", answer=1)

        async def spend(self, *given: Any, **more: Any) -> bool:
            raise StoreUnreachable("gone")

    async def sleep(seconds: float) -> None:
        tries.append(seconds)

    async with SharedBudget(Away(), sleep=sleep, random=lambda: 0.5).hold(MADE, SPEC, 10) as hold:
        assert hold.answer is None, "no limit, no cap"
    assert tries == [0.2, 0.2]


CALLED = (300, 400)
"""Tokens of a prompt and of an answer of the endpoint below."""


class Counting(Endpoint):
    """Answers everything; ``used`` is what it really served."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 0

    def choose(self, request: dict[str, Json]) -> Answer:
        self.used += sum(CALLED)
        return says_using("完成", *CALLED)


@pytest.mark.slow
async def test_a_session_whose_budget_is_used_up_ends_cleanly_with_what_there_is(
    tmp_path: Path, fleet_env: dict[str, str], cli: Cli, client: Client, prefix: str
) -> None:
    """Three workers, twelve tasks of 700 tokens each, room for some of them: nothing passes the limit."""
    plan = {"tasks": [{"id": f"t{n:02d}", "role": "writer", "prompt": f"写第 {n} 段"} for n in range(12)]}
    async with (
        serving(endpoint=Counting()) as endpoint,
        model_fleet(
            tmp_path, fleet_env, endpoint, roles={"writer": "concurrency: 2\n"}, workers={"writer": 3},
            models=[{"price_input": 1.0, "price_output": 2.0, "max_output_tokens": 500}],
        ) as up,
    ):  # fmt: skip
        space = await up.run(Order(goal="写一本书", plan=plan, guards={"tokens": 4_500}))
        finish = await up.end(space)
        await up.merged(space)
        records = await up.records(space)
        assert isinstance(endpoint, Counting)
        assert 3_500 <= endpoint.used <= 4_500
        assert finish.detail["status"] == "partial"
        done = [r for r in records if r.event == "task_completed"]
        assert len(done) == endpoint.used // 700
        assert [r.detail["guard"] for r in records if r.detail.get("action") == "guard"] == ["tokens"]
        refused = [r.detail for r in records if r.event == "task_failed"]
        assert refused
        assert all(d["error"]["kind"] == "budget" and d["guard"]["limit"] == 4_500 for d in refused)
        assert all("max_tokens" in request for _, _, request in endpoint.requests), "the answers are capped"
        usage = done[0].detail["usage"]
        assert (usage["attempt"], usage["model"], usage["total_tokens"], usage["cost"]) == (1, "main", 700, 0.0011)
        found = (await asyncio.to_thread(cli, "session", "show", space, "--json")).json["usage"]
        assert found["total_tokens"] == endpoint.used
        assert found["budget"] == {"tokens": 4_500}
        [row] = found["by"]
        assert (row["role"], row["model"], row["calls"]) == ("writer", "main", len(done))
        shown = (await asyncio.to_thread(cli, "session", "show", space)).out
        assert f"{endpoint.used} tokens used, cost {0.0011 * len(done):g} (budget: 4500 tokens)" in shown
        # With more to spend it goes on where it stopped.
        await asyncio.to_thread(cli, "session", "resume", space, "--budget-tokens", "20000")
        before = finish

        async def finished_again() -> bool:
            return (await up.end(space)).id != before.id

        await wait_until(finished_again, "the resumed session has finished", 60, every=0.1)
        assert (await up.end(space)).detail["status"] == "completed"
        assert endpoint.used == 12 * 700, "no task that was delivered ran again"
        left = await awaited(client.hgetall(Keys(prefix).space(space).used))
        assert left[b"=held_tokens"] == b"0"
