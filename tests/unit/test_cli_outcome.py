"""How a session ends, read from its records; how outside text is split and kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.intake import split, violation
from coordinator.outcome import Outcome
from protocol.errors import GateRefused
from protocol.record import Record, Trace, canonical

SESSION = "conv_20260711_210000_001"


def made(event: str, name: str = "DEC_1", **detail: Any) -> Record:
    return Record.model_validate(
        {"id": name, "who": "leader", "time": 1, "event": event, "what": "结束", "detail": detail,
         "trace": Trace(parent_id=SESSION, session_id=SESSION)}
    )  # fmt: skip


def finish(status: str, **detail: Any) -> Record:
    return made("decision", action="finish", status=status, why="因为", **detail)


def merged(status: str) -> Record:
    return made("task_merged", "MERGE_x", status=status, source_tasks=["甲"])


RESUME = made("decision", action="resume")


@pytest.mark.parametrize(
    ("records", "result", "code"),
    [
        ([finish("completed")], None, 1),
        ([finish("completed"), merged("delivered")], "delivered", 0),
        ([finish("partial"), merged("partial")], "partial", 1),
        ([finish("completed"), merged("partial")], "partial", 1),
        ([finish("failed")], "failed", 1),
        ([finish("cancelled")], "cancelled", 1),
        ([finish("cancelled"), merged("partial")], "cancelled", 1),
        ([finish("partial"), merged("partial"), RESUME], None, 1),
        ([finish("failed"), RESUME, finish("completed"), merged("delivered")], "delivered", 0),
    ],
)  # fmt: skip
def test_the_outcome_is_what_is_on_record(records: list[Record], result: str | None, code: int) -> None:
    outcome = Outcome(SESSION)
    for record in records:
        outcome.take(record)
    assert (outcome.result, outcome.exit_code, outcome.over) == (result, code, result is not None)


def test_the_end_says_why_and_what_is_missing() -> None:
    outcome = Outcome(SESSION)
    outcome.take(finish("partial", missing=[{"task": "乙", "reason": "blocked"}]))
    outcome.take(merged("partial"))
    assert outcome.to_json() == {
        "session": SESSION, "status": "partial", "why": "因为", "missing": [{"task": "乙", "reason": "blocked"}],
        "merge": "MERGE_x", "source_tasks": ["甲"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "number"),
    [
        (b'{"who": "a"}', 1),
        (b'[{"who": "a"}, {"who": "b"}]', 2),
        ('\ufeff [{"who": "甲"},]'.encode(), 1),
        (b"[]", 1),
        (b"[broken", 1),
        ('说明 [1] {"who": "a"}'.encode(), 1),
    ],
)
def test_a_json_list_is_its_records_and_any_other_text_is_one(raw: bytes, number: int) -> None:
    assert len(split(raw)) == number


def test_an_item_of_a_list_that_is_no_object_is_refused_by_the_gates_not_dropped() -> None:
    assert split(b'[{"who": "a"}, 7]') == [{"who": "a"}, b"7"]


def test_a_refused_text_is_kept_whole_and_the_same_text_is_one_record() -> None:
    refusal = GateRefused("坏", gate=3, problems=(("event", "不是事件"),))
    first = violation("坏的记录".encode(), refusal, session="s", now=1, most=10_000)
    assert first.detail["raw"] == "坏的记录"
    assert first.detail["problems"] == [{"path": "event", "message": "不是事件"}]
    assert first.id == violation("坏的记录".encode(), refusal, session="s", now=2, most=10_000).id
    assert first.id != violation("别的记录".encode(), refusal, session="s", now=1, most=10_000).id


def test_a_huge_refused_text_is_cut_to_the_limit_with_its_length_and_digest() -> None:
    refusal = GateRefused("坏", gate=1)
    record = violation(('坏"' * 300_000).encode(), refusal, session="s", now=1, most=5_000)
    assert len(canonical(record.detail)) <= 5_000
    assert record.detail["raw_chars"] == 600_000
    assert record.detail["raw"].startswith('坏"坏')
    assert json.loads(canonical(record.detail)) == record.detail
