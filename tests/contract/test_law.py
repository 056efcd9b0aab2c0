"""Duplicates, fences, transitions, decisions, violations: one law on both stores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.errors import RolecallError
from protocol.keys import Keys
from protocol.record import Record
from protocol.stores.client import connect
from protocol.stores.jsonfile import JsonFile
from protocol.stores.redis_log import RedisLog
from protocol.tasks import DECISIONS, SAME_ATTEMPT, fold, pack
from tests.contract.conftest import SPACE, Kit, assigned, record
from tests.integration import test_law as drawn_law

START, OTHER = "writer@host:1:abc", "writer@host:2:def"
OWNERS = ("", drawn_law.START, drawn_law.OTHER)
EVENT_TO = {
    "started": "task_started", "pending": "task_pending", "assigned": "task_assigned", "processing": "task_processing",
    "completed": "task_completed", "failed": "task_failed", "retrying": "task_retrying", "blocked": "task_blocked",
    "lost": "task_agent_lost", "merged": "task_merged", "waiting": "task_pending",
}  # fmt: skip


async def events(kit: Kit) -> list[str]:
    return [r.event for _, r in await kit.all()]


def claim(attempt: int = 1, worker: str = START, who: str = "writer_1", task: str = "T1") -> Record:
    return record("task_processing", task, who, attempt=attempt, worker=worker)


async def test_the_same_record_twice_is_one_and_a_different_one_is_refused_and_recorded(kit: Kit) -> None:
    first = await kit.one(record("info", "INFO_1", n=1))
    again = await kit.one(record("info", "INFO_1", "master_b", at=1719600099, n=1))
    other = await kit.one(record("info", "INFO_1", n=2))
    twice = await kit.one(record("info", "INFO_1", n=2))
    assert first.outcome == "added" and (again.outcome, again.entry) == ("already", first.entry)
    assert (other.outcome, other.reason) == ("refused", "duplicate_id") and other.entry == twice.entry
    assert await events(kit) == ["info", "protocol_violation"], "the same refusal twice is one violation"
    violation = (await kit.all())[1][1]
    assert violation.id.startswith("PV_") and violation.who == "store" and violation.session == "s1"
    assert violation.detail["reason"] == "duplicate_id" and violation.detail["raw"]["detail"] == {"n": 2}
    assert "INFO_1" in violation.detail["message"] == other.message


async def test_a_batch_gives_one_outcome_a_record_and_a_refusal_fails_no_neighbour(kit: Kit) -> None:
    out = await kit.add(
        assigned(),
        record("task_completed", result="早了"),
        record("info", "INFO_2"),
        record("info", "INFO_2"),
        record("info", "INFO_2", other=1),
        assigned(),
    )
    assert [(o.outcome, o.reason) for o in out] == [
        ("added", ""), ("refused", "illegal_transition"), ("added", ""), ("already", ""), ("refused", "duplicate_id"),
        ("already", ""),
    ]  # fmt: skip
    assert out[3].entry == out[2].entry and out[5].entry == out[0].entry
    assert "'assigned'" in out[1].message and "'completed'" in out[1].message


async def test_a_command_is_decided_by_its_identity_alone(kit: Kit) -> None:
    first = await kit.one(assigned(by={"flow": "plan", "as_of": "1-0"}, prompt="写诗"))
    again = await kit.one(assigned(by={"flow": "plan", "as_of": "9-9"}, prompt="作画"))
    assert (again.outcome, again.entry) == ("already", first.entry)


async def test_writes_of_an_attempt_need_its_owner_and_a_late_one_is_superseded(kit: Kit) -> None:
    await kit.add(assigned(), claim())
    stolen = await kit.one(record("task_completed", who="writer_1", result="x"), OTHER)
    unowned = await kit.one(
        record("task_failed", who="writer_1", error={"kind": "k", "message": "m", "retryable": True})
    )
    assert stolen.reason == unowned.reason == "not_the_owner"
    lost = await kit.one(record("task_agent_lost", who="manager", attempt=1, agent="writer_1", last_seen=1))
    raised = await kit.one(claim(2, OTHER))
    again = await kit.one(assigned(attempt=2))
    assert (lost.outcome, raised.reason, again.outcome) == ("added", "illegal_transition", "added")
    await kit.one(claim(2, OTHER))
    zombie = await kit.one(record("task_completed", who="writer_1", attempt=1, result="z"), START)
    assert zombie.reason == "superseded_attempt" and "attempt 2" in zombie.message
    done = await kit.one(record("task_completed", who="writer_1", attempt=2, result="好"), OTHER)
    twice = await kit.one(record("task_completed", who="writer_1", attempt=2, result="好"), OTHER)
    late = await kit.one(record("task_completed", who="writer_1", attempt=3, result="又"), OTHER)
    assert (done.outcome, twice.outcome, late.reason) == ("added", "already", "illegal_transition")
    state = (await kit.log.task_states(kit.space))["T1"]
    assert (state.state, state.attempt, state.tries, state.owner) == ("completed", 2, 1, "")


async def test_a_word_beside_an_attempt_is_its_workers_while_it_holds_the_task(kit: Kit) -> None:
    await kit.add(assigned(), claim())
    beat: dict[str, Any] = {"current_task": "T1", "status": "ok", "progress": 0}
    mine = await kit.one(record("heartbeat", "HB_1", "writer_1", parent="T1", **beat), START)
    other = await kit.one(record("heartbeat", "HB_2", "writer_1", parent="T1", **beat), OTHER)
    await kit.one(record("task_completed", who="writer_1", result="好"), START)
    late = await kit.one(record("info", "ASK_1", "writer_1", parent="T1", kind="question"), START)
    unknown = await kit.one(record("info", "INFO_1", "writer_1", parent="T9"), START)
    person = await kit.one(record("info", "INFO_2", "master_a", parent="T1"))
    assert [o.outcome for o in (mine, other, late, unknown, person)] == [
        "added",
        "refused",
        "refused",
        "added",
        "added",
    ]
    assert other.reason == late.reason == "not_the_owner" and "'completed'" in late.message
    assert "protocol_violation" not in await events(kit), "nothing is left: it was no attempt's own record"


async def test_an_outside_agents_task_is_its_own(kit: Kit) -> None:
    await kit.one(record("task_processing", "TASK_甲".encode().hex(), "master_a", attempt=1, worker="laptop"))
    task = (await kit.all())[0][1].id
    other = await kit.one(record("task_completed", task, "master_b", result="偷"))
    mine = await kit.one(record("task_completed", task, "master_a", result="我的"))
    assert (other.reason, mine.outcome) == ("not_the_owner", "added")


@pytest.mark.parametrize("source", sorted(SAME_ATTEMPT))
async def test_every_transition_of_the_table_and_no_other(kit: Kit, source: str) -> None:
    """From each state, what the table allows within one attempt passes and all else is refused naming both states."""
    allowed: list[str] = []
    refused: list[str] = []
    for target, event in EVENT_TO.items():
        task = f"T_{source}_{target}"
        await _bring(kit, task, source)
        if target == source:
            continue
        out = await kit.one(_to(task, target, event))
        (allowed if out.outcome == "added" else refused).append(target)
        if out.outcome == "refused":
            assert out.reason == "illegal_transition" and f"{source!r}" in out.message and f"{target!r}" in out.message
    assert sorted(allowed) == sorted(set(SAME_ATTEMPT[source]) - {source})
    assert len(allowed) + len(refused) == len(EVENT_TO) - (source in EVENT_TO)


def _to(task: str, target: str, event: str) -> Record:
    detail: dict[str, Any] = {"attempt": 1}
    if target in ("pending", "waiting", "assigned"):
        detail |= {"role": "writer"} | ({"waiting_for": "ASK_1"} if target == "waiting" else {})
    if target == "retrying":
        detail |= {"delay_s": 1, "reason": "x"}
    if target == "lost":
        detail |= {"agent": "master_a", "last_seen": 1}
    if target == "processing":
        detail["worker"] = "laptop"
    return record(event, task, **detail)


async def _bring(kit: Kit, task: str, state: str) -> None:
    """Into a state by its first record, which may be any; cancelled is a decision's."""
    if state == "cancelled":
        await kit.one(_to(task, "assigned", "task_assigned"))
        await kit.one(
            record("decision", f"DEC_{task}", "person_x", action="cancel", task=task, by="person_x", why="停")
        )
    else:
        assert (await kit.one(_to(task, state, EVENT_TO[state]))).outcome == "added"


@pytest.mark.parametrize("action", sorted(DECISIONS))
@pytest.mark.parametrize("source", sorted(SAME_ATTEMPT))
async def test_a_decision_settles_what_it_may_and_is_refused_else(kit: Kit, action: str, source: str) -> None:
    await _bring(kit, "T1", source)
    out = await kit.one(record("decision", "DEC_1", "person_x", action=action, task="T1", by="person_x", why="好"))
    sources, target = DECISIONS[action]
    if source in sources:
        assert out.outcome == "added"
        assert (await kit.log.task_states(kit.space))["T1"].state == target
    else:
        assert out.reason == "illegal_transition" and repr(source) in out.message and repr(target) in out.message


async def test_decisions_about_nothing_known_and_about_no_task(kit: Kit) -> None:
    unknown = await kit.one(record("decision", "DEC_1", "person_x", action="retry", task="T9", by="p", why="?"))
    note = await kit.one(record("decision", "DEC_2", "person_x", action="note", task="T9", by="p", why="记"))
    finish = await kit.one(record("decision", "DEC_3", "leader", action="finish", by="p", why="完", status="completed"))
    assert unknown.reason == "illegal_transition" and "'unknown'" in unknown.message
    assert note.outcome == finish.outcome == "added"
    assert (await kit.log.meta(kit.space))["finish"] == finish.entry
    await kit.one(record("decision", "DEC_4", "person_x", action="resume", by="p", why="再"))
    assert "finish" not in await kit.log.meta(kit.space)


async def test_the_first_answer_to_an_open_question_wins_and_the_others_are_told(kit: Kit) -> None:
    await kit.add(record("task_pending", "T1", role="writer", waiting_for="ASK_1"))
    for n, (question, outcome) in enumerate((("ASK_2", "refused"), ("ASK_1", "added"))):
        out = await kit.one(
            record("decision", f"DEC_{n}", "person_x", action="answer", task="T1", question=question, by="p", why="是")
        )
        assert out.outcome == outcome
    await kit.one(assigned(attempt=2))
    late = await kit.one(
        record("decision", "DEC_9", "person_y", action="answer", task="T1", question="ASK_1", by="p", why="否")
    )
    assert late.reason == "illegal_transition" and "ASK_1" in late.message


async def test_a_step_is_all_or_none(kit: Kit) -> None:
    bad = await kit.log.append_step(kit.space, [assigned("T1"), record("task_completed", "T1", result=1)])
    assert (bad.ok, bad.refused_at, bad.reason) == (False, 1, "illegal_transition")
    assert await kit.all() == [] and await kit.log.task_states(kit.space) == {}
    good = await kit.log.append_step(kit.space, [assigned("T1"), assigned("T2")])
    again = await kit.log.append_step(kit.space, [assigned("T1"), assigned("T2")])
    assert good.ok and [o.outcome for o in again.outcomes] == ["already", "already"]


async def test_a_merge_that_was_computed_before_news_is_refused_without_a_violation(kit: Kit) -> None:
    done = await kit.one(record("task_completed", "T1", result="甲"))
    merge = record("task_merged", "MERGE_1", "manager", as_of=done.entry, source_tasks=["T1"], by={"actor": "manager"})
    await kit.one(record("task_completed", "T2", result="乙"))
    stale = await kit.log.append_step(kit.space, [merge])
    assert (stale.ok, stale.reason) == (False, "stale_read")
    matter = (await kit.log.meta(kit.space))["matter"]
    await kit.one(record("info", "INFO_1"))  # no event that matters
    fresh = record("task_merged", "MERGE_1", "manager", as_of=matter, source_tasks=["T1"], by={"actor": "manager"})
    assert (await kit.log.append_step(kit.space, [fresh])).ok
    assert (await kit.log.append_step(kit.space, [fresh])).outcomes[0].outcome == "already"
    assert await events(kit) == ["task_completed", "task_completed", "info", "task_merged"]


async def test_a_merge_settles_its_sessions_root(kit: Kit) -> None:
    await kit.add(record("task_started", "conv_1", flow="plan"), record("task_completed", "T1", result="甲"))
    await kit.one(record("task_merged", "MERGE_1", "manager", parent="conv_1", source_tasks=["T1"]))
    assert (await kit.log.task_states(kit.space))["conv_1"].state == "merged"
    after = await kit.one(record("task_completed", "conv_1", result="晚"))
    assert after.reason == "illegal_transition" and "'merged'" in after.message


async def test_the_loss_of_an_agent_that_held_nothing_stands_under_its_own_id(kit: Kit) -> None:
    loss = record("task_agent_lost", "ui-operator_1", "manager", agent="ui-operator_1", last_seen=1)
    second = record("task_agent_lost", "ui-operator_1#2", "manager", agent="ui-operator_1", last_seen=400)
    assert [o.outcome for o in await kit.add(loss, loss, second)] == ["added", "already", "added"]
    assert await kit.log.task_states(kit.space) == {}
    assert (await kit.log.find(kit.space, "ui-operator_1#2")) == (await kit.all())[1][1]


async def test_finding_and_getting_by_entry(kit: Kit) -> None:
    out = await kit.add(record("info", "INFO_1", n=1), record("info", "INFO_2", n=2))
    assert (await kit.log.get(kit.space, out[1].entry)) == (await kit.log.find(kit.space, "INFO_2"))
    assert await kit.log.get(kit.space, "1-1") is None and await kit.log.find(kit.space, "INFO_3") is None
    assert await kit.log.task_state(kit.space, "T1") is None
    assert [e for e, _ in await kit.log.tail(kit.space, out[0].entry)] == [out[1].entry]
    assert len(await kit.log.tail(kit.space, count=1)) == 1


async def test_a_space_that_is_not_there_is_named(kit: Kit) -> None:
    assert await kit.log.exists(kit.space) and not await kit.log.exists("other")
    assert not await kit.log.create(kit.space, meta={"kind": "hand"}), "made already"
    meta = await kit.log.meta(kit.space)
    assert meta["title"] == "渗透测试 一号" and meta["policy"] == "hold" and int(meta["created"]) > 0
    with pytest.raises(RolecallError, match="other"):
        await kit.log.append("other", [record("info", "INFO_1")])


async def test_the_number_of_records_is_counted(kit: Kit) -> None:
    assert int((await kit.log.meta(kit.space)).get("n", 0)) == 0
    await kit.add(*(record("info", f"INFO_{n}") for n in range(250)))
    assert int((await kit.log.meta(kit.space))["n"]) == 250


async def test_a_full_space_refuses_new_work_by_name_and_takes_what_settles_the_old(kit: Kit) -> None:
    await kit.add(assigned(), claim())
    small: RedisLog | JsonFile
    if isinstance(kit.log, JsonFile):
        small = JsonFile(kit.log.path, records_max=2)
    else:
        assert kit.client is not None and kit.keys is not None
        small = RedisLog(kit.client, kit.keys, records_max=2)
    for new in (assigned("T2"), record("info", "INFO_1"), record("heartbeat", "HB_1")):
        out = (await small.append(kit.space, [new]))[0]
        assert (out.outcome, out.reason, out.entry) == ("refused", "too_large", "") and "2 records" in out.message
    done = (await small.append(kit.space, [record("task_completed", who="writer_1", result="好")], owner=START))[0]
    decided = (await small.append(kit.space, [record("decision", "DEC_1", action="note", by="p", why="记")]))[0]
    assert done.outcome == decided.outcome == "added"
    assert await events(kit) == ["task_assigned", "task_processing", "task_completed", "decision"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=st.lists(drawn_law.op, min_size=1, max_size=30), batch=st.sampled_from([1, 7]))
def test_both_stores_agree_on_every_record_and_each_equals_its_rebuild(
    redis_url: str, prefix: str, tmp_path: Path, ops: list[dict[str, Any]], batch: int
) -> None:
    """A random history, played on both: the same outcomes, reasons, words, violations and states."""

    async def play() -> None:
        client = connect(redis_url)
        await client.flushall()
        path = tmp_path / "s.json"
        path.unlink(missing_ok=True)
        stores: list[RedisLog | JsonFile] = [RedisLog(client, Keys(prefix)), JsonFile(path)]
        seen: list[Any] = []
        try:
            for store in stores:
                await store.create(SPACE, meta={"kind": "hand"})
                outcomes = []
                for at in range(0, len(ops), batch):
                    part = [(o["owner"], drawn_law.record_of(o, at + k)) for k, o in enumerate(ops[at : at + batch])]
                    for owner in OWNERS:
                        same = [r for drawn, r in part if drawn == owner]
                        outcomes += await store.append(SPACE, same, owner=owner)
                log = await store.tail(SPACE, count=10_000)
                place = {entry: n for n, (entry, _) in enumerate(log)}
                live = await store.task_states(SPACE)
                rebuilt = fold({}, log)
                assert {k: pack(v) for k, v in rebuilt.items()} == {k: pack(v) for k, v in live.items()}
                seen.append(
                    (
                        [(o.outcome, o.reason, o.message, place.get(o.entry)) for o in outcomes],
                        [(r.id, r.event, r.who, r.what, r.detail, r.trace) for _, r in log],
                        {
                            task: (s.state, s.attempt, s.owner, s.role, s.agent, s.tries, s.waiting_for,
                                   {m: (d, place[e]) for m, (d, e) in s.seen.items()})
                            for task, s in live.items()
                        },
                    )
                )  # fmt: skip
        finally:
            await client.flushall()
            await client.aclose()
        assert seen[0] == seen[1]

    asyncio.run(play())
