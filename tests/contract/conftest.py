"""Both stores behind one fixture: every test of this folder runs on Redis and on a state file."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from protocol.keys import Keys
from protocol.ports import Appended
from protocol.record import Record
from protocol.stores.client import Client, connect
from protocol.stores.jsonfile import JsonFile
from protocol.stores.redis_log import RedisLog

SPACE = "项目".encode().hex()  # a name with nothing to say: spaces are ASCII, titles need not be
META = {"kind": "hand", "policy": "hold", "session": "sess_1719600000", "title": "渗透测试 一号"}


@dataclass
class Kit:
    """A store with one empty space, and what tests do to it."""

    log: RedisLog | JsonFile
    kind: str
    folder: Path
    client: Client | None = None
    keys: Keys | None = None
    space: str = SPACE
    clock: list[float] = field(default_factory=list)
    """The machine's clock as the file store sees it, where a test sets one; the server's can't be set."""

    async def add(self, *records: Record, owner: str = "") -> list[Appended]:
        return await self.log.append(self.space, list(records), owner=owner)

    async def one(self, record: Record, owner: str = "") -> Appended:
        return (await self.add(record, owner=owner))[0]

    async def all(self) -> list[tuple[str, Record]]:
        return await self.log.tail(self.space, count=100_000)


def record(event: str, id: str = "T1", who: str = "master_a", session: str = "s1", at: int = 1719600000,
           parent: str | None = None, **detail: Any) -> Record:  # fmt: skip
    return Record(
        id=id, who=who, time=at, event=event, what="一句话", detail=detail,  # type: ignore[arg-type]
        trace={"parent_id": parent, "session_id": session},  # type: ignore[arg-type]
    )  # fmt: skip


def assigned(task: str = "T1", attempt: int = 1, **more: Any) -> Record:
    return record("task_assigned", task, "leader", role="writer", attempt=attempt, agent="writer_1", **more)


@pytest.fixture(params=["redis", "file"])
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def kit(store_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kit]:
    if store_kind == "redis":
        client = connect(request.getfixturevalue("redis_url"))
        keys = Keys(request.getfixturevalue("prefix"))
        made = Kit(RedisLog(client, keys), "redis", tmp_path, client, keys)
        await made.log.create(SPACE, meta=META)
        yield made
        await client.aclose()
        return
    clock: list[float] = []
    log = JsonFile(tmp_path / f"{SPACE}.json", clock=lambda: clock[-1] if clock else time.time(), wait_s=5)
    made = Kit(log, "file", tmp_path, clock=clock)
    await log.create(SPACE, meta=META)
    yield made
