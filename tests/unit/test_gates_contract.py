"""The shared cases of the contract: gates 2 and 3 on whole records: valid, normalised so, or invalid."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from protocol.errors import GateRefused
from protocol.gates import normalise, validate
from protocol.record import EVENTS, is_identifier
from tests.unit.gate_cases import load, same

CASES = load("contract.jsonl")
NOW = 1_764_537_120
SESSION = "sess_now"
_numbers = count(1)


@dataclass
class Outcome:
    record: dict[str, Any] | None = None
    changed: list[str] = field(default_factory=list)
    fields: set[str] = field(default_factory=set)
    message: str = ""


def judge(value: Any) -> Outcome:
    before = copy.deepcopy(value)
    try:
        made, changes = normalise(value, now=NOW, session=SESSION, new_id=lambda prefix: f"{prefix}{next(_numbers)}")
        record = validate(made)
    except GateRefused as refusal:
        paths = {path for path, _ in refusal.problems}
        return Outcome(fields=paths, message=" ".join(message for _, message in refusal.problems))
    finally:
        assert same(value, before), "the input is never touched"
    return Outcome(record.to_json(), [change.path for change in changes])


def holds(expect: dict[str, Any], value: Any, got: Outcome) -> bool:
    if "any_of" in expect:
        return any(holds(one, value, got) for one in expect["any_of"])
    if expect["outcome"] == "invalid":
        return got.record is None and set(expect["fields"]) <= got.fields
    if got.record is None:
        return False
    if expect["outcome"].startswith("valid"):
        return not got.changed and same(got.record, value)
    want = {**value, **expect["changes"]}
    return set(got.changed) <= {*expect["changes"], "trace.session_id"} and all(
        fits(want.get(name), got, name) for name in {*want, *got.record}
    )


def fits(want: Any, got: Outcome, name: str) -> bool:
    assert got.record is not None
    have = got.record.get(name)
    match want:
        case "now, whole seconds":
            return same(have, NOW)
        case {"parent_id": None, "session_id": "<current session>"}:
            return same(have, {"parent_id": None, "session_id": SESSION})
        case "<removed, noted>":
            return name not in got.record and name in got.changed
        case str() if want.startswith("<generated"):
            return isinstance(have, str) and is_identifier(have) and have.startswith("TASK_")
    if name == "detail" and "status" in got.changed:  # an unknown field went under `detail`
        return same(have, {**want, "status": "ok"})
    return same(have, want)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_shared_case(case: dict[str, Any]) -> None:
    value, expect = case["input"], case["expect"]
    inputs = [value]
    if isinstance(value, dict) and "template" in value:
        inputs = [{**value["template"], value["field"]: word} for word in value["values"]]
        assert len(inputs) == len(EVENTS)
    for one in inputs:
        got = judge(one)
        if expect.get("any_of", [{}])[-1].get("scored", expect.get("scored", True)):
            assert holds(expect, one, got), f"{case['why']}: {got}"
        if got.record is not None:
            assert got.record["event"] not in expect.get("forbid_event", [])


def test_two_records_without_an_id_get_two_ids() -> None:
    value = next(case for case in CASES if case["id"] == "CT-03.5")["input"]
    one, other = judge(value), judge(value)
    assert one.record is not None
    assert other.record is not None
    assert one.record["id"] != other.record["id"]


@pytest.mark.parametrize("word", ["task_complete", "task_done", "Task-Completed", "完成"])
def test_a_near_miss_is_refused_with_the_seventeen_words(word: str) -> None:
    value = {**CASES[1]["input"], "event": word}
    got = judge(value)
    assert got.fields == {"event"}
    assert all(event in got.message for event in EVENTS)
    assert repr(word) in got.message


def test_the_nearest_word_is_named() -> None:
    assert "did you mean 'task_completed'?" in judge({**CASES[1]["input"], "event": "task_complete"}).message
