"""The stand-in words what it is given: the same for the same, nothing of its own."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from protocol.ports import Dispatch
from workers.messages import task_message
from workers.offline.words import answer

FINDINGS = [
    {"file": "a.py", "line": 3, "severity": "high", "rule": "B602", "found_by": ["bandit", "ruff"]},
    {"file": "a.py", "line": 9, "severity": "low", "rule": "S101", "found_by": ["ruff"]},
    {"file": "b.py", "line": 1, "severity": "high", "rule": "B602", "found_by": ["bandit"]},
]
VERDICT: dict[str, object] = {
    "type": "object",
    "properties": {
        "verdict": {"enum": ["confirmed", "rejected", "partial"]},
        "reasons": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "findings": {"type": "array", "items": {"type": "object"}},
        "summary": {"type": "string"},
        "count": {"type": "integer"},
    },
    "required": ["verdict", "reasons", "findings", "summary", "count"],
}


def prompt(text: str = "Word a summary.", schema: dict[str, object] | None = None, **detail: object) -> str:
    made = Dispatch("s", "T", 1, "r", "r_1", "s", "o", 0, {"prompt": text, **detail})
    return str(task_message(made, schema, "task_T", "en")["content"])


def ask(content: str, schema: dict[str, object] | None = None) -> str:
    return answer([{"role": "system", "content": "```json\n[1]\n```"}, {"role": "user", "content": content}], schema)


def test_it_counts_the_findings_and_is_labelled() -> None:
    text = ask(prompt(input={"findings": FINDINGS}))
    assert text.startswith("[offline stand-in:")
    assert "findings: 3 entries" in text
    assert "by severity: high 2, low 1" in text
    assert "by found_by: bandit 2, ruff 2" in text
    assert text == ask(prompt(input={"findings": FINDINGS}))


def test_it_speaks_the_language_of_the_request() -> None:
    text = ask(prompt("请总结", input={"发现": FINDINGS}))
    assert text.startswith("[离线替身")
    assert "发现：3 条" in text


def test_a_schema_is_filled_with_the_input_and_the_most_careful_words() -> None:
    value = json.loads(ask(prompt(input={"findings": FINDINGS}, schema=VERDICT), VERDICT))
    assert value["verdict"] == "partial"
    assert value["findings"] == FINDINGS
    assert value["reasons"] == ["the offline stand-in can't judge; a person or a model has to"]
    assert value["count"] == 0


def test_without_findings_it_finds_none() -> None:
    value = json.loads(ask(prompt(), VERDICT))
    assert value["findings"] == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@given(st.text(max_size=200), VALUES)
def test_it_never_fails_and_never_adds_an_item(text: str, value: object) -> None:
    made = json.loads(ask(prompt(text, input={"findings": value}), VERDICT))
    assert made["findings"] == (value if isinstance(value, list) else [])
