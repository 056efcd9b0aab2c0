"""The record log on a real server: the law, batches, steps, reads, claims and alarms."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from protocol.keys import Keys
from protocol.ports import Dispatch
from protocol.record import Record
from protocol.stores.client import connect
from protocol.stores.redis_claims import Claims, NotClaimed
from protocol.stores.redis_dispatch import Ref, RoleStreams
from protocol.stores.redis_lease import Leases
from protocol.stores.redis_log import RedisLog
from protocol.tasks import fold, pack

START = "writer@host:1:abc"
OTHER = "writer@host:2:def"


def record(event: str, id: str = "T1", who: str = "master_a", session: str = "s1", **detail: Any) -> Record:
    return Record(
        id=id, who=who, time=1719600000, event=event, what="一句话", detail=detail,  # type: ignore[arg-type]
        trace={"parent_id": None, "session_id": session},  # type: ignore[arg-type]
    )  # fmt: skip


def assigned(task: str = "T1", attempt: int = 1, **more: Any) -> Record:
    return record("task_assigned", task, role="writer", attempt=attempt, agent="writer_1", **more)


class Kit:
    def __init__(self, url: str, prefix: str) -> None:
        self.client = connect(url)
        self.keys = Keys(prefix)
        self.log = RedisLog(self.client, self.keys)
        self.claims = Claims(self.client, self.keys)
        self.streams = RoleStreams(self.client, self.keys)
        self.leases = Leases(self.client, self.keys)


@pytest.fixture
async def kit(redis_url: str, prefix: str) -> AsyncIterator[Kit]:
    made = Kit(redis_url, prefix)
    await made.log.create("S", meta={"kind": "session", "policy": "reassign"})
    yield made
    await made.client.aclose()


async def one(kit: Kit, r: Record, owner: str = "") -> Any:
    return (await kit.log.append("S", [r], owner=owner))[0]


async def test_a_record_is_an_entry_with_exactly_the_seven_fields(kit: Kit) -> None:
    done = await one(kit, record("info", "INFO_1", text="“引号”，全角"))
    raw = await kit.client.xrange(kit.keys.space("S").log)
    assert [f.decode() for f in raw[0][1]] == ["id", "who", "time", "event", "what", "detail", "trace"]
    assert raw[0][0].decode() == done.entry
    page = await kit.log.read("S")
    assert page.records[0].detail == {"text": "“引号”，全角"}


async def test_the_same_record_twice_is_one_and_a_different_one_is_refused_by_name(kit: Kit) -> None:
    first = await one(kit, record("info", "INFO_1", n=1))
    again = await one(kit, record("info", "INFO_1", who="master_b", n=1))
    other = await one(kit, record("info", "INFO_1", n=2))
    assert (again.outcome, again.entry) == ("already", first.entry)
    assert (other.outcome, other.reason) == ("refused", "duplicate_id")
    page = await kit.log.read("S")
    assert [r.event for r in page.records] == ["info", "protocol_violation"]
    assert page.records[1].detail["reason"] == "duplicate_id"
    assert page.records[1].detail["raw"]["detail"] == {"n": 2}


async def test_a_batch_returns_one_outcome_a_record_and_one_refusal_fails_no_neighbour(kit: Kit) -> None:
    out = await kit.log.append(
        "S",
        [
            assigned(),
            record("task_completed", attempt=1, result="早了"),
            record("info", "INFO_2"),
            record("info", "INFO_2"),
        ],
    )
    assert [(o.outcome, o.reason) for o in out] == [
        ("added", ""), ("refused", "illegal_transition"), ("added", ""), ("already", ""),
    ]  # fmt: skip
    assert out[3].entry == out[2].entry
    assert "'assigned'" in out[1].message and "'completed'" in out[1].message


async def test_a_claim_is_a_compare_and_set_and_hands_over_the_dispatch(kit: Kit) -> None:
    await one(kit, assigned(prompt="写诗"))
    wrong, right, again, late = [
        (await kit.claims.claim([Ref("writer", "S", "T1", attempt)], owner, now_s=5))[0]
        for attempt, owner in ((2, OTHER), (1, START), (1, START), (1, OTHER))
    ]
    assert isinstance(wrong, NotClaimed) and wrong.state == "assigned"
    assert isinstance(right, Dispatch) and right.detail["prompt"] == "写诗" and right.agent == "writer_1"
    assert isinstance(again, Dispatch), "a claim that is repeated by the same start is the same claim"
    assert isinstance(late, NotClaimed) and late.state == "processing"
    events = [r.event for r in (await kit.log.read("S")).records]
    assert events == ["task_assigned", "task_processing"]


async def test_writes_of_an_attempt_need_its_owner_and_a_superseded_one_is_refused(kit: Kit) -> None:
    await one(kit, assigned())
    await kit.claims.claim([Ref("writer", "S", "T1", 1)], START, now_s=5)
    stolen = await one(kit, record("task_completed", who="writer_1", attempt=1, result="x"), OTHER)
    unowned = await one(kit, record("task_completed", who="writer_1", attempt=1, result="y"))
    assert stolen.reason == unowned.reason == "not_the_owner"
    lost = await one(kit, record("task_agent_lost", who="manager", attempt=1, agent="writer_1", last_seen=1))
    again = await one(kit, assigned(attempt=2))
    assert lost.outcome == again.outcome == "added"
    zombie = await one(kit, record("task_completed", who="writer_1", attempt=1, result="z"), START)
    assert zombie.reason == "superseded_attempt"
    await kit.claims.claim([Ref("writer", "S", "T1", 2)], OTHER, now_s=6)
    done = await one(kit, record("task_completed", who="writer_1", attempt=2, result="好"), OTHER)
    twice = await one(kit, record("task_completed", who="writer_1", attempt=2, result="好"), OTHER)
    assert (done.outcome, twice.outcome) == ("added", "already")
    state = (await kit.log.task_states("S"))["T1"]
    assert (state.state, state.tries) == ("completed", 1)


async def test_a_step_is_all_or_none_and_an_older_term_is_refused(kit: Kit) -> None:
    term = await kit.leases.acquire("S", "leader_1", 10_000)
    assert term == 1 and await kit.leases.acquire("S", "leader_2", 10_000) is None
    bad = await kit.log.append_step(
        "S", [assigned("T1"), record("task_completed", "T1", attempt=1, result=1)], term=1, holder="leader_1"
    )
    assert not bad.ok and bad.refused_at == 1 and bad.reason == "illegal_transition"
    assert (await kit.log.read("S")).records == ()
    await kit.leases.release("S", "leader_1")
    assert await kit.leases.acquire("S", "leader_2", 10_000) == 2
    old = await kit.log.append_step("S", [assigned("T1")], term=1, holder="leader_1")
    assert old.refused_term
    good = await kit.log.append_step("S", [assigned("T1"), assigned("T2")], term=2, holder="leader_2")
    assert [o.outcome for o in good.outcomes] == ["added", "added"]


async def test_a_retry_fires_once_at_its_time(kit: Kit) -> None:
    await one(kit, assigned(prompt="p"))
    await kit.claims.claim([Ref("writer", "S", "T1", 1)], START, now_s=5)
    await kit.log.append(
        "S",
        [record("task_failed", who="writer_1", attempt=1, error={"kind": "x", "message": "m", "retryable": True}),
         record("task_retrying", who="writer_1", attempt=2, delay_s=0.2, reason="x")],
        owner=START,
    )  # fmt: skip
    early = await kit.claims.fire("S", "T1", 2, who="manager", by={"actor": "manager"})
    assert early.outcome == "early" and 0 < early.remaining_ms <= 200
    await kit.client.zadd(kit.keys.space("S").due, {"T1": 1})
    raw = (await kit.client.hget(kit.keys.space("S").tasks, "T1")).decode().split("|")  # type: ignore[misc]
    raw[6] = "1"
    await kit.client.hset(kit.keys.space("S").tasks, "T1", "|".join(raw))  # type: ignore[misc]
    look = (await kit.claims.look(["S"], outbox_ms=0, overdue_ms=0, silent_ms=10**9))[0]
    assert [t for t, _ in look.overdue] == ["T1"]
    fired = await kit.claims.fire("S", "T1", 2, who="manager", by={"actor": "manager"})
    again = await kit.claims.fire("S", "T1", 2, who="manager", by={"actor": "manager"})
    assert fired.ref == Ref("writer", "S", "T1", 2) and again.outcome == "no"
    got = (await kit.claims.claim([Ref("writer", "S", "T1", 2)], OTHER, now_s=6))[0]
    assert isinstance(got, Dispatch) and got.detail["prompt"] == "p" and got.detail["attempt"] == 2 and got.tries == 1


async def test_filters_run_on_the_server_before_and_after_the_index_starts(kit: Kit) -> None:
    for round_ in range(6):
        await kit.log.append(
            "S", [record("info", f"INFO_{round_}_{i}", who=f"master_{i % 3}", session=f"s{i % 2}") for i in range(90)]
        )
        await one(kit, record("checkpoint", f"CP_{round_}", who="verifier_1", last_check="0-0"))
        seen: list[str] = []
        cursor: str | int = 0
        while True:
            page = await kit.log.read("S", since=cursor, event="checkpoint", limit=2)
            seen += [r.id for r in page.records]
            cursor = page.next
            if not page.more:
                break
        assert seen == [f"CP_{n}" for n in range(round_ + 1)]
        both = await kit.log.read("S", who="master_1", session="s1", limit=1000)
        assert len(both.records) == 15 * (round_ + 1)
        stars = await kit.log.read("S", who="master_*", limit=1000)
        assert len(stars.records) == 90 * (round_ + 1) and list(stars.entries) == sorted(
            stars.entries, key=lambda e: tuple(map(int, e.split("-")))
        )
        assert not (await kit.log.read("S", since=page.next, event="checkpoint")).records
    assert await kit.client.hget(kit.keys.space("S").meta, "indexed") == b"1"  # type: ignore[misc]


async def test_enqueueing_is_safe_to_repeat_and_the_length_is_the_backlog(kit: Kit) -> None:
    await one(kit, assigned())
    ref = Ref("writer", "S", "T1", 1)
    assert await kit.client.zcard(kit.keys.space("S").outbox) == 1
    await kit.streams.enqueue([ref])
    await kit.streams.enqueue([ref])
    assert await kit.client.zcard(kit.keys.space("S").outbox) == 0
    assert await kit.streams.backlog(["writer"]) == {"writer": 1}
    got = await kit.streams.read("writer", START, 10, 10)
    assert [r for _, r in got] == [ref]
    assert await kit.streams.pending_of("writer", START) == got
    assert not await kit.streams.retire("writer", START)
    await kit.streams.ack("writer", got)
    assert await kit.streams.backlog(["writer"]) == {"writer": 0}
    assert await kit.streams.retire("writer", START)


async def test_the_projection_equals_its_rebuild_from_the_log(kit: Kit) -> None:
    await one(kit, assigned())
    await one(kit, assigned("T2"))
    await kit.claims.claim([Ref("writer", "S", "T1", 1), Ref("writer", "S", "T2", 1)], START, now_s=5)
    await one(kit, record("task_completed", who="writer_1", attempt=1, result="x"), START)
    await one(
        kit,
        record("task_blocked", "T2", who="writer_1", attempt=1, requires_human_intervention=True, reason="r"),
        START,
    )
    await one(kit, record("decision", "DEC_1", who="person_x", action="retry", task="T2", by="person_x", why="好"))
    live = await kit.log.task_states("S")
    rebuilt = fold({}, await kit.log.tail("S"))
    assert {k: pack(v) for k, v in rebuilt.items()} == {k: pack(v) for k, v in live.items()}
    assert live["T2"].state == "pending"


async def test_a_word_beside_an_attempt_is_refused_once_the_attempt_is_not_its_workers_any_more(kit: Kit) -> None:
    """A heartbeat or a notice of a worker that was stopped and taken over is written nowhere, not even as evidence."""

    def beside(name: str) -> Record:
        made = record("info", name, "writer_1", kind="notice")
        return made.model_copy(update={"trace": made.trace.model_copy(update={"parent_id": "T1"})})

    await one(kit, assigned())
    await one(kit, record("task_processing", worker=START, attempt=1))
    assert (await one(kit, beside("INFO_1"), START)).outcome == "added"
    assert (await one(kit, beside("INFO_2"), OTHER)).reason == "not_the_owner"
    await one(kit, assigned("T1", 2, by={"actor": "manager"}))
    before = await kit.client.xlen(kit.keys.space("S").log)
    assert (await one(kit, beside("INFO_3"), START)).outcome == "refused"
    assert (await one(kit, beside("INFO_1"), START)).outcome == "already", "what was said before was said"
    assert await kit.client.xlen(kit.keys.space("S").log) == before
