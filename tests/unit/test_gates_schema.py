"""Gate 4: what each event needs in `detail`, its size, and declared schemas."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ConfigError, GateRefused
from protocol.gates import check_schema, compile_schema, schema_problems, validate
from protocol.record import EVENTS, Record
from tests.unit.gate_cases import GOOD, paths

NEEDED: dict[str, dict[str, Any]] = {
    "task_started": {},
    "task_pending": {"role": "reviewer"},
    "task_assigned": {"role": "reviewer", "attempt": 1},
    "task_processing": {"attempt": 2, "worker": "reviewer@h:1:ab"},
    "task_completed": {"result": None},
    "task_failed": {"error": {"kind": "timeout", "message": "超时", "retryable": True}},
    "task_retrying": {"attempt": 2, "delay_s": 30.5, "reason": "timeout"},
    "task_blocked": {"requires_human_intervention": True, "reason": "权限"},
    "task_agent_lost": {"agent": "master_1", "last_seen": 1719600000},
    "task_merged": {},
    "heartbeat": {"current_task": None, "status": "idle", "progress": 0},
    "checkpoint": {"last_check": "1719600000000-0"},
    "summary": {},
    "decision": {"action": "retry", "by": "anna", "why": "网络恢复"},
    "protocol_violation": {"reason": "gate_1", "raw": "{"},
    "info": {},
    "error": {},
}


def record(event: str, detail: dict[str, Any]) -> Record:
    return validate({**GOOD, "event": event, "detail": detail})


@pytest.mark.parametrize("event", EVENTS)
def test_what_an_event_needs(event: str) -> None:
    needed = NEEDED[event]
    check_schema(record(event, needed))
    for key in needed:
        with pytest.raises(GateRefused) as caught:
            check_schema(record(event, {name: item for name, item in needed.items() if name != key}))
        assert caught.value.gate == 4
        assert any(
            path.startswith("detail.") and key in path.split(".", 1)[1].split("|") for path in paths(caught.value)
        )
        assert event in str(caught.value)


@pytest.mark.parametrize(
    ("event", "change", "path"),
    [
        ("task_assigned", {"attempt": 0}, "detail.attempt"),
        ("task_assigned", {"attempt": True}, "detail.attempt"),
        ("task_assigned", {"attempt": "1"}, "detail.attempt"),
        ("task_assigned", {"role": ""}, "detail.role"),
        ("task_completed", {"attempt": 1.0}, "detail.attempt"),
        ("task_failed", {"error": "boom"}, "detail.error"),
        ("task_failed", {"error": {"kind": "x", "message": "y"}}, "detail.error.retryable"),
        ("task_failed", {"error": {"kind": 1, "message": "y", "retryable": 0}}, "detail.error.kind"),
        ("task_blocked", {"requires_human_intervention": False}, "detail.requires_human_intervention"),
        ("task_blocked", {"requires_human_intervention": "true"}, "detail.requires_human_intervention"),
        ("task_retrying", {"delay_s": -1}, "detail.delay_s"),
        ("task_retrying", {"delay_s": True}, "detail.delay_s"),
        ("heartbeat", {"current_task": 5}, "detail.current_task"),
        ("protocol_violation", {"reason": "bad"}, "detail.reason"),
        ("protocol_violation", {"reason": ["gate_1"]}, "detail.reason"),
        ("task_completed", {"verdict": "insufficient", "verifies": "T1", "reasons": []}, "detail.verdict"),
        ("task_completed", {"verdict": True, "verifies": "T1", "reasons": []}, "detail.verdict"),
        ("task_completed", {"verdict": "confirmed", "reasons": []}, "detail.verifies"),
        ("task_completed", {"verdict": "confirmed", "verifies": "T 1", "reasons": []}, "detail.verifies"),
        ("task_completed", {"verdict": "confirmed", "verifies": "T1", "reasons": "因为"}, "detail.reasons"),
    ],
)
def test_the_shapes_of_detail(event: str, change: dict[str, Any], path: str) -> None:
    with pytest.raises(GateRefused) as caught:
        check_schema(record(event, {**NEEDED[event], **change}))
    assert path in paths(caught.value)


@pytest.mark.parametrize("verdict", ["confirmed", "rejected", "partial"])
def test_a_verdict(verdict: str) -> None:
    check_schema(record("task_completed", {"verdict": verdict, "verifies": "T1", "reasons": ["因为"]}))


def test_a_parked_task_and_a_time_as_checkpoint() -> None:
    check_schema(record("task_pending", {"waiting_for": "ASK_1"}))
    check_schema(record("checkpoint", {"last_check_time": 1719600000}))


def test_a_detail_that_is_too_large() -> None:
    fits = {"result": "x" * (1000 - len('{"result":""}'))}
    check_schema(record("task_completed", fits), detail_max_bytes=1000)
    with pytest.raises(GateRefused, match="1,001 bytes") as caught:
        check_schema(record("task_completed", {"result": fits["result"] + "x"}), detail_max_bytes=1000)
    assert caught.value.reason == "too_large"
    assert caught.value.gate == 4
    with pytest.raises(GateRefused):
        check_schema(record("task_completed", {"result": "好" * 100_000}))


SCHEMA = {
    "type": "object",
    "required": ["result"],
    "properties": {"result": {"type": "array", "items": {"$ref": "#/$defs/finding"}}},
    "$defs": {"finding": {"type": "object", "required": ["file", "line"], "properties": {"line": {"type": "integer"}}}},
}


def test_a_declared_schema_names_the_path() -> None:
    check_schema(record("task_completed", {"result": [{"file": "甲.py", "line": 3}]}), SCHEMA)
    with pytest.raises(GateRefused) as caught:
        check_schema(
            record("task_completed", {"result": [{"file": "a", "line": 1}, {"file": "a", "line": "3"}]}), SCHEMA
        )
    assert caught.value.gate == 4
    assert paths(caught.value) == {"detail.result[1].line"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"properties": {"a": {"items": {"$ref": "other.json#/x"}}}},
        {"$dynamicRef": "urn:x"},
        {"type": "objekt"},
        {"required": "result"},
        {"$ref": "#/$defs/none"},
    ],
)
def test_a_schema_that_is_none_or_points_outside_is_the_roles_fault(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_schema(record("task_completed", {"result": 1}), schema)
    assert caught.value.mend


def test_a_schema_can_be_checked_before_it_is_used() -> None:
    compile_schema(SCHEMA)
    with pytest.raises(ConfigError, match="nothing is fetched"):
        compile_schema({"$ref": "http://127.0.0.1:9/"})
    with pytest.raises(ConfigError):
        compile_schema({"const": float("nan")})


def test_a_schema_that_refers_to_itself_ends() -> None:
    with pytest.raises(GateRefused, match="too deep"):
        check_schema(record("task_completed", {"result": 1}), {"$ref": "#"})


def test_problems_of_any_value_by_a_schema() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    assert schema_problems([1, 2], schema) == []
    assert [path for path, _ in schema_problems([1, "二"], schema, path="result")] == ["result[1]"]
