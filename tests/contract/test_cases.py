"""The shared cases of since-reads on both stores, and those of writers' clocks against arrival."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from coordinator.anomalies import find_anomalies
from coordinator.doubt import look
from coordinator.silence import lost_agents
from protocol.stores.jsonfile import JsonFile
from tests.contract.conftest import Kit, record

FOLDER = Path(__file__).parents[1] / "unit/data/cases"


def cases(name: str, *kinds: str) -> list[Any]:
    rows = [orjson.loads(line) for line in (FOLDER / name).read_text("utf-8").splitlines() if line]
    return [pytest.param(row, id=row["id"]) for row in rows if row["id"].startswith(kinds)]


@pytest.mark.parametrize("case", cases("since-read.jsonl", "SN-"))
async def test_since_reads(kit: Kit, case: dict[str, Any]) -> None:
    """Readers follow the cursor; the one who uses whole seconds reads the boundary again and drops doubles."""
    seen: list[str] = []
    by_seconds: set[str] = set()
    cursor = "0"
    for op, *rest in case["input"]["ops"]:
        if op == "write":
            await kit.one(record("info", rest[0], at=rest[1]))
        elif op == "write_many":
            await kit.add(*(record("info", f"R{n}", at=rest[1]) for n in range(rest[0])))
        elif op == "read_since_time":
            page = await kit.log.read(kit.space, since=rest[0], limit=1000)
            by_seconds |= {r.id for r in page.records}
        else:
            while True:
                page = await kit.log.read(kit.space, since=cursor, limit=20)
                seen += [r.id for r in page.records]
                cursor = page.next
                if not page.more:
                    break
    expect = case["expect"]
    assert len(seen) == len(set(seen)), "a cursor never repeats"
    if "seen_union" in expect:
        assert seen == expect["seen_union"]
    if "seen_count" in expect:
        assert len(seen) == expect["seen_count"]
    if "must_document" in expect:
        assert by_seconds == {"R1", "R2"}, "the boundary second is read again: nothing is lost"


@pytest.mark.parametrize("case", cases("clock.jsonl", "CK-02"))
async def test_silence_is_measured_by_arrival_whatever_the_writers_clock_says(
    case: dict[str, Any], tmp_path: Path
) -> None:
    clock = [0.0]
    log = JsonFile(tmp_path / "S.json", clock=lambda: clock[0])
    beats, now = case["input"]["heartbeats"], case["input"]["now"]
    clock[0] = beats[0][3]
    await log.create("S", meta={"kind": "hand"})
    signs: dict[str, int] = {}
    for n, (who, claimed, _, arrives) in enumerate(beats):
        clock[0] = arrives
        signs[who] = arrives * 1000
        await log.append(
            "S", [record("heartbeat", f"HB_{n}", who, at=claimed, current_task="T1", status="x", progress=0)]
        )
    await log.append("S", [record("task_pending", "T1", role="x")])  # there is work
    clock[0] = now
    seen = await look(log, None, "S")
    found = find_anomalies(seen.rows, seen.tasks, seen.ids, now_ms=seen.now_ms, stuck_s=10**9)
    silent = [one.records[0] for one in found if one.kind == "silent_agent"]
    assert bool(silent) == bool(case["expect"]["lost"])
    assert lost_agents(signs, now_ms=now * 1000, since_ms=0, lost_s=300) == case["expect"]["lost"]
