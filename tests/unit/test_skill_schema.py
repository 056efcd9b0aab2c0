"""Arguments against their schema: the shared cases, exact coercion, defaults, nothing fetched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.skills.schema import arguments, check, schema_fault

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/cases/skills.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["id"].startswith("SK-01")], ids=lambda case: case["id"]
)
def test_shared_cases(case: dict[str, Any]) -> None:
    given, faults = arguments(case["input"]["schema"], case["input"]["input"])
    found: dict[str, Any] = {"error_field": faults[0][0]} if faults else {"ok": True, "effective": given}
    allowed = case["expect"].get("any_of", [case["expect"]])
    assert json.dumps(found, sort_keys=True) in [json.dumps(answer, sort_keys=True) for answer in allowed]


def one(schema: dict[str, Any], value: Any) -> Any:
    """The value of the one argument ``x`` as the skill gets it, or the words of the fault."""
    given, faults = arguments({"type": "object", "properties": {"x": schema}}, {"x": value})
    return f"!{faults[0][0]}: {faults[0][1]}" if faults else given["x"]


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "-12", -12),
        ({"type": "integer"}, 5.0, 5),
        ({"type": "number"}, "2.5e3", 2500.0),
        ({"type": "number"}, "7", 7),
        ({"type": "boolean"}, "false", False),
        ({"type": "boolean"}, "true", True),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "array", "items": {"type": "integer"}}, '["1", 2]', [1, 2]),
        ({"type": "array", "items": {"type": "boolean"}}, ["true", False], [True, False]),
        ({"type": "string"}, "5", "5"),
        ({"type": ["string", "integer"]}, "5", "5"),
    ],
)
def test_text_becomes_what_the_schema_asks_for_exactly(schema: dict[str, Any], value: Any, expected: Any) -> None:
    found = one(schema, value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer", "5.0"), ("integer", " 5"), ("integer", "05"), ("integer", "0x5"), ("integer", "５"),
        ("integer", "5\n"), ("integer", ""), ("integer", 5.5), ("integer", True), ("number", "NaN"),
        ("number", "1e999"), ("number", "１"), ("boolean", "False"), ("boolean", "no"), ("boolean", 0),
        ("boolean", ""), ("object", "[1]"), ("object", "{"), ("array", '{"a": 1}'), ("string", 5),
    ],
)  # fmt: skip
def test_everything_else_is_refused_naming_the_field(kind: str, value: Any) -> None:
    assert str(one({"type": kind}, value)).startswith("!x: ")


def test_defaults_are_filled_in_depth_and_never_shared() -> None:
    schema = {
        "type": "object",
        "properties": {
            "deep": {
                "type": "object",
                "default": {},
                "properties": {"tags": {"type": "array", "default": []}, "lang": {"type": "string", "default": "中文"}},
            }
        },
    }
    given: dict[str, Any] = {}
    first, _ = arguments(schema, given)
    assert first == {"deep": {"tags": [], "lang": "中文"}}
    assert given == {}
    first["deep"]["tags"].append("x")
    assert arguments(schema, {})[0] == {"deep": {"tags": [], "lang": "中文"}}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"a": {"b": [1, "x"]}}, "a.b[1]"),
        ({"a": {}}, "a.b"),
        ({"a": {"b": [], "c": 1}}, "a.c"),
        ({}, "a"),
        ([], "$"),
        (None, "$"),
    ],
)
def test_the_field_is_named_by_its_path(value: Any, field: str) -> None:
    inner = {
        "type": "object",
        "properties": {"b": {"type": "array", "items": {"type": "integer"}}},
        "required": ["b"],
        "additionalProperties": False,
    }
    _, faults = arguments({"type": "object", "properties": {"a": inner}, "required": ["a"]}, value)
    assert [name for name, _ in faults] == [field]


def test_without_a_schema_any_object_is_taken() -> None:
    assert arguments(None, {"a": "5"}) == ({"a": "5"}, [])


def test_a_schema_makes_nobody_fetch_anything() -> None:
    remote = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema"}}}
    assert "only references inside" in schema_fault(remote, arguments=True)
    assert check(remote, {"a": 1}) == [("$", "the schema refers to 'http://127.0.0.1:9/schema', which is not in it")]


def test_references_inside_a_schema_are_followed() -> None:
    schema = {"type": "object", "$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    assert schema_fault(schema, arguments=True) == ""
    assert check(schema, {"a": "x"})[0][0] == "a"
    assert check(schema, {"a": 1}) == []


def test_a_value_nested_too_deeply_is_a_fault() -> None:
    schema = {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert check(schema, deep) == [("$", "is nested too deeply")]


@given(st.integers())
def test_a_whole_number_as_text_loses_no_digit(number: int) -> None:
    assert one({"type": "integer"}, str(number)) == number


@given(st.text(max_size=12))
def test_no_text_becomes_true_but_true(text: str) -> None:
    found = one({"type": "boolean"}, text)
    assert found is (text == "true") if text in ("true", "false") else str(found).startswith("!x")
