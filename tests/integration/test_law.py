"""The server's script and ``protocol.tasks`` are one law: over random histories they agree on every record."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.keys import Keys
from protocol.record import Record
from protocol.stores.client import connect
from protocol.stores.redis_log import RedisLog
from protocol.tasks import TaskState, apply, apply_decision, fold, judge, judge_decision, pack

START, OTHER = "writer@h:1:a", "writer@h:2:b"
TASK_EVENTS = ["task_started", "task_pending", "task_assigned", "task_processing", "task_completed", "task_failed",
               "task_retrying", "task_blocked", "task_agent_lost", "parked"]  # fmt: skip

op = st.fixed_dictionaries(
    {
        "event": st.sampled_from([*TASK_EVENTS, "decision"]),
        "task": st.sampled_from(["T1", "T2"]),
        "attempt": st.integers(1, 3),
        "owner": st.sampled_from(["", START, OTHER]),
        "who": st.sampled_from(["master_a", "master_b"]),
        "variant": st.integers(0, 1),
        "command": st.booleans(),
        "action": st.sampled_from(["retry", "reassign", "accept", "cancel", "note", "answer"]),
    }
)


def record_of(o: dict[str, Any], n: int) -> Record:
    event, detail = o["event"], {"attempt": o["attempt"], "v": o["variant"]}
    if o["command"]:
        detail["by"] = {"flow": "plan"}
    id = o["task"]
    match event:
        case "parked":
            event, detail = "task_pending", {**detail, "role": "writer", "waiting_for": "ASK_1"}
        case "task_pending" | "task_assigned":
            detail |= {"role": "writer", "agent": "writer_1"}
        case "task_processing":
            detail["worker"] = o["owner"] or "laptop"
        case "task_retrying":
            detail |= {"delay_s": 0, "reason": "x"}
        case "task_agent_lost":
            detail |= {"agent": "writer_1", "last_seen": 1}
        case "decision":
            id = f"DEC_{n}"
            detail = {"action": o["action"], "task": o["task"], "by": "person", "why": "x"}
            if o["action"] == "answer":
                detail["question"] = "ASK_1"
        case _:
            pass
    return Record(
        id=id, who=o["who"], time=1, event=event, what="x", detail=detail,
        trace={"parent_id": None, "session_id": "S"},  # type: ignore[arg-type]
    )  # fmt: skip


async def play(url: str, prefix: str, ops: list[dict[str, Any]], batch: int) -> None:
    client = connect(url)
    log = RedisLog(client, Keys(prefix))
    space = "S"
    await client.flushall()
    await log.create(space, meta={"kind": "hand"})
    states: dict[str, TaskState] = {}
    expected: list[tuple[str, str]] = []
    records = [record_of(o, n) for n, o in enumerate(ops)]
    try:
        for at in range(0, len(records), batch):
            part = list(zip(ops[at : at + batch], records[at : at + batch], strict=True))
            for owner in ("", START, OTHER):
                same = [r for o, r in part if o["owner"] == owner]
                if same:
                    got = await log.append(space, same, owner=owner)
                    for record, outcome in zip(same, got, strict=True):
                        ruling = _rule(states, record, owner)
                        expected.append((ruling[0], ruling[1]))
                        assert (outcome.outcome, outcome.reason) == ruling, (record, states.get(record.id), outcome)
                        if ruling[0] == "added":
                            _apply(states, record, outcome.entry)
        live = await log.task_states(space)
        assert {k: pack(v) for k, v in live.items()} == {k: pack(v) for k, v in states.items()}
        rebuilt = fold({}, await log.tail(space, count=10_000))
        assert {k: pack(v) for k, v in rebuilt.items()} == {k: pack(v) for k, v in live.items()}
    finally:
        await client.flushall()
        await client.aclose()


def _rule(states: dict[str, TaskState], record: Record, owner: str) -> tuple[str, str]:
    if record.event == "decision":
        detail = record.detail
        task = detail["task"]
        ruling = judge_decision(states.get(task), detail["action"], task, detail.get("question", ""))
    else:
        ruling = judge(states.get(record.id), record, owner)
    return {"new": "added", "already": "already", "refused": "refused"}[ruling.outcome], ruling.reason or ""


def _apply(states: dict[str, TaskState], record: Record, entry: str) -> None:
    if record.event == "decision":
        task = record.detail["task"]
        if task in states:
            states[task] = apply_decision(states[task], record.detail["action"])
    else:
        states[record.id] = apply(states.get(record.id), record, entry)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=st.lists(op, min_size=1, max_size=40), batch=st.sampled_from([1, 7]))
def test_server_and_contract_agree_on_every_record_and_the_rebuild_is_equal(
    redis_url: str, prefix: str, ops: list[dict[str, Any]], batch: int
) -> None:
    asyncio.run(play(redis_url, prefix, ops, batch))
