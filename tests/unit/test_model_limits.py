"""Permits before model calls, with a clock of our own."""

from __future__ import annotations

import asyncio

from protocol.kit.modellist import ModelEntry
from workers.limits import LocalLimits


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.now += seconds


def limits() -> tuple[LocalLimits, Clock]:
    clock = Clock()
    return LocalLimits(clock=clock, sleep=clock.sleep), clock


async def test_requests_per_minute() -> None:
    keeper, clock = limits()
    spec = ModelEntry("m", requests_per_minute=2)
    for _ in range(2):
        async with keeper.permit(spec, 10):
            clock.now += 5
    async with keeper.permit(spec, 10):
        assert clock.slept == [50.0]


async def test_tokens_per_minute_count_what_was_used_not_what_was_guessed() -> None:
    keeper, clock = limits()
    spec = ModelEntry("m", tokens_per_minute=100)
    async with keeper.permit(spec, 90) as permit:
        permit.used = 20
    async with keeper.permit(spec, 80):
        assert clock.slept == []
    async with keeper.permit(spec, 50):
        assert clock.slept == [60.0]


async def test_a_call_larger_than_the_limit_goes_alone() -> None:
    keeper, clock = limits()
    async with keeper.permit(ModelEntry("m", tokens_per_minute=10), 500):
        assert clock.slept == []


async def test_a_cool_down_holds_back_that_entry_alone() -> None:
    keeper, clock = limits()
    await keeper.cool_down(ModelEntry("m"), 30)
    async with keeper.permit(ModelEntry("other"), 1):
        assert clock.slept == []
    async with keeper.permit(ModelEntry("m"), 1):
        assert clock.slept == [30.0]


async def test_concurrent_calls_wait_for_one_another_and_a_failed_one_frees_its_place() -> None:
    keeper, _ = limits()
    spec = ModelEntry("m", concurrent=2)
    running = most = 0

    async def one(fails: bool) -> None:
        nonlocal running, most
        async with keeper.permit(spec, 1):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            if fails:
                raise RuntimeError("no")

    done = await asyncio.gather(*(one(n % 3 == 0) for n in range(9)), return_exceptions=True)
    assert most == 2
    assert sum(isinstance(each, RuntimeError) for each in done) == 3
