"""`detect-anomalies` on both stores: each kind with its records, nothing in a clean log."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from coordinator.anomalies import OF_REASON, Anomaly, find_anomalies
from coordinator.doubt import look
from protocol.projection import Projection, Raw
from protocol.record import REASONS, Record
from protocol.stores.jsonfile import JsonFile
from protocol.stores.redis_projections import RedisProjections
from tests.contract.conftest import Kit, assigned, record

START = "writer@host:1:abc"


async def anomalies(kit: Kit, *, later_s: float = 0) -> list[Anomaly]:
    projections = None
    if kit.client is not None and kit.keys is not None:
        projections = RedisProjections(kit.client, kit.keys)
    seen = await look(kit.log, projections, kit.space)
    return find_anomalies(seen.rows, seen.tasks, seen.ids, now_ms=seen.now_ms + int(later_s * 1000))


async def forge(kit: Kit, fields: dict[str, Any]) -> str:
    """Write an entry past the append, as somebody with the store's credential (or an editor) could."""
    if kit.client is not None and kit.keys is not None:
        flat = {k: v if isinstance(v, str) else orjson.dumps(v) for k, v in fields.items()}
        made: bytes = await kit.client.xadd(kit.keys.space(kit.space).log, flat)  # type: ignore[arg-type]
        return made.decode()
    assert isinstance(kit.log, JsonFile)
    value = orjson.loads(kit.log.path.read_bytes())
    ms, _, seq = value["last"].partition("-")
    value["last"] = entry = f"{ms}-{int(seq) + 1}"
    value["records"].append({"entry": entry, "record": fields})
    kit.log.path.write_bytes(orjson.dumps(value))
    return str(entry)


def only(found: list[Anomaly], kind: str) -> Anomaly:
    assert [one.kind for one in found] == [kind], found
    return found[0]


async def test_a_clean_log_gives_none(kit: Kit) -> None:
    await kit.add(
        record("heartbeat", "HB_1", current_task=None, status="ok", progress=0),
        assigned(),
        record("task_processing", "T1", "writer_1", attempt=1, worker=START),
        record("decision", "DEC_1", "person_x", action="finish", by="person_x", why="完"),
    )
    await kit.one(record("task_completed", "T1", "writer_1", result="好"), START)
    await kit.one(record("task_merged", "MERGE_1", "manager", source_tasks=["T1"], by={"actor": "manager"}))
    assert await anomalies(kit) == []
    assert await anomalies(kit, later_s=10_000) == [], "who is through is not silent, what is done is not stuck"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"event": "done"}, "event"), ({"who": ""}, "who"), ({"time": "gestern"}, "time"),
        ({"detail": "text"}, "detail"),
        ({"trace": {"parent_id": None}}, "session_id"), ({"what": "a\nb"}, "what"), ({"extra": "x"}, "extra"),
        ({"id": "bad id"}, "id"), ({"event": "task_failed"}, "detail.error"),
    ],
)  # fmt: skip
async def test_format_faults(kit: Kit, change: dict[str, Any], words: str) -> None:
    entry = await forge(kit, record("info", "INFO_1").to_json() | change)
    found = [one for one in await anomalies(kit) if one.kind == "format_fault"]
    assert len(found) == 1 and words in found[0].message and found[0].entries == (entry,)
    assert found[0].records == ((change.get("id") or "INFO_1"),)


async def test_a_record_that_lacks_a_field_is_a_fault_and_stops_nothing(kit: Kit) -> None:
    fields = record("info", "INFO_1").to_json()
    del fields["trace"]
    await forge(kit, fields)
    await forge(kit, record("info", "INFO_1").to_json() | {"event": "nope"})
    await kit.one(record("info", "INFO_2"))
    assert [one.kind for one in await anomalies(kit)] == ["format_fault", "format_fault"]


async def test_silent_agents_by_arrival_and_exactly_the_limit_is_not_yet_lost(kit: Kit) -> None:
    await kit.add(
        record("heartbeat", "HB_1", "master_a", at=5, current_task=None, status="ok", progress=0),  # a clock far off
        record("task_processing", "T1", "master_b", attempt=1, worker="laptop"),
        record("info", "INFO_1", "master_c"),  # never registered
        record("task_processing", "T2", "writer_1", attempt=1, worker=START),  # a fleet worker's
        record("task_pending", "T3", "master_d", role="x", waiting_for="ASK_1", agent="master_d"),
        record("heartbeat", "HB_2", "master_d", current_task="T3", status="waiting", progress=0),
    )
    seen = await look(kit.log, _projections(kit), kit.space)
    last = max(int(entry.split("-")[0]) for entry, _ in seen.rows)
    at = {"now_ms": last + 300_000}
    assert find_anomalies(seen.rows, seen.tasks, seen.ids, **at) == []
    found = find_anomalies(seen.rows, seen.tasks, seen.ids, now_ms=last + 300_001)
    found = [one for one in found if one.kind == "silent_agent"]
    assert {one.records for one in found} == {("HB_1",), ("T1",)}
    assert any("'master_b'" in one.message and "T1" in one.message for one in found)
    await kit.one(record("task_agent_lost", "master_a", "manager", agent="master_a", last_seen=5, by={"a": 1}))
    again = [one.records for one in await anomalies(kit, later_s=301) if one.kind == "silent_agent"]
    assert again == [("T1",)], "a loss that is on record is none any more"


def _projections(kit: Kit) -> RedisProjections | None:
    return RedisProjections(kit.client, kit.keys) if kit.client is not None and kit.keys is not None else None


async def test_time_that_runs_backwards(kit: Kit) -> None:
    for n, at in enumerate((1719600000, 1719600100, 1719600099, 1719599700, 1719599800)):
        await kit.one(record("info", f"INFO_{n}", at=at))
        await kit.one(record("info", f"INFO_b{n}", "master_b", at=5))
    found = only(await anomalies(kit), "time_backwards")
    assert found.records == ("INFO_2", "INFO_3") and "399 s" in found.message and "'master_a'" in found.message


@pytest.mark.parametrize("state", ["assigned", "processing", "failed", "blocked", "lost", "pending"])
async def test_tasks_stuck_in_a_state(kit: Kit, state: str) -> None:
    await kit.add(assigned(), record("task_processing", "T1", "writer_1", attempt=1, worker=START))
    error = {"kind": "k", "message": "m", "retryable": False}
    if state == "failed":
        await kit.one(record("task_failed", "T1", "writer_1", error=error), START)
    elif state == "blocked":
        await kit.one(record("task_blocked", "T1", "writer_1", requires_human_intervention=True, reason="r"), START)
    elif state == "lost":
        await kit.one(record("task_agent_lost", "T1", "manager", agent="writer_1", last_seen=1, attempt=1))
    task = "T1"
    if state in ("assigned", "pending"):
        task = "T2"
        await kit.one(assigned("T2") if state == "assigned" else record("task_pending", "T2", role="writer"))
        await kit.one(record("task_completed", "T1", "writer_1", result="x"), START)
    assert await anomalies(kit, later_s=899) == []
    found = only(await anomalies(kit, later_s=901), "stuck_task")
    assert found.records == (task,) and repr(state) in found.message


async def test_a_heartbeat_that_names_the_task_is_a_sign_of_life(kit: Kit) -> None:
    await kit.add(assigned(), record("task_processing", "T1", "writer_1", attempt=1, worker=START))
    seen = await look(kit.log, _projections(kit), kit.space)
    late = seen.now_ms + 901_000
    assert [a.kind for a in find_anomalies(seen.rows, seen.tasks, seen.ids, now_ms=late)] == ["stuck_task"]
    beat: Raw = (f"{late - 1000}-0", record("heartbeat", "HB_1", "writer_1", current_task="T1", status="x",
                                            progress=0).to_json())  # fmt: skip
    ids = {"HB_1": f"d,{beat[0]}"}
    assert find_anomalies([*seen.rows, beat], seen.tasks, ids, now_ms=late) == []


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (record("info", "INFO_1", workspace={"area": "private/master_b", "path": "x"}), "workspace_violation"),
        (record("task_completed", "T1", "writer_1", result="早"), "transition_violation"),
        (record("task_assigned", "T1", "leader", role="other", attempt=1), "duplicate_identity"),
    ],
)  # fmt: skip
async def test_what_the_store_refused_is_told_with_the_violations_id(kit: Kit, bad: Record, kind: str) -> None:
    await kit.one(assigned())
    out = await kit.one(bad)
    assert out.outcome == "refused"
    found = only(await anomalies(kit), kind)
    assert found.entries == (out.entry,) and found.records[0].startswith("PV_") and out.reason in found.message


def test_every_reason_of_a_violation_has_its_kind() -> None:
    assert set(OF_REASON) == set(REASONS)


async def test_what_was_written_past_the_store_is_found_by_judging_it_again(kit: Kit) -> None:
    first = (await kit.one(assigned())).entry
    info = (await kit.one(record("info", "INFO_1", n=1))).entry
    forged = {
        "transition_violation": await forge(kit, record("task_completed", "T1", "writer_1", result="早").to_json()),
        "duplicate_identity": await forge(kit, record("info", "INFO_1", n=2).to_json()),
        "missing_twin": await forge(kit, record("info", "INFO_9", n=3).to_json()),
    }
    twice = await forge(kit, assigned(role2="x").to_json())
    foreign = await forge(
        kit, record("info", "INFO_8", "master_a", workspace={"area": "summaries", "path": "x"}).to_json()
    )
    await forge(kit, record("decision", "DEC_1", "person_x", action="retry", task="T1", by="p", why="?").to_json())
    found = await anomalies(kit)
    told = {(one.kind, one.entries[-1]): one for one in found}
    for kind, entry in forged.items():
        assert (kind, entry) in told, (kind, found)
    assert told[("duplicate_identity", twice)].entries == (first, twice)
    assert told[("duplicate_identity", forged["duplicate_identity"])].entries == (info, forged["duplicate_identity"])
    assert ("workspace_violation", foreign) in told
    assert any(one.kind == "transition_violation" and "DEC_1" in one.records for one in found)


async def test_a_state_whose_entry_is_gone_is_told(kit: Kit) -> None:
    entry = (await kit.one(assigned())).entry
    info = (await kit.one(record("info", "INFO_1"))).entry
    await kit.one(record("info", "INFO_2"))
    if kit.client is not None and kit.keys is not None:
        await kit.client.xdel(kit.keys.space(kit.space).log, entry, info)
    else:
        assert isinstance(kit.log, JsonFile)
        value = orjson.loads(kit.log.path.read_bytes())
        del value["records"][:2]
        kit.log.path.write_bytes(orjson.dumps(value))
    found = await anomalies(kit)
    assert sorted((one.kind, *one.records, *one.entries) for one in found) == [
        ("missing_twin", "INFO_1", info), ("missing_twin", "T1", entry),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_clean_log_of_100_000_records_takes_seconds() -> None:
    """Pure over rows: 20,000 tasks of three records, their verdicts, heartbeats and checkpoints."""
    rows: list[Raw] = []
    made = Projection()

    def add(one: Record) -> None:
        entry = f"{1719600000000 + len(rows) // 3}-{len(rows) % 3}"
        rows.append((entry, one.to_json()))
        made.see(entry, one)

    for n in range(20_000):
        at = 1719600000 + n // 100
        add(assigned(f"T{n}", prompt="审查 " * 20).model_copy(update={"time": at}))
        add(record("task_processing", f"T{n}", f"writer_{n % 9}", at=at, attempt=1, worker=START))
        add(record("task_completed", f"T{n}", f"writer_{n % 9}", at=at, attempt=1, result="结论：" + "x" * 200))
        add(record("heartbeat", f"HB_{n}", f"master_{n % 7}", at=at, current_task=f"T{n}", status="ok", progress=1))
        add(record("checkpoint", f"CP_{n}", f"master_{n % 7}", at=at, last_check=rows[-1][0]))
    began = time.perf_counter()
    found = find_anomalies(rows, made.tasks, made.ids, now_ms=1719600040000)
    took = time.perf_counter() - began
    assert found == [] and len(rows) == 100_000
    assert took < 30, f"{took:.1f} s"
