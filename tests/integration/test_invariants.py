"""Invariants 1 to 3 and 11: the log is the truth, an append one step, the same the same, a fresh read no lock."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coordinator.merging import Merging, read_all
from coordinator.rebuild import Rebuilding
from protocol.errors import GateRefused, StoreFull
from protocol.gates import check_schema
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_projections import RedisProjections
from protocol.stores.redis_roles import Roles
from protocol.tasks import delay_ms, fold, pack
from tests.integration.invariantkit import BY, SPACE, START, Kit, assigned, kit_on, record


@pytest.fixture
async def kit(redis_url: str, prefix: str) -> AsyncIterator[Kit]:
    async with kit_on(redis_url, prefix) as made:
        yield made


async def rebuilt(kit: Kit) -> list[str]:
    """What of the projections differs from the rebuild."""
    done = await Rebuilding(RedisProjections(kit.client, kit.keys), SPACE).run(check=True)
    return [f"{d.projection} {d.key}: {d.live} | {d.rebuilt}" for d in done.differences]


# -- 1: the log is the truth ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [True, 0, -5, 0.0004, 30.5, 10**40, 1e300, "30", None])
async def test_a_retrys_due_time_is_the_same_live_and_rebuilt(kit: Kit, delay: Any) -> None:
    await kit.add(assigned(), record("task_failed", error={}), record("task_retrying", attempt=2, delay_s=delay))
    state = await kit.state()
    at = int((state.entry_of("task_retrying", 2) or "0-0").split("-")[0])
    assert at <= state.due_ms <= at + 10**13, "never before its record, and a time that a server can count to"
    assert await rebuilt(kit) == []


async def test_a_fired_retry_goes_to_the_role_that_its_record_names(kit: Kit) -> None:
    await kit.add(assigned(), record("task_retrying", attempt=2, delay_s=0, reason="x", role="painter", agent="p_1"))
    fired = await kit.claims.fire(SPACE, "T1", 2, who="manager", by=BY)
    state = await kit.state()
    assert fired.ref is not None
    assert (fired.ref.role, state.role, state.agent) == ("writer", "writer", "writer_1")
    assert await rebuilt(kit) == []


async def test_projections_equal_their_rebuild_after_an_entry_past_the_store(kit: Kit) -> None:
    """Somebody with the password wrote into the stream: the space goes on, before and after its indexes begin."""
    log = kit.keys.space(SPACE).log
    await kit.poke("XADD", log, "*", "id", "伪造")
    crooked = {"id": "X", "who": "w", "time": "soon", "event": "info", "what": "?", "detail": "{", "trace": "[]"}
    await kit.client.xadd(log, crooked)  # type: ignore[arg-type]
    for n in range(3):
        await kit.add(*(record("info", f"INFO_{n}_{k}", f"master_{k % 3}", session=f"s{k % 2}") for k in range(100)))
    await kit.poke("XADD", log, "*", "id", "还有")
    await kit.add(assigned())
    assert (await kit.log.meta(SPACE))["indexed"] == "1"
    everything = await read_all(kit.log, SPACE)
    assert len(everything) == 304
    assert [r.event for _, r in everything if r.event != "info"] == ["protocol_violation"] * 3 + ["task_assigned"]
    foreign = everything[0][1]
    assert foreign.detail["raw"] == {"id": "伪造"}
    for filters in ({"who": "master_1"}, {"who": "master_*"}, {"session": "s1"}, {"event": "info", "who": "master_2"}):
        page = await kit.log.read(SPACE, limit=1000, **filters)  # type: ignore[arg-type]
        assert len(page.records) in (99, 151, 300), filters
    assert fold({}, everything).keys() == {"T1"}


async def test_an_attempt_that_a_server_cannot_count_is_refused_and_breaks_nothing(kit: Kit) -> None:
    for number in (2**53, 2**53 + 1, 10**30):
        with pytest.raises(GateRefused, match="attempt"):
            check_schema(assigned(attempt=number))
        assert await kit.add(record("info", f"INFO_{number}"), assigned(attempt=number)) == ["added", "too_large"]
    assert await kit.add(assigned(attempt=2**53 - 1)) == ["added"]
    assert (await kit.state()).attempt == 2**53 - 1
    await kit.claim(attempt=2**53 - 1)
    assert await kit.add(record("task_completed", "T1", "writer_1", attempt=2**53 - 1, result=1), owner=START) == [
        "added"
    ]
    assert await rebuilt(kit) == []


# -- 2: an append is one atomic step ----------------------------------------------------------------------------------


@pytest.mark.parametrize("as_of", ["soon", "5", "1-", "-1", "9" * 30, "1-1-1"])
async def test_a_merge_with_a_crooked_point_is_stale_and_fails_no_neighbour(kit: Kit, as_of: str) -> None:
    await kit.add(record("task_completed", result="甲"))
    out = await kit.add(
        record("info", "INFO_1"), record("task_merged", "MERGE_1", "manager", as_of=as_of), record("info", "INFO_2")
    )
    assert (out[0], out[2]) == ("added", "added")
    assert out[1] == "stale_read"


async def test_a_batch_of_a_hundred_with_doubles_and_refusals_has_an_outcome_for_each(kit: Kit) -> None:
    batch = []
    expected = []
    for n in range(20):
        batch += [
            assigned(f"T{n}"), assigned(f"T{n}", more=1), assigned(f"T{n}"),
            record("task_completed", f"T{n}", result="早"), record("info", f"INFO_{n}", 号=n),
        ]  # fmt: skip
        expected += ["added", "duplicate_id", "already", "illegal_transition", "added"]
    outcomes = await kit.log.append(SPACE, batch)
    assert [o.reason or o.outcome for o in outcomes] == expected
    log = dict(await read_all(kit.log, SPACE))
    assert len(log) == 80, "an entry for each that is new and one violation for each refusal"
    for given, outcome in zip(batch, outcomes, strict=True):
        found = log[outcome.entry]
        assert found.event == ("protocol_violation" if outcome.outcome == "refused" else given.event)
    again = await kit.log.append(SPACE, batch)
    assert [o.entry for o in again] == [o.entry for o in outcomes], "a batch whose answer was lost may be sent again"
    assert len(await read_all(kit.log, SPACE)) == 80
    assert await rebuilt(kit) == []


async def test_out_of_memory_writes_the_whole_batch_or_nothing(kit: Kit) -> None:
    await kit.add(assigned())
    before = await read_all(kit.log, SPACE)
    await kit.poke("CONFIG", "SET", "maxmemory", "1mb")
    try:
        big = [record("info", f"INFO_{n}", text="字" * 50_000) for n in range(20)]
        with pytest.raises(StoreFull):
            await kit.log.append(SPACE, [record("task_processing", who="x", worker="laptop"), *big])
        with pytest.raises(StoreFull):
            await kit.claim()
        with pytest.raises(StoreFull):
            await kit.log.append_many([(SPACE, big[:2], ""), (SPACE, big[2:4], "")])
    finally:
        await kit.poke("CONFIG", "SET", "maxmemory", "0")
    assert await read_all(kit.log, SPACE) == before
    assert (await kit.state()).state == "assigned"
    assert await rebuilt(kit) == []


async def test_what_outside_agents_write_never_breaks_a_packed_state(kit: Kit) -> None:
    evil = "a|b;c=d,e\x1f\n"
    out = await kit.add(
        record("task_assigned", "T1", role=evil, agent=evil, attempt=1),
        record("task_processing", "T1", worker=evil, attempt=1),
        record("task_pending", "T2", role=evil, waiting_for=evil),
        record("decision", "DEC_1", action=evil, task="T1", question=evil, role=evil, by="p", why="w"),
        record("decision", "DEC_2", action="cancel", task=evil, by="p", why="w"),
        record("task_merged", "MERGE_1", as_of=evil),
        record("heartbeat", "HB_1", current_task=evil),
    )
    assert out == ["added"] * 7
    states = await kit.log.task_states(SPACE)
    assert (states["T1"].state, states["T1"].role, states["T1"].owner) == ("processing", "", "~master_a")
    assert states["T2"].waiting_for == ""
    assert await rebuilt(kit) == []


# -- 3: sameness ------------------------------------------------------------------------------------------------------


async def test_the_same_record_is_one_whoever_sends_it_whenever_and_a_command_is_its_identity(kit: Kit) -> None:
    first = assigned(prompt="写", by={"flow": "plan", "term": 1})
    later = first.model_copy(
        update={
            "time": 5,
            "who": "leader_2",
            "what": "别的话",
            "detail": {**first.detail, "by": {"term": 2}, "prompt": "x"},
        }
    )
    assert await kit.add(first, later) == ["added", "already"], "a command: its identity decides"
    plain = record("info", "INFO_1", n=1.0, list=[1, {"b": 1, "a": 2}], by="li")
    same = plain.model_copy(
        update={"who": "b", "time": 9, "detail": {"list": [1, {"a": 2, "b": 1}], "n": 1.0, "by": "wu"}}
    )
    other = plain.model_copy(update={"detail": {**plain.detail, "list": [{"a": 2, "b": 1}, 1]}})
    assert await kit.add(plain, same, other) == ["added", "already", "duplicate_id"]
    assert await kit.events() == ["task_assigned", "info", "protocol_violation"]


async def test_a_violation_is_written_once_a_refused_record_and_none_takes_anothers_place(kit: Kit) -> None:
    await kit.add(assigned())
    early = record("task_completed", result="早")
    for _ in range(3):
        await kit.add(early)
    await kit.add(record("task_completed", result="更早"), record("task_failed", error={"kind": "k"}))
    log = await read_all(kit.log, SPACE)
    raws = [r.detail["raw"]["detail"] for _, r in log if r.event == "protocol_violation"]
    assert raws == [{"result": "早"}, {"result": "更早"}, {"error": {"kind": "k"}}]
    # Somebody took the very id that the next violation would have: it is found, nothing else is changed by it.
    stolen = next(r.id for _, r in log if r.event == "protocol_violation")
    assert await kit.add(record("info", stolen)) == ["duplicate_id"]


# -- 11: a fresh read is not a lock -----------------------------------------------------------------------------------


async def test_a_merge_computed_before_news_is_refused_and_computed_again(kit: Kit) -> None:
    await kit.add(record("task_started", SPACE, flow="plan"), record("task_completed", "T1", result="甲"))
    merging = Merging(kit.log, Artifacts(kit.client, kit.keys), Roles(kit.client, kit.keys))
    matter, entries = await merging.read(SPACE)
    merged = await merging.compute(SPACE, entries, force=False)
    await kit.add(record("task_completed", "T2", result="乙"))
    assert not await merging.write(SPACE, entries, merged, as_of=matter), "T2 came in between"
    await kit.add(record("decision", "DEC_f", "leader", action="finish", by=BY, why="完", status="completed"))
    merge_id = await merging.settle(SPACE)
    found = [r for _, r in await read_all(kit.log, SPACE) if r.event == "task_merged"]
    assert [r.id for r in found] == [merge_id]
    assert found[0].detail["source_tasks"] == ["T1", "T2"]
    assert await merging.settle(SPACE) == merge_id, "again without news: the same, and nothing is written"
    assert len([e for e in await kit.events() if e == "task_merged"]) == 1


async def test_a_merge_settles_the_sessions_root_and_no_task_and_nothing_that_was_cancelled(kit: Kit) -> None:
    await kit.make("hand", kind="hand")
    await kit.add(record("task_started", "T1"), record("task_processing", "T1", worker="laptop"), space="hand")
    await kit.add(record("task_completed", "T2", result="乙"), space="hand")
    merging = Merging(kit.log, Artifacts(kit.client, kit.keys), Roles(kit.client, kit.keys))
    matter, entries = await merging.read("hand")
    assert await merging.write("hand", entries, await merging.compute("hand", entries, force=True), as_of=matter)
    assert (await kit.state("T1", "hand")).state == "processing", "a task is not the root of a space made by hand"
    await kit.add(
        record("task_started", SPACE, session=SPACE, flow="plan"),
        record("task_completed", "T2", session=SPACE, result="乙"),
        record("decision", "DEC_1", "person", session=SPACE, action="cancel", task=SPACE, by="p", why="停"),
        record("decision", "DEC_2", "leader", session=SPACE, action="finish", by=BY, why="完", status="cancelled"),
    )
    assert await merging.settle(SPACE)
    assert (await kit.state(SPACE)).state == "cancelled", "nothing follows cancelled"
    assert {t: pack(s) for t, s in fold({}, await read_all(kit.log, SPACE)).items()} == {
        t: pack(s) for t, s in (await kit.log.task_states(SPACE)).items()
    }


def test_a_delay_is_bounded_and_never_a_crash() -> None:
    values: list[Any] = [1, 0.5, -1, True, "1", None, [], 10**400, 1e300]
    most = delay_ms(10**9)
    assert [delay_ms(value) for value in values] == [1000, 500, 0, 0, 0, 0, 0, most, most]
    assert delay_ms(math.nan) == 0
