"""The live stream of a space: fenced, capped, gone by itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from protocol.keys import Keys
from protocol.ports import Dispatch
from protocol.record import Record, Trace
from protocol.stores.client import connect
from protocol.stores.redis_live import LIFE_MS, MOST_ENTRIES, PIECE_MAX, Live
from protocol.stores.redis_log import RedisLog
from tests.integration.cli_support import Cli

OWNER = "writer@here:1:aa"
MADE = Dispatch("s1", "T1", 1, "writer", "writer_1", "s1", OWNER, 0, {})


async def test_text_is_seen_by_watchers_from_the_owner_alone(redis_url: str, prefix: str, cli: Cli) -> None:
    client = connect(redis_url)
    log, live = RedisLog(client, Keys(prefix)), Live(client, Keys(prefix))
    await log.create("s1", meta={"kind": "session", "session": "s1", "title": "写"})
    for event, who in (("task_assigned", "leader"), ("task_processing", "writer_1")):
        record = Record(
            id="T1", who=who, time=1, event=event, what=event,  # type: ignore[arg-type]
            detail={"role": "writer", "attempt": 1, "worker": OWNER}, trace=Trace(parent_id=None, session_id="s1"),
        )  # fmt: skip
        await log.append("s1", [record], owner=OWNER)

    assert await live.add(MADE, [("reasoning", "想"), ("content", "写一句\x1b[2J")])
    assert not await live.add(replace(MADE, owner="writer@here:2:bb"), [("content", "冒名")])
    assert not await live.add(replace(MADE, attempt=2), [("content", "冒名")])
    got = await live.read("s1")
    assert [(p.agent, p.attempt, p.kind, p.text) for p in got] == [
        ("writer_1", 1, "reasoning", "想"), ("writer_1", 1, "content", "写一句\x1b[2J"),
    ]  # fmt: skip
    assert await live.read("s1", got[-1].entry) == []
    shown = await asyncio.to_thread(cli, "watch", "--verbose", "--times", "1")
    assert "writer_1" in shown.out
    assert "写一句" in shown.out
    assert "\x1b" not in shown.out

    await live.add(MADE, [("content", "长" * (2 * PIECE_MAX))])
    assert [len(p.text) for p in await live.last("s1", 2)] == [PIECE_MAX, PIECE_MAX]
    await live.add(MADE, [("content", "x")] * (MOST_ENTRIES + 500))
    key = Keys(prefix).space("s1").live
    assert await client.xlen(key) <= MOST_ENTRIES + 200
    assert 0 < await client.pttl(key) <= LIFE_MS
    await client.aclose()
