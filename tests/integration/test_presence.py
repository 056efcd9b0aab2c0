"""A leader's presence: seen while it runs, left when it drains, begun again under a new name after a burial."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.presence import host_name, run_present, start_id
from protocol.errors import ConfigError
from protocol.keys import Keys
from protocol.kit.lifecycle import Stopping
from protocol.kit.settings import Settings
from protocol.stores.client import connect
from protocol.stores.redis_workers import Workers
from protocol.tasks import is_start
from tests.support import wait_until


async def test_it_is_seen_leaves_and_begins_again_when_it_was_buried(settings: Settings) -> None:
    assert settings.redis_url is not None
    client = connect(settings.redis_url, pool=4)
    workers, stopping, starts = Workers(client, Keys(settings.prefix)), Stopping(), []

    async def work(start: str, inner: Stopping) -> None:
        starts.append(start)
        await inner.wait()

    async def live() -> list[str]:
        return [info.start for info in await workers.live()]

    async def seen() -> bool:
        return bool(await live())

    try:
        running = asyncio.create_task(run_present("leader", work, stopping, workers=workers, beat_s=0.02, token="abcd"))
        await wait_until(seen, "it beats")
        assert starts == [f"leader@{host_name()}:{starts[0].split(':')[1]}:abcd"]
        await workers.bury(starts[0], "no beat")
        await wait_until(lambda: len(starts) == 2, "it begins again")
        assert not starts[1].endswith(":abcd")
        await wait_until(seen, "it beats again")
        stopping.request()
        await asyncio.wait_for(running, 5)
        assert await live() == []
        assert {grave.reason for grave in await workers.graves()} == {"no beat", "left"}
    finally:
        await client.aclose()


async def test_what_the_work_raises_is_raised(settings: Settings) -> None:
    assert settings.redis_url is not None
    client = connect(settings.redis_url, pool=4)

    async def work(start: str, inner: Stopping) -> None:
        raise ConfigError("坏的设置")

    try:
        with pytest.raises(ConfigError, match="坏的设置"):
            await run_present("leader", work, Stopping(), workers=Workers(client, Keys(settings.prefix)), beat_s=0.05)
    finally:
        await client.aclose()


def test_a_start_id_is_one_by_the_contract() -> None:
    assert is_start(start_id("manager"))
    assert start_id("manager") != start_id("manager")
