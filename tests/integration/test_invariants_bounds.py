"""Invariant 9: what is bounded; reads cost what they return, right at the borders of every index and after a trim."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from protocol.cursor import entry_key
from protocol.ports import Page
from protocol.record import Record
from protocol.retry import DELAY_MAX_S, Retry, decide
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_projections import INDEX_FROM
from tests.integration.invariantkit import BY, SPACE, START, Kit, assigned, kit_on, record

INLINE = 32


@pytest.fixture
async def kit(redis_url: str, prefix: str) -> AsyncIterator[Kit]:
    async with kit_on(redis_url, prefix) as made:
        yield made


async def fill(kit: Kit, n: int, first: int = 0, **same: Any) -> None:
    """``n`` records: events, agents and sessions in different rhythms, one agent only now and then."""
    batch: list[Record] = []
    for k in range(first, first + n):
        who = "rare_1" if k % 9 == 0 else f"master_{k % 3}"
        event = "checkpoint" if k % 7 == 0 else "info"
        detail = {"last_check": "0-0"} if event == "checkpoint" else {"n": k}
        batch.append(record(event, f"R_{k}", who, **{"session": f"s{k % 2 if k > 40 else 0}", **same}, **detail))
    for at in range(0, len(batch), 100):
        assert set(await kit.add(*batch[at : at + 100])) == {"added"}


FILTERS: list[dict[str, str]] = [
    {}, {"who": "rare_1"}, {"who": "master_1"}, {"who": "master_*"}, {"who": "*"}, {"who": "nobody"}, {"who": "n*"},
    {"event": "checkpoint"}, {"session": "s0"}, {"session": "s1"}, {"session": "s9"},
    {"who": "rare_1", "event": "checkpoint"}, {"who": "master_*", "session": "s1"},
    {"event": "checkpoint", "session": "s0"}, {"who": "rare*", "event": "info", "session": "s1"},
]  # fmt: skip


def wanted(log: list[tuple[str, Record]], f: dict[str, str]) -> list[str]:
    who = f.get("who", "")
    return [
        e
        for e, r in log
        if (not who or r.who == who or (who[-1] == "*" and r.who.startswith(who[:-1])))
        and f.get("event") in (None, r.event)
        and f.get("session") in (None, r.session)
    ]


async def follow(kit: Kit, f: dict[str, str], limit: int, since: str | int = 0) -> tuple[list[str], list[Page]]:
    seen: list[str] = []
    pages: list[Page] = []
    while True:
        page = await kit.log.read(SPACE, since=since, limit=limit, **f)  # type: ignore[arg-type]
        assert len(page.records) <= limit
        assert not seen or entry_key(page.next) >= entry_key(seen[-1]), "a cursor never goes back"
        seen += page.entries
        pages.append(page)
        since = page.next
        if not page.more:
            return seen, pages


@pytest.mark.parametrize(
    "n", [0, 1, INLINE - 1, INLINE, INLINE + 1, INDEX_FROM - 1, INDEX_FROM, INDEX_FROM + 1, 9 * INLINE, 600]
)
async def test_every_filter_gives_what_a_scan_gives_at_every_border(kit: Kit, n: int) -> None:
    await fill(kit, n)
    log = await kit.log.tail(SPACE, count=10_000)
    last = log[-1][0] if log else "0-0"
    for f in FILTERS:
        right = wanted(log, f)
        for limit in {1, 2, 31, 32, 33, max(1, len(right) - 1), max(1, len(right)), len(right) + 1, 1000}:
            if limit == 1 and n > 100:
                continue
            seen, pages = await follow(kit, f, min(limit, 1000))
            assert seen == right, (f, limit)
            assert pages[-1].next == last, "a page that ends moves the cursor to the log's end"
    middle = log[len(log) // 2][0] if log else "0-0"
    for f in FILTERS:
        seen, _ = await follow(kit, f, 7, middle)
        assert seen == [e for e in wanted(log, f) if entry_key(e) > entry_key(middle)], f


async def test_a_reader_that_follows_while_others_write_gets_each_record_once(kit: Kit) -> None:
    cursors: dict[int, str | int] = dict.fromkeys(range(len(FILTERS)), 0)
    seen: dict[int, list[str]] = {k: [] for k in cursors}
    for round_ in range(24):  # over the border from which on the space is indexed
        await fill(kit, 15, first=round_ * 15)
        for k, f in enumerate(FILTERS):
            page = await kit.log.read(SPACE, since=cursors[k], limit=6 + k % 5, **f)  # type: ignore[arg-type]
            seen[k] += page.entries
            cursors[k] = page.next
    log = await kit.log.tail(SPACE, count=10_000)
    for k, f in enumerate(FILTERS):
        rest, _ = await follow(kit, f, 50, cursors[k])
        assert seen[k] + rest == wanted(log, f), f


async def test_cursors_of_a_trimmed_log_go_on_with_what_is_left(kit: Kit) -> None:
    await fill(kit, 400)
    log = await kit.log.tail(SPACE, count=10_000)
    old, cut = log[50][0], log[200][0]
    await kit.poke("XTRIM", kit.keys.space(SPACE).log, "MINID", cut)
    left = await kit.log.tail(SPACE, count=10_000)
    for f in FILTERS:
        for since in (0, old, cut):
            seen, _ = await follow(kit, f, 20, since)
            assert seen == [e for e in wanted(left, f) if since == 0 or entry_key(e) > entry_key(str(since))], f
    await kit.add(*(record("info", f"NEW_{n}", "rare_1") for n in range(40)))
    assert len((await follow(kit, {"who": "rare_1"}, 9, left[-1][0]))[0]) == 40


async def test_a_cursor_above_the_log_is_told_that_it_was_rewound(kit: Kit) -> None:
    await fill(kit, 300)
    for f in FILTERS:
        page = await kit.log.read(SPACE, since="99999999999999-0", **f)  # type: ignore[arg-type]
        assert page.rewound, f
        assert page.records == ()
    last = (await kit.log.tail(SPACE, count=10_000))[-1][0]
    page = await kit.log.read(SPACE, since=last)
    assert (page.rewound, page.records, page.next) == (False, (), last)


async def test_a_read_costs_what_it_returns_however_long_the_log(kit: Kit) -> None:
    """Counted in commands of the script, not in time."""

    async def cost(**f: Any) -> int:
        await kit.poke("CONFIG", "RESETSTAT")
        await kit.log.read(SPACE, limit=10, **f)
        stats = await kit.poke("INFO", "commandstats")
        return sum(
            s["calls"] for name, s in stats.items() if name in ("cmdstat_xrange", "cmdstat_xlen", "cmdstat_hget")
        )

    costs: list[list[int]] = []
    for n in range(2):
        await fill(kit, 2_000, first=2_000 * n)
        costs.append([await cost(**f) for f in ({"who": "rare_1"}, {"event": "checkpoint"}, {"who": "master_*"})])
    assert costs[0] == costs[1]
    assert max(costs[0]) < 40


async def test_a_full_space_takes_what_settles_its_work_and_refuses_what_is_new_by_name(kit: Kit) -> None:
    await kit.add(assigned("T1"), assigned("T2"), assigned("T3"), record("task_completed", "T0", result=1))
    for task in ("T1", "T2", "T3"):
        await kit.claim(task)
    for full in (RedisLog(kit.client, kit.keys, records_max=1), RedisLog(kit.client, kit.keys, bytes_max=1)):
        tried = [
            assigned("T9"),
            record("info", "INFO_1"),
            record("task_pending", "T8", role="r"),
            record("heartbeat", "HB_1"),
        ]
        for new in tried:
            out = (await full.append(SPACE, [new]))[0]
            assert (out.outcome, out.reason, out.entry) == ("refused", "too_large", "")
    settles = [
        record("task_completed", "T1", "writer_1", attempt=1, verdict="confirmed", verifies="T0", reasons=[]),
        record("task_failed", "T2", "writer_1", attempt=1, error={}),
        record("task_blocked", "T2", "writer_1", attempt=1, requires_human_intervention=True, reason="r"),
        record("task_agent_lost", "T3", "manager", attempt=1, agent="a", last_seen=1, by=BY),
        assigned("T3", attempt=2),
        record("decision", "DEC_1", action="cancel", task="T2", by="p", why="w"),
        record("task_merged", "MERGE_1", "manager", source_tasks=["T1"], by=BY),
    ]
    full = RedisLog(kit.client, kit.keys, records_max=1)
    assert {o.outcome for o in await full.append(SPACE, settles, owner=START)} == {"added"}


def test_an_endpoint_cannot_put_a_task_off_for_ever() -> None:
    ruling = decide(1, kind="rate_limited", retryable=True, retry_after_s=10.0**12)
    assert isinstance(ruling, Retry)
    assert ruling.delay_s == DELAY_MAX_S
    for asked, least in ((0.0, 27.0), (-5.0, 27.0), (45.0, 45.0), (float("nan"), 27.0)):
        ruling = decide(1, kind="rate_limited", retryable=True, retry_after_s=asked)
        assert isinstance(ruling, Retry)
        assert least <= ruling.delay_s <= 45
