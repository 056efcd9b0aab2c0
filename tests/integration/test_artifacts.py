"""Artifacts on a real server: whole, by content, bounded, gone by themselves unless a record names them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from protocol.errors import FenceLost, StoreError, StoreFull
from protocol.keys import Keys
from protocol.ports import Dispatch
from protocol.stores.client import Client, awaited, connect
from protocol.stores.redis_artifacts import CHUNK, Artifacts
from protocol.tasks import TaskState, pack
from tests.support import wait_until


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    made = connect(redis_url)
    yield made
    await made.aclose()


@pytest.fixture
def keys(prefix: str) -> Keys:
    return Keys(prefix)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
async def test_what_was_put_is_got_in_chunks(client: Client, keys: Keys, size: int) -> None:
    data = (b"\x00\xff\r\n" * (size // 4 + 1))[:size]
    artifacts = Artifacts(client, keys)
    ref = await artifacts.put("s1", data)
    assert ref.sha256 == hashlib.sha256(data).hexdigest()
    assert ref.size == size
    assert await artifacts.get("s1", ref.sha256) == data
    key = keys.space("s1").art(ref.sha256)
    assert await awaited(client.llen(key)) == max(1, -(-size // CHUNK))
    assert 0 < await client.pttl(key) <= 3_600_000
    assert await artifacts.put("s1", data) == ref
    assert await awaited(client.llen(key)) == max(1, -(-size // CHUNK)), "the same content is one artifact"


async def test_a_name_makes_it_stay_and_only_the_owner_gives_it(client: Client, keys: Keys) -> None:
    artifacts = Artifacts(client, keys)
    ref = await artifacts.put("s1", "报告".encode())
    given = Dispatch("s1", "T1", 1, "r", "r_1", "s1", "r@h:1:a", 0, {})
    await awaited(client.hset(keys.space("s1").tasks, "T1", pack(TaskState("processing", 2, "r@h:2:b"))))
    with pytest.raises(FenceLost):
        await artifacts.name("s1", ref, given)
    assert await client.pttl(keys.space("s1").art(ref.sha256)) > 0
    await awaited(client.hset(keys.space("s1").tasks, "T1", pack(TaskState("processing", 1, "r@h:1:a"))))
    await artifacts.name("s1", ref, given)
    assert await client.pttl(keys.space("s1").art(ref.sha256)) == -1
    await artifacts.put("s1", "报告".encode())
    assert await client.pttl(keys.space("s1").art(ref.sha256)) == -1, "put again it stays named"


async def test_what_is_too_large_is_refused_with_its_limit(client: Client, keys: Keys) -> None:
    artifacts = Artifacts(client, keys, artifact_max_bytes=100)
    with pytest.raises(StoreFull, match="101 bytes is larger than 100"):
        await artifacts.put("s1", b"x" * 101)


async def test_a_space_is_bounded_and_what_went_by_itself_makes_room(client: Client, keys: Keys) -> None:
    artifacts = Artifacts(client, keys, space_max_bytes=100, unnamed_ttl_ms=30)
    kept = await artifacts.put("s1", b"k" * 40)
    await artifacts.name("s1", kept)
    await artifacts.put("s1", b"u" * 50)
    with pytest.raises(StoreFull, match="s1"):
        await artifacts.put("s1", b"x" * 60 + b"1")

    async def fits() -> str:
        try:
            return (await artifacts.put("s1", b"y" * 60)).sha256
        except StoreFull:
            return ""

    there: Callable[[], str | Awaitable[str]] = fits
    await wait_until(there, "the unnamed artifact is gone")
    assert await artifacts.get("s1", kept.sha256) == b"k" * 40
    listed: dict[bytes, bytes] = await awaited(client.hgetall(keys.space("s1").arts))
    assert listed[b"="] == b"100"


async def test_dropped_is_gone_and_its_room_comes_back(client: Client, keys: Keys) -> None:
    artifacts = Artifacts(client, keys, space_max_bytes=100)
    ref = await artifacts.put("s1", b"a" * 90)
    await artifacts.name("s1", ref)
    assert await artifacts.drop("s1", ref.sha256)
    assert not await artifacts.drop("s1", ref.sha256)
    with pytest.raises(StoreError, match="no artifact"):
        await artifacts.get("s1", ref.sha256)
    await artifacts.put("s1", b"b" * 90)


async def test_a_damaged_artifact_is_never_handed_out(client: Client, keys: Keys) -> None:
    artifacts = Artifacts(client, keys)
    ref = await artifacts.put("s1", b"whole")
    await awaited(client.lset(keys.space("s1").art(ref.sha256), 0, "half"))
    with pytest.raises(StoreError, match="damaged"):
        await artifacts.get("s1", ref.sha256)


async def test_naming_what_is_not_there_is_refused(client: Client, keys: Keys) -> None:
    from protocol.stores.redis_artifacts import ArtifactRef

    with pytest.raises(StoreError, match="put it first"):
        await Artifacts(client, keys).name("s1", ArtifactRef("0" * 64, 1))
