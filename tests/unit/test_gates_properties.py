"""Properties of the gates: JSON is never altered, nothing but a refusal is raised, nothing cut off passes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import GateRefused
from protocol.gates import object_from_text, pass_gates, repair
from protocol.gates.strict import flaws
from tests.unit.gate_cases import attempt, same

MARKS = [
    *"“”‘’：，{}[]\"'\\#,:甲\n\ufeff\x00\u2028",
    *("//", "/*", "*/", "<think>", "</think>", "```", "null", "None", "NaN", "\x1b[0m", '{"a": 1}', "1e5"),
]
texts = st.one_of(st.text(max_size=20), st.lists(st.sampled_from(MARKS), max_size=8).map("".join))
numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=20,
)
objects = st.dictionaries(texts, values, min_size=1, max_size=5)
layouts = st.sampled_from(
    [{}, {"indent": 2}, {"ensure_ascii": False}, {"separators": (",", ":"), "ensure_ascii": False}]
)


def encoded(value: Any, layout: dict[str, Any]) -> str:
    return json.dumps(value, **layout)


@given(values.filter(lambda value: not isinstance(value, str)), layouts)
def test_json_is_never_altered(value: Any, layout: dict[str, Any]) -> None:
    got, notes = repair(encoded(value, layout))
    assert same(got, value)
    assert notes == []


@given(
    objects,
    layouts,
    st.sampled_from(["%s", "\ufeff%s", "```json\n%s\n```", "好的：\n%s\n完", '<think>{"a": 1}</think>%s']),
)
def test_what_stands_round_it_changes_nothing(value: Any, layout: dict[str, Any], frame: str) -> None:
    assert same(repair(frame % encoded(value, layout))[0], value)


@given(objects, layouts)
def test_a_trailing_comma_changes_nothing_else(value: Any, layout: dict[str, Any]) -> None:
    assert same(repair(encoded(value, layout)[:-1] + ",}")[0], value)


@given(objects, layouts, st.data())
def test_what_was_cut_off_never_passes(value: Any, layout: dict[str, Any], data: st.DataObject) -> None:
    text = encoded(value, layout)
    cut = data.draw(st.integers(min_value=1, max_value=len(text) - 1))
    got = attempt(lambda: repair(text[:cut]))
    assert isinstance(got, GateRefused), f"taken for whole: {got!r}"
    assert got.kind in ("truncated", "ambiguous", "damaged")


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), values, min_size=1, max_size=4))
def test_python_says_the_same(value: Any) -> None:
    got = attempt(lambda: repair(repr(value)))
    if isinstance(got, GateRefused):  # what can't be told apart is refused, never guessed
        assert got.kind in ("ambiguous", "damaged", "loses_digits", "truncated")
    else:
        assert same(got[0], value)


@given(st.one_of(st.binary(max_size=200), texts, st.lists(st.sampled_from(MARKS), max_size=40).map("".join)))
@settings(max_examples=400)
def test_nothing_but_a_refusal_is_raised(raw: str | bytes) -> None:
    for gate in (
        lambda: repair(raw),
        lambda: pass_gates(raw, now=1, session="s", new_id=str),
        lambda: object_from_text(raw if isinstance(raw, str) else raw.decode("latin-1"), required=("a",)),
    ):
        got = attempt(gate)
        assert isinstance(got, tuple) or got.problems


@given(st.lists(st.sampled_from(MARKS), max_size=40).map("".join))
def test_what_comes_out_is_storable(text: str) -> None:
    got = attempt(lambda: repair('{"a": ' + text + "}"))
    if isinstance(got, tuple):
        assert flaws(got[0]) == []
        json.dumps(got[0], allow_nan=False).encode("utf-8")


@given(objects, st.dictionaries(st.sampled_from(["Id", "who", "event", "time", "x", "trace"]), values))
def test_any_object_is_a_record_or_a_refusal_with_paths(value: Any, more: Any) -> None:
    got = attempt(lambda: pass_gates({**value, **more}, now=1, session="s", new_id=lambda prefix: prefix + "1"))
    if isinstance(got, GateRefused):
        assert got.report is not None
        assert got.report.refused_at == got.gate
        assert got.report.problems
        return
    record, report = got
    assert report.refused_at is None
    assert set(record.to_json()) == {"id", "who", "time", "event", "what", "detail", "trace"}
