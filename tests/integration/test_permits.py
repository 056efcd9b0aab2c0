"""Permits shared by every process: a strict endpoint never sees more than the limit."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from protocol.errors import StoreUnreachable
from protocol.keys import Keys
from protocol.kit.modellist import ModelEntry
from protocol.record import Json
from protocol.stores.client import Client, connect
from protocol.stores.redis_permits import Permits
from tests.integration.endpoint import Answer, Endpoint, says, serving
from tests.support import wait_until
from workers.limits import SharedLimits


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    made = connect(redis_url)
    yield made
    await made.aclose()


@pytest.fixture
def permits(client: Client, prefix: str) -> Permits:
    return Permits(client, Keys(prefix))


async def take(permits: Permits, call: str, tokens: int = 1, **limits: int | None) -> float:
    given: dict[str, int | None] = {"requests": None, "tokens_most": None, "at_once": None, **limits}
    return await permits.take(
        "e|m", call, tokens, requests=given["requests"], tokens_most=given["tokens_most"], at_once=given["at_once"]
    )


async def test_requests_per_minute_are_counted_for_all(permits: Permits) -> None:
    assert [await take(permits, f"c{n}", requests=2) for n in range(2)] == [0.0, 0.0]
    assert 55 < await take(permits, "c3", requests=2) <= 60.1
    assert await permits.take("e|other", "c4", 1, requests=2, tokens_most=None, at_once=None) == 0.0


async def test_tokens_are_reserved_and_settled_to_what_was_used(permits: Permits) -> None:
    assert await take(permits, "c1", 90, tokens_most=100) == 0.0
    assert await take(permits, "c2", 20, tokens_most=100) > 0
    await permits.settle("e|m", "c1", 30)
    assert await take(permits, "c2", 70, tokens_most=100) == 0.0
    assert await take(permits, "c3", 1, tokens_most=100) > 0


async def test_a_call_larger_than_the_limit_goes_alone(permits: Permits) -> None:
    assert await take(permits, "c1", 500, tokens_most=100) == 0.0
    assert await take(permits, "c2", 1, tokens_most=100) > 0


async def test_asking_again_after_a_lost_answer_counts_once(permits: Permits) -> None:
    for _ in range(3):
        assert await take(permits, "c1", 60, requests=2, tokens_most=100, at_once=2) == 0.0
    assert await take(permits, "c2", 40, requests=2, tokens_most=100, at_once=2) == 0.0


async def test_a_place_comes_back_when_the_call_ends_or_its_holder_died(client: Client, prefix: str) -> None:
    permits = Permits(client, Keys(prefix), lease_ms=150)
    assert await take(permits, "c1", at_once=1) == 0.0
    assert await take(permits, "c2", at_once=1) > 0
    await permits.settle("e|m", "c1", None)
    assert await take(permits, "c2", at_once=1) == 0.0
    free: Callable[[], bool | Awaitable[bool]] = lambda: _granted(permits)  # noqa: E731 - typed for wait_until
    await wait_until(free, "the dead holder's lease has ended")


async def _granted(permits: Permits) -> bool:
    return await take(permits, "c3", at_once=1) == 0.0


async def test_a_call_that_still_runs_keeps_its_place(client: Client, prefix: str) -> None:
    limits = SharedLimits(Permits(client, Keys(prefix), lease_ms=120))
    spec = ModelEntry("main", "m", "e", concurrent=1)
    ended = 0.0

    async def second() -> float:
        async with limits.permit(spec, 1):
            return time.monotonic()

    async with limits.permit(spec, 1):
        waiting = asyncio.create_task(second())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.6)
        ended = time.monotonic()
    assert await waiting >= ended


async def test_a_cool_down_holds_every_host_and_the_longest_counts(permits: Permits) -> None:
    await permits.cool("e|m", 30)
    await permits.cool("e|m", 5)
    assert 29 < await take(permits, "c1") <= 30


async def test_a_store_that_is_away_holds_back() -> None:
    slept: list[float] = []

    class Away:
        lease_ms = 1_000

        async def take(self, endpoint: str, call: str, tokens: int, **more: object) -> float:
            if len(slept) < 2:
                raise StoreUnreachable("gone")
            return 0.0

        async def renew(self, endpoint: str, call: str) -> None:
            return None

        async def settle(self, endpoint: str, call: str, used: int | None) -> None:
            raise StoreUnreachable("gone")

        async def cool(self, endpoint: str, seconds: float) -> None:
            raise StoreUnreachable("gone")

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    limits = SharedLimits(Away(), sleep=sleep, random=lambda: 0.0)
    async with limits.permit(ModelEntry("main"), 1):
        assert slept == [0.5, 0.5]
    await limits.cool_down(ModelEntry("main"), 1)


class Strict(Endpoint):
    """Refuses what is past its limit, as real endpoints do; ``most`` is the most that it saw at once."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.refused = 0

    def choose(self, request: dict[str, Json]) -> Answer:
        if len(self.requests) > self.limit:
            self.refused += 1
        return says("好")


CHILD = """
import asyncio, json, sys
from protocol.keys import Keys
from protocol.kit.modellist import ModelEntry
from protocol.stores.client import connect
from protocol.stores.redis_permits import Permits
from workers.limits import SharedLimits
from workers.model import ModelClient

async def main(url, prefix, endpoint):
    client = connect(url)
    spec = ModelEntry("main", "m", endpoint, requests_per_minute=7, concurrent=2)
    model = ModelClient(spec)
    async def held(seconds):
        raise TimeoutError  # the minute is not waited for in a test
    limits = SharedLimits(Permits(client, Keys(prefix)), sleep=lambda s: held(s) if s > 1 else asyncio.sleep(s))
    made = 0
    for _ in range(6):
        try:
            async with limits.permit(spec, 10) as permit:
                reply = await model.complete([{"role": "user", "content": "x"}])
                permit.used = reply.usage.total
                made += 1
        except TimeoutError:
            break
    await model.aclose()
    await client.aclose()
    print(json.dumps(made))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_three_processes_and_a_strict_endpoint(redis_url: str, prefix: str, fleet_env: dict[str, str]) -> None:
    """Three processes that want 18 calls where 7 a minute are allowed: 7 are made, none is refused."""
    async with serving(endpoint=Strict(7)) as endpoint:
        assert isinstance(endpoint, Strict)
        children = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", CHILD, redis_url, prefix, endpoint.url, env=fleet_env,
                stdout=asyncio.subprocess.PIPE,
            )
            for _ in range(3)
        ]  # fmt: skip
        made = [json.loads((await child.communicate())[0]) for child in children]
    assert sum(made) == len(endpoint.requests) == 7
    assert endpoint.refused == 0
