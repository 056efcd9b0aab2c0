"""Gate 2: defaults and spellings, each change listed; what has no default; what can't be placed."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import GateRefused
from protocol.gates import validate
from protocol.record import EVENT_TABLE, EVENTS, TIME_MAX
from tests.unit.gate_cases import GOOD, NOW, made, paths, refusal_of


def test_a_right_record_is_not_touched() -> None:
    out, changes = made(GOOD)
    assert out == GOOD
    assert changes == []
    assert validate(out).to_json() == GOOD


def test_the_fewest_fields() -> None:
    out, changes = made({"who": "w_1", "event": "heartbeat"})
    assert out == {
        "id": "HB_abc",
        "who": "w_1",
        "time": NOW,
        "event": "heartbeat",
        "what": "heartbeat",
        "detail": {},
        "trace": {"parent_id": None, "session_id": "sess_now"},
    }
    assert [change.path for change in changes] == ["id", "time", "what", "detail", "trace"]
    assert list(out) == list(GOOD)


@pytest.mark.parametrize("event", EVENTS)
def test_each_event_has_its_prefix_and_words(event: str) -> None:
    out, _ = made({"who": "w_1", "event": event})
    assert out["id"] == EVENT_TABLE[event].prefix + "abc"
    assert out["what"] == EVENT_TABLE[event].words
    assert validate(out).event == event


@pytest.mark.parametrize("field", ["who", "event"])
def test_who_and_event_have_no_default(field: str) -> None:
    for value in ({key: GOOD[key] for key in GOOD if key != field}, {**GOOD, field: None}, {**GOOD, field: " "}):
        refusal = refusal_of(value)
        assert refusal.gate == 3
        assert paths(refusal) == {field}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("1719600000", 1719600000),
        (" 1719600000 ", 1719600000),
        (1719600000.0, 1719600000),
        (1719600000.75, 1719600000),
        (1719600000123, 1719600000),
        (1719600000123.0, 1719600000),
        ("1719600000123", 1719600000),
        ("2024-06-28T18:40:00Z", 1719600000),
        ("2024-06-28T20:40:00+02:00", 1719600000),
        ("2024-06-28 18:40:00", 1719600000),
        ("2024-06-28T18:40:00.999Z", 1719600000),
        (None, NOW),
    ],
)
def test_time_becomes_whole_unix_seconds(before: Any, after: int) -> None:
    out, changes = made({**GOOD, "time": before})
    assert type(out["time"]) is int
    assert out["time"] == after
    assert [(change.path, change.before, change.after) for change in changes] == [("time", before, after)]
    assert validate(out).time == after


@pytest.mark.parametrize(
    "value",
    [True, False, -5, -1.0, "-5", "soon", "20240628", "20240628184000", "2024-13-01", "1969-12-31T00:00:00Z", [], {},
     "",     float("nan"), float("inf"), TIME_MAX * 1_000_000, 1719600000123456],
)  # fmt: skip
def test_a_time_that_is_none_is_refused(value: Any) -> None:
    refusal = refusal_of({**GOOD, "time": value})
    assert refusal.gate == 3
    assert paths(refusal) == {"time"}


def test_keys_in_another_case_are_mapped_or_dropped() -> None:
    value = {("WHO" if key == "who" else key): item for key, item in GOOD.items()} | {"Event": "info"}
    out, changes = made(value)
    assert out == GOOD
    assert [change.path for change in changes] == ["who", "Event"]
    assert "dropped" in changes[1].note


def test_an_unknown_key_goes_under_detail_with_a_note() -> None:
    out, changes = made({**GOOD, "状态": "ok", "result": "三条结论"})
    assert out["detail"] == {"result": "三条结论", "状态": "ok"}
    assert set(out) == set(GOOD)
    assert {change.path for change in changes} == {"状态", "result"}
    assert GOOD["detail"] == {"result": "三条结论"}


def test_an_unknown_key_is_refused_in_strict_mode() -> None:
    refusal = refusal_of({**GOOD, "status": "ok", "note": 1}, strict=True)
    assert refusal.gate == 2
    assert paths(refusal) == {"status", "note"}


def test_an_unknown_key_that_contradicts_detail_is_refused() -> None:
    assert paths(refusal_of({**GOOD, "result": "别的"})) == {"result"}
    assert paths(refusal_of({**GOOD, "detail": [1], "x": 1})) == {"x"}


def test_text_is_a_detail_only_for_a_delivery() -> None:
    assert made({**GOOD, "detail": "发现"})[0]["detail"] == {"result": "发现"}
    assert paths(refusal_of({**GOOD, "event": "info", "detail": "发现"})) == {"detail"}


@pytest.mark.parametrize("parent", ["", "  "])
def test_an_empty_parent_is_none(parent: str) -> None:
    out, changes = made({**GOOD, "trace": {"parent_id": parent, "session_id": "s"}})
    assert out["trace"] == {"parent_id": None, "session_id": "s"}
    assert [change.path for change in changes] == ["trace.parent_id"]


def test_half_a_trace_is_filled_in() -> None:
    out, _ = made({**GOOD, "trace": {"traceparent": "00-1-2-01"}})
    assert out["trace"] == {"parent_id": None, "session_id": "sess_now", "traceparent": "00-1-2-01"}


@pytest.mark.parametrize("value", [[GOOD], "task_completed", None, 1, True])
def test_what_is_no_object_is_refused_by_the_root(value: Any) -> None:
    for gate in (made, validate):
        with pytest.raises(GateRefused) as caught:
            gate(value)
        assert paths(caught.value) == {"$"}
