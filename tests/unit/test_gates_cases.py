"""The shared cases of gate 1: every input, the exact value or a refusal, in the time given."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from protocol.gates import repair
from tests.unit.gate_cases import attempt, expand, load, same

CASES = load("json-repair.jsonl")
REFUSED = object()


def outcome(text: str) -> Any:
    got = attempt(lambda: repair(text))
    if isinstance(got, tuple):
        return got[0]
    assert got.gate == 1
    assert got.kind
    assert str(got)
    return REFUSED


def described(words: str, text: str) -> Any:
    if words == "json.loads(input)":
        return json.loads(text)
    if words.startswith("json.loads(input with the last comma removed"):
        comma = text.rindex(",")
        return json.loads(text[:comma] + text[comma + 1 :])
    raise AssertionError(f"unknown words: {words!r}")


def holds(expect: dict[str, Any], text: str, got: Any) -> bool:
    if "any_of" in expect:
        return any(holds(one, text, got) for one in expect["any_of"])
    if "refuse" in expect:
        return got is REFUSED
    if got is REFUSED:
        return False
    if "value" in expect:
        return same(got, expect["value"])
    if "value_from" in expect:
        return same(got, described(expect["value_from"], text))
    return bool(expect.get("any"))


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_shared_case(case: dict[str, Any]) -> None:
    text, expect = expand(case["input"]), expand(case["expect"])
    started = time.process_time()
    got = outcome(text)
    spent_s = time.process_time() - started
    assert spent_s < min(expect.get("max_seconds", 2), 5)
    if expect.get("any_of", [{}])[0].get("scored", expect.get("scored", True)):
        assert holds(expect, text, got), f"{case['why']}: got {got!r}"
    if "forbid" in expect and got is not REFUSED:
        assert not {"NaN", "Infinity"} & set(json.dumps(got).replace('"', " ").split())
        assert got != {"result": "x"}


def test_the_cases_are_all_there() -> None:
    assert len(CASES) == 62
    assert len({case["id"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_four_times_the_size_takes_about_four_times_the_time(number: int) -> None:
    case = next(case for case in CASES if case["id"] == f"JR-10.{number}")
    parts = case["input"]["$concat"]
    spent = []
    for size in (1, 4) if number > 2 else (0.25, 1):
        text = "".join(piece * (int(count * size) if count > 1 else 1) for piece, count in parts)
        started = time.process_time()
        outcome(text)
        spent.append(time.process_time() - started)
    assert spent[1] < 6.5 * spent[0] + 0.1
