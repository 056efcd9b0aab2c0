"""Gate 3: the seven fields and their limits; every offending field is named by its path."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import GateRefused
from protocol.gates import validate
from protocol.record import EVENTS, TIME_MAX, WHAT_MAX
from tests.unit.gate_cases import GOOD, paths


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"id": "TASK 1"}, "id"),
        ({"id": "TASK_1\n"}, "id"),
        ({"id": "任务"}, "id"),
        ({"id": "x" * 201}, "id"),
        ({"id": 5}, "id"),
        ({"who": "x" * 129}, "who"),
        ({"who": ["a"]}, "who"),
        ({"time": TIME_MAX + 1}, "time"),
        ({"what": "一\n二"}, "what"),
        ({"what": "x\x7f"}, "what"),
        ({"what": "好" * (WHAT_MAX + 1)}, "what"),
        ({"what": ""}, "what"),
        ({"what": "x\ud800"}, "what"),
        ({"detail": []}, "detail"),
        ({"detail": {"a": [0, float("nan")]}}, "detail.a[1]"),
        ({"detail": {"a": {"b": "\udfff"}}}, "detail.a.b"),
        ({"detail": {"a": (1, 2)}}, "detail.a"),
        ({"detail": {1: 2}}, "detail.1"),
        ({"trace": {"parent_id": None, "session_id": "s", "status": "x"}}, "trace.status"),
        ({"trace": {"parent_id": "TASK 1", "session_id": "s"}}, "trace.parent_id"),
        ({"trace": {"parent_id": None}}, "trace.session_id"),
        ({"trace": ["s"]}, "trace"),
        ({"status": "ok"}, "status"),
    ],
)
def test_each_offending_field_is_named_by_its_path(change: dict[str, Any], path: str) -> None:
    with pytest.raises(GateRefused) as caught:
        validate({**GOOD, **change})
    assert caught.value.gate == 3
    assert path in paths(caught.value)
    assert caught.value.path == path


def test_all_offending_fields_are_named_at_once() -> None:
    with pytest.raises(GateRefused) as caught:
        validate({"id": "a b", "time": "1", "event": "done", "what": "", "detail": {"x": float("inf")}, "trace": 1})
    assert paths(caught.value) == {"id", "who", "time", "event", "what", "detail.x", "trace"}


def test_the_limits_themselves_are_valid() -> None:
    widest = {**GOOD, "id": "a" * 200, "who": "@" * 128, "what": "好" * WHAT_MAX, "time": TIME_MAX}
    assert validate(widest).to_json() == widest


@pytest.mark.parametrize("event", EVENTS)
def test_gate_3_takes_any_event_with_an_empty_detail(event: str) -> None:
    assert validate({**GOOD, "event": event, "detail": {}}).event == event
