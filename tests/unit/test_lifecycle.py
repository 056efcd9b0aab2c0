"""Lifecycle: drain on the first signal, stop at once on the second, start and stop twice."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from protocol.kit.lifecycle import Lifecycle, Stopping, run_until_signal
from tests.support import wait_until


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


async def test_work_that_returns_ends_it():
    async def work(stopping: Stopping) -> None:
        assert not stopping.draining

    assert await run_until_signal(work, grace_s=1) is True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_lets_it_finish(number):
    seen = []

    async def work(stopping: Stopping) -> None:
        send(number)
        await stopping.wait()
        await asyncio.sleep(0)
        seen.append((stopping.draining, stopping.now))

    assert await run_until_signal(work, grace_s=30) is True
    assert seen == [(True, False)]


async def test_the_second_signal_cuts_it_off_and_waits_for_its_cleaning_up():
    cleaned = []

    async def work(stopping: Stopping) -> None:
        send()
        await stopping.wait()
        send()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(stopping.now)

    assert await run_until_signal(work, grace_s=30) is False
    assert cleaned == [True]


async def test_the_grace_time_cuts_it_off():
    async def work(stopping: Stopping) -> None:
        send()
        await asyncio.Event().wait()

    assert await run_until_signal(work, grace_s=0.05) is False


async def test_what_the_work_raises_is_raised():
    async def work(stopping: Stopping) -> None:
        raise LookupError("出错")

    with pytest.raises(LookupError, match="出错"):
        await run_until_signal(work, grace_s=1)


async def test_former_handlers_are_back_and_nothing_is_left_running():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    async def work(stopping: Stopping) -> None:
        stopping.request()

    await run_until_signal(work, grace_s=1)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelled_from_outside_it_takes_the_work_along():
    ended = asyncio.Event()
    began = asyncio.Event()

    async def work(stopping: Stopping) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    running = asyncio.create_task(run_until_signal(work, grace_s=30))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()


async def test_a_sleep_ends_when_draining_begins():
    stopping = Stopping()
    assert await stopping.sleep(0.001) is False
    sleeping = asyncio.create_task(stopping.sleep(600))
    await asyncio.sleep(0)
    stopping.request()
    assert await wait_until(sleeping.done, "the sleep ended early")
    assert sleeping.result() is True


class Counted(Lifecycle):
    def __init__(self, fail: bool = False) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.fail = fail

    async def _start(self) -> None:
        await asyncio.sleep(0)
        self.calls.append("start")
        if self.fail:
            raise RuntimeError("half")

    async def _stop(self) -> None:
        self.calls.append("stop")


async def test_start_and_stop_are_legal_twice():
    thing = Counted()
    await thing.stop()
    await asyncio.gather(thing.start(), thing.start())
    await thing.start()
    assert thing.started
    await asyncio.gather(thing.stop(), thing.stop())
    assert thing.calls == ["start", "stop"]
    async with thing:
        assert thing.started
    assert thing.calls == ["start", "stop"] * 2


async def test_a_start_that_fails_is_cleaned_up_and_may_be_tried_again():
    thing = Counted(fail=True)
    with pytest.raises(RuntimeError, match="half"):
        await thing.start()
    assert not thing.started
    thing.fail = False
    await thing.start()
    assert thing.calls == ["start", "stop", "start"]
