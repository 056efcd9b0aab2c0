"""Incremental reads on both stores: nothing is skipped, nothing comes twice, filters cost no record."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from protocol.cursor import entry_key
from protocol.errors import Refused
from protocol.ports import Page
from protocol.record import Record
from tests.contract.conftest import Kit, record


async def pages(kit: Kit, since: str | int = 0, *, limit: int = 20, **filters: str) -> tuple[list[Record], str]:
    """Follow the cursor to the end; the records and the last cursor."""
    seen: list[Record] = []
    cursor = since
    while True:
        page = await kit.log.read(kit.space, since=cursor, limit=limit, **filters)  # type: ignore[arg-type]
        assert len(page.records) == len(page.entries) <= limit
        seen += page.records
        cursor = page.next
        if not page.more:
            return seen, page.next


def ids(page: Page) -> list[str]:
    return [r.id for r in page.records]


async def infos(kit: Kit, *names: str, at: int = 1719600000, who: str = "master_a", session: str = "s1") -> None:
    await kit.add(*(record("info", name, who, session, at, text="新消息") for name in names))


async def test_an_empty_space_is_read_as_nothing_and_its_cursor_goes_on(kit: Kit) -> None:
    page = await kit.log.read(kit.space)
    assert (page.records, page.next, page.more, page.rewound) == ((), "0-0", False, False)
    await infos(kit, "INFO_1")
    assert ids(await kit.log.read(kit.space, since=page.next)) == ["INFO_1"]


async def test_a_cursor_loses_nothing_within_a_second_and_nothing_that_arrives_late(kit: Kit) -> None:
    seen: list[str] = []
    cursor = "0"
    steps = [("R1", 1719600000), ("R2", 1719600000), ("", 0), ("R3", 1719600000), ("R4", 1719600001), ("", 0),
             ("R5", 1719599700), ("", 0), ("R6", 1719603600), ("", 0), ("R7", 1719600000), ("", 0)]  # fmt: skip
    for name, at in steps:
        if name:
            await infos(kit, name, at=at)
            continue
        page = await kit.log.read(kit.space, since=cursor)
        seen += ids(page)
        cursor = page.next
    assert seen == ["R1", "R2", "R3", "R4", "R5", "R6", "R7"]


async def test_a_hundred_records_of_one_batch_in_pages_of_twenty(kit: Kit) -> None:
    names = [f"R{n}" for n in range(100)]
    await infos(kit, *names)
    seen, last = await pages(kit, limit=20)
    assert [r.id for r in seen] == names
    again = await kit.log.read(kit.space, since=last)
    assert (again.records, again.next, again.more) == ((), last, False)


async def test_entries_rise_strictly_also_within_a_millisecond(kit: Kit) -> None:
    for n in range(5):
        await infos(kit, *(f"R{n}_{k}" for k in range(40)))
    entries = [entry_key(entry) for entry, _ in await kit.all()]
    assert len(entries) == 200 and all(a < b for a, b in pairwise(entries))
    assert len({ms for ms, _ in entries}) < len(entries), "the batches were too slow to share a millisecond"
    for at in (0, 39, 40, 199):
        rest = await kit.log.read(kit.space, since="-".join(map(str, entries[at])), limit=1000)
        assert len(rest.records) == 199 - at


@pytest.mark.parametrize("n", [19, 20, 21])
async def test_the_limit_is_a_boundary_and_more_says_whether_there_is_more(kit: Kit, n: int) -> None:
    await infos(kit, *(f"R{k}" for k in range(n)))
    page = await kit.log.read(kit.space)
    assert len(page.records) == min(n, 20) and page.more == (n > 20)
    rest = await kit.log.read(kit.space, since=page.next)
    assert len(rest.records) == max(0, n - 20) and not rest.more


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_limit_out_of_range_is_refused(kit: Kit, limit: int) -> None:
    with pytest.raises(Refused, match="limit"):
        await kit.log.read(kit.space, limit=limit)


async def test_the_most_at_once_is_a_thousand(kit: Kit) -> None:
    await infos(kit, *(f"R{k}" for k in range(1001)))
    page = await kit.log.read(kit.space, limit=1000)
    assert len(page.records) == 1000 and page.more


@pytest.mark.parametrize("since", ["gestern", "1719600000000-", "-5-1", "x-1", "", "1719600000000-0-0", "NaN", "昨天"])
async def test_what_is_neither_cursor_nor_time_is_refused(kit: Kit, since: str) -> None:
    with pytest.raises(Refused, match="since"):
        await kit.log.read(kit.space, since=since)


@pytest.mark.parametrize("since", [0, -1, "0", "-1719600000", "0-0"])
async def test_zero_and_less_is_everything(kit: Kit, since: str | int) -> None:
    await infos(kit, "R1", "R2")
    assert ids(await kit.log.read(kit.space, since=since)) == ["R1", "R2"]
    await kit.one(record("info", "R0", at=0))
    assert ids(await kit.log.read(kit.space, since=since, by_time=since != "0-0")) == ["R1", "R2", "R0"]


async def test_a_time_means_arrival_and_a_whole_second_its_start(kit: Kit) -> None:
    await infos(kit, "R1", at=5)  # what the writer claims is long ago
    ms = entry_key((await kit.all())[0][0])[0]
    second = ms // 1000
    iso = datetime.fromtimestamp(second, UTC).isoformat()
    for since in (second, str(second), iso, iso.replace("+00:00", "Z"), second - 1, ms - 1, f"{second - 1}.5"):
        assert ids(await kit.log.read(kit.space, since=since)) == ["R1"], since  # the boundary second is read again
    for since in (second + 1, ms, ms + 1):
        assert ids(await kit.log.read(kit.space, since=since)) == [], since


async def test_a_time_in_the_future_is_no_rewind_and_its_cursor_goes_on(kit: Kit) -> None:
    await infos(kit, "R1")
    page = await kit.log.read(kit.space, since=4_000_000_000_123)
    assert not page.records and not page.rewound and not page.more
    await infos(kit, "R2")
    assert ids(await kit.log.read(kit.space, since=page.next)) == ["R2"]


async def test_a_cursor_beyond_the_log_says_that_the_log_was_rewound(kit: Kit) -> None:
    await infos(kit, "R1")
    page = await kit.log.read(kit.space, since="9999999999999-0")
    assert page.rewound and not page.records
    assert page.next == (await kit.all())[-1][0]


async def test_by_time_compares_what_the_writers_claim(kit: Kit) -> None:
    for name, at in (("R1", 1719600010), ("R2", 1719599700), ("R3", 1719600011)):
        await infos(kit, name, at=at)
    for since in (1719600010, "2024-06-28T18:40:10Z", 1719600010000):
        assert ids(await kit.log.read(kit.space, since=since, by_time=True)) == ["R3"], since
    assert ids(await kit.log.read(kit.space, since=1719599699, by_time=True)) == ["R1", "R2", "R3"]


async def test_filters_with_and_without_prefix_each_page_moving_the_cursor(kit: Kit) -> None:
    expected: dict[str, list[str]] = {"master_a": [], "master_ab": [], "verifier_1": [], "ui-operator_1": []}
    for n in range(90):
        for k, who in enumerate(expected):
            name = f"R{n}_{k}"
            expected[who].append(name)
            await infos(kit, name, who=who, session=f"s{n % 2}")
    last = ""
    for who, names in expected.items():
        seen, last = await pages(kit, limit=7, who=who)
        assert [r.id for r in seen] == names
        assert last == (await kit.all())[-1][0], "a filtered page that ends moves the cursor to the log's last id"
    both = [r.id for _, r in await kit.all() if r.who.startswith("master_")]
    assert [r.id for r in (await pages(kit, limit=11, who="master_*"))[0]] == both
    assert len((await pages(kit, limit=100, who="*"))[0]) == 360
    assert (await pages(kit, who="nobody_*"))[0] == [] == (await pages(kit, who="master"))[0]
    odd = [r.id for r in (await pages(kit, limit=13, who="ui-*", session="s1"))[0]]
    assert odd == [name for n, name in enumerate(expected["ui-operator_1"]) if n % 2]
    await kit.one(record("checkpoint", "CP_1", "verifier_1", last_check=last))
    assert [r.id for r in (await pages(kit, since=last, event="checkpoint"))[0]] == ["CP_1"]
    assert [r.id for r in (await pages(kit, event="checkpoint", who="verifier_*"))[0]] == ["CP_1"]


async def test_a_filtered_reader_sees_what_arrives_between_its_pages(kit: Kit) -> None:
    seen: list[str] = []
    cursor = "0"
    for n in range(30):
        await infos(kit, f"A{n}", who="master_a")
        await infos(kit, f"B{n}", who="master_b")
        page = await kit.log.read(kit.space, since=cursor, who="master_b", limit=1)
        seen += ids(page)
        cursor = page.next
    assert seen == [f"B{n}" for n in range(30)]


async def test_what_is_written_is_read_back_equal(kit: Kit) -> None:
    detail: dict[str, Any] = {
        "大": 12345678901234567890123,
        "f": 0.1,
        "t": "“引号”，\u2028 全角：",
        "n": None,
        "z": [True, {"k": -0.0}],
        "": "",
    }
    await kit.add(record("info", "INFO_1", **detail))
    got = (await kit.log.read(kit.space)).records[0]
    assert got.detail == detail and isinstance(got.detail["大"], int)
    assert got.trace.to_json() == {"parent_id": None, "session_id": "s1"}
    assert list(got.to_json()) == ["id", "who", "time", "event", "what", "detail", "trace"]


async def test_a_clock_that_is_set_back_hides_nothing(kit: Kit) -> None:
    if kit.kind == "redis":  # the server's entry ids never go back by themselves; the writers' clocks are all that move
        await infos(kit, "R1", at=1719603600)
        cursor = (await kit.log.read(kit.space)).next
        await infos(kit, "R2", at=1719600000)
    else:
        kit.clock.append(1719603600.5)
        await infos(kit, "R1")
        cursor = (await kit.log.read(kit.space)).next
        kit.clock.append(1719600000.0)
        await infos(kit, "R2")
        await infos(kit, "R3")
        assert [entry for entry, _ in await kit.all()] == ["1719603600500-0", "1719603600500-1", "1719603600500-2"]
    page = await kit.log.read(kit.space, since=cursor)
    assert ids(page)[0] == "R2"
