"""The record's model, its published schema, ids, canonical JSON and sameness."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from protocol.gates import record_schema, schema_text
from protocol.record import (
    EVENT_TABLE,
    EVENTS,
    TASK_EVENTS,
    TIME_MAX,
    Event,
    Record,
    canonical,
    digest,
    event_words,
    is_identifier,
    is_name,
    missing_detail,
    sameness,
)

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "protocol" / "schema" / "record.schema.json"
GOOD: dict[str, Any] = {
    "id": "TASK_001",
    "who": "master_docs_01",
    "time": 1719600000,
    "event": "task_completed",
    "what": "汇总完成",
    "detail": {"result": "三条结论", "attempt": 2},
    "trace": {"parent_id": "TASK_0", "session_id": "sess_demo"},
}


def make(**change: Any) -> Record:
    return Record.model_validate({**GOOD, **change})


# -- the published schema --------------------------------------------------------------------------------------------


def test_the_published_file_is_what_the_model_says() -> None:
    assert PUBLISHED.read_text(encoding="utf-8") == schema_text()


def test_the_command_prints_it() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "protocol.gates"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    assert done.stdout == schema_text()


def test_it_is_a_schema_and_says_seven_fields() -> None:
    schema = record_schema()
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert set(schema["required"]) == set(schema["properties"]) == set(GOOD)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["event"]["enum"] == list(EVENTS)
    assert set(schema["x-detail"]) <= set(EVENTS)


def schema_lets_through(value: Any) -> bool:
    return Draft202012Validator(json.loads(PUBLISHED.read_text(encoding="utf-8"))).is_valid(value)


def model_lets_through(value: Any) -> bool:
    try:
        Record.model_validate(value)
    except ValidationError:
        return False
    return True


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-5, max_value=TIME_MAX * 2),
    st.text(max_size=5),
    st.sampled_from(
        ["TASK_1", "TASK_1\n", "a b", "x" * 200, "x" * 201, "@a", "任务", "", "一句话", "a\x7f", "a\u2028b"]
    ),
    st.sampled_from([*EVENTS, "done", "Info"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.fixed_dictionaries(
        {
            "parent_id": st.sampled_from([None, "T", "", 1]),
            "session_id": st.sampled_from(["s", "", None, "a b", "s\n"]),
        },
        optional={"traceparent": st.sampled_from(["00", None, 1, "x" * 201]), "x": st.integers()},
    ),
)


@given(
    st.dictionaries(st.sampled_from([*GOOD, "status"]), anything, max_size=3),
    st.sets(st.sampled_from([*GOOD]), max_size=1),
)
def test_schema_and_model_agree(change: dict[str, Any], left_out: set[str]) -> None:
    value = {key: item for key, item in {**GOOD, **change}.items() if key not in left_out}
    assert schema_lets_through(value) == model_lets_through(value)


@given(st.one_of(anything, st.floats(allow_nan=False)))
def test_they_agree_on_what_is_no_object(value: Any) -> None:
    assert schema_lets_through(value) == model_lets_through(value)


# -- the event table -------------------------------------------------------------------------------------------------


def test_the_event_table_has_each_of_the_17_events_once() -> None:
    assert len(EVENTS) == 17
    assert list(EVENT_TABLE) == list(EVENTS) == list(get_args(Event))
    assert len(TASK_EVENTS) == 10
    assert all(rule.written_by and rule.words and rule.prefix.endswith("_") for rule in EVENT_TABLE.values())
    assert {event for event, rule in EVENT_TABLE.items() if rule.state} == TASK_EVENTS
    assert event_words("heartbeat") == EVENT_TABLE["heartbeat"].words


def test_missing_detail_names_alternatives_together() -> None:
    assert missing_detail(make(detail={})) == ["detail.result|artifact|verdict"]
    assert missing_detail(make(detail={"artifact": "sha"})) == []
    assert missing_detail(make(event="task_assigned", detail={"role": "r"})) == ["detail.attempt"]


# -- the record ------------------------------------------------------------------------------------------------------


def test_to_json_is_what_came_in() -> None:
    assert make().to_json() == GOOD
    traced = {**GOOD["trace"], "traceparent": "00-1-2-01", "tracestate": "a=b"}
    assert make(trace=traced).to_json()["trace"] == traced


@pytest.mark.parametrize(
    ("detail", "attempt"), [({}, 1), ({"attempt": 3}, 3), ({"attempt": True}, 1), ({"attempt": 0}, 1)]
)
def test_attempt(detail: dict[str, Any], attempt: int) -> None:
    assert make(detail=detail).attempt == attempt


def test_what_is_a_task_record() -> None:
    assert make().is_task
    assert not make(event="heartbeat").is_task
    assert not make(event="task_merged", id="MERGE_1").is_task
    assert make().session == "sess_demo"


def test_sameness_sees_event_task_attempt_and_detail_only() -> None:
    assert sameness(make()) == sameness(make(who="b", what="别的", time=1))
    assert sameness(make(detail={"attempt": 2, "result": "三条结论"})) == sameness(make())
    differ = [
        make(id="TASK_002"),
        make(event="task_failed"),
        make(detail={"result": "三条结论", "attempt": 3}),
        make(detail={"result": "四条结论", "attempt": 2}),
        make(detail={"result": 1, "attempt": 2}),
        make(detail={"result": True, "attempt": 2}),
    ]
    assert len({sameness(one) for one in [make(), *differ]}) == 7
    assert sameness(make(detail={"by": "anna"})) == sameness(make(detail={"by": "li"}))


def test_names() -> None:
    assert is_identifier("conv_20251130_211200_001")
    assert is_identifier("TASK_1/left#2")
    assert not any(map(is_identifier, ["", "a b", "a\n", "任务", "x" * 201, "@a"]))
    assert is_name("code-reviewer_1")
    assert not any(map(is_name, ["", "a:b", "a{b}", "a\n", "x" * 65]))


# -- canonical JSON --------------------------------------------------------------------------------------------------

values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=10,
)


@given(values)
def test_canonical_reads_back_and_does_not_see_the_order_of_keys(value: Any) -> None:
    assert json.loads(canonical(value)) == value
    if isinstance(value, dict):
        assert canonical(dict(reversed(value.items()))) == canonical(value)


def test_canonical_is_compact_and_exact() -> None:
    assert canonical({"乙": 1, "a": [2**70, 1.5, None]}) == '{"a":[1180591620717411303424,1.5,null],"乙":1}'.encode()
    assert canonical({"b": 1, "a": "é\u2028"}) == '{"a":"é\u2028","b":1}'.encode()


@pytest.mark.parametrize(
    "value",
    [float("nan"), {"a": [float("inf")]}, {"a": None, "b": float("-inf")}, {1: 2}, {"a": {None: 1}}, {"a": "\ud800"},
     {"a": {1, 2}}, {"a": b"x"}, object(), {"a": {2**70: 1}}],
)  # fmt: skip
def test_what_is_no_json_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(ValueError, match="not a JSON value"):
        canonical(value)


def test_digest_keeps_its_parts_apart() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("甲") == digest("甲".encode())
    assert len(digest("x")) == len(digest("x" * 1000)) >= 26
    assert digest("x").isalnum()
