"""Patience with a store that is away: waited out, said once, whoever gets through meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from redis.exceptions import ResponseError

from protocol.errors import StoreDenied, StoreError, StoreFull, StoreUnreachable
from protocol.kit import patience as module
from protocol.kit.lifecycle import Stopping
from protocol.kit.patience import Patience
from protocol.stores.client import guard
from tests.support import wait_until


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was logged; the pauses are short."""
    lines: list[str] = []
    monkeypatch.setattr(module, "PAUSES_S", (0.001, 0.002))

    class Log:
        def warning(self, text: str, *, op: str, **more: object) -> None:
            lines.append(f"{text}: {op}")

        info = warning

    monkeypatch.setattr(module, "log", Log())
    return lines


def failing(times: list[int], error: Exception) -> Callable[[], Awaitable[str]]:
    """Fails as often as ``times[0]`` says, then gives a result."""

    async def act() -> str:
        times[0] -= 1
        if times[0] >= 0:
            raise error
        return "好"

    return act


async def test_an_outage_is_waited_out_and_said_once(said: list[str]) -> None:
    patience = Patience(Stopping())
    assert await patience("deliver", failing([5], StoreUnreachable("away"))) == "好"
    assert said == ["the store is away: deliver", "the store is back: deliver"]
    assert patience.outages == 1
    assert await patience("deliver", failing([0], StoreUnreachable("away"))) == "好"
    assert patience.outages == 1


async def test_reads_that_get_through_do_not_end_the_outage_of_a_write(said: list[str]) -> None:
    """A server whose disk is full reads and does not write: saying away and back in turns would fill its log too."""
    patience, left = Patience(Stopping()), [1_000_000]
    writing = asyncio.create_task(patience("deliver", failing(left, StoreFull("no space left"))))
    await wait_until(lambda: left[0] < 1_000_000, "it failed")
    for _ in range(20):
        assert await patience("read", failing([0], StoreFull("no space left"))) == "好"
    assert said == ["the store is away: deliver"]
    assert patience.outages == 0
    left[0] = 0
    assert await writing == "好"
    assert said[1:] == ["the store is back: deliver"]
    assert patience.outages == 1


async def test_several_that_wait_are_one_outage(said: list[str]) -> None:
    patience = Patience(Stopping())
    both = [patience(op, failing([n], StoreUnreachable("away"))) for n, op in ((3, "read"), (30, "deliver"))]
    assert await asyncio.gather(*both) == ["好", "好"]
    assert said == ["the store is away: read", "the store is back: deliver"]
    assert patience.outages == 1


async def test_who_gives_up_waiting_leaves_no_outage_behind(said: list[str]) -> None:
    stopping = Stopping()
    patience, for_ever = Patience(stopping), [1_000_000]
    waiting = asyncio.create_task(patience("read", failing(for_ever, StoreUnreachable("away"))))
    cancelled = asyncio.create_task(patience("claim", failing(for_ever, StoreUnreachable("away"))))
    await wait_until(lambda: for_ever[0] < 999_990, "both failed")
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    stopping.request()
    assert await waiting is None
    assert patience.outages == 1, "the server may be another run by now: whoever counts asks again"
    assert await patience("deliver", failing([0], StoreUnreachable("away")), even_draining=True) == "好"
    assert said == ["the store is away: read"] or said == ["the store is away: claim"]


async def test_a_delivery_is_tried_on_while_draining_until_the_end(said: list[str]) -> None:
    stopping, left = Stopping(), [1_000_000]
    patience = Patience(stopping)
    stopping.request()
    delivering = asyncio.create_task(patience("deliver", failing(left, StoreUnreachable("away")), even_draining=True))
    await wait_until(lambda: left[0] < 999_990, "it is tried again and again")
    stopping.end_now()
    assert await delivering is None


async def test_what_waiting_can_not_mend_is_raised(said: list[str]) -> None:
    with pytest.raises(StoreDenied):
        await Patience(Stopping())("read", failing([1], StoreDenied("wrong password")))
    assert said == []


@pytest.mark.parametrize(
    ("words", "kind", "retryable"),
    [
        ("MISCONF Errors writing to the AOF file: No space left on device", StoreFull, True),
        ("READONLY You can't write against a read only replica.", StoreUnreachable, True),
        ("NOPERM this user has no permissions", StoreDenied, False),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", StoreError, False),
    ],
)
def test_a_refusal_means_the_same_alone_and_in_a_pipeline(words: str, kind: type[StoreError], retryable: bool) -> None:
    for text in (words, f"Command # 2 (SET 键 (x) PX 3000) of pipeline caused error: ('{words}',)"):
        with pytest.raises(StoreError) as raised, guard("watch"):
            raise ResponseError(text)
        assert type(raised.value) is kind
        assert raised.value.retryable is retryable
