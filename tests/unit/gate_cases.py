"""For the tests of the gates: the shared cases, comparing by the letter of the type, one good record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from protocol.errors import GateRefused
from protocol.gates import Change, default_new_id, normalise, pass_gates

Result = TypeVar("Result")

CASES = Path(__file__).parent / "data" / "cases"


def expand(value: Any) -> Any:
    """Put ``{"$concat": [[text, count], …]}`` together, wherever it stands."""
    if isinstance(value, dict):
        if set(value) == {"$concat"}:
            return "".join(text * count for text, count in value["$concat"])
        return {key: expand(child) for key, child in value.items()}
    if isinstance(value, list):
        return [expand(child) for child in value]
    return value


def attempt(gate: Callable[[], Result]) -> Result | GateRefused:
    """What ``gate`` gives, or its refusal; any other exception passes through."""
    try:
        return gate()
    except GateRefused as refusal:
        return refusal


def load(name: str) -> list[dict[str, Any]]:
    """The cases of a file, not yet expanded."""
    lines = (CASES / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def same(one: Any, other: Any) -> bool:
    """Equal by value and type: true is not 1, 1 is not 1.0; the order of keys does not matter."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


NOW = 1_764_537_120
GOOD: dict[str, Any] = {
    "id": "TASK_001",
    "who": "master_docs_01",
    "time": 1719600000,
    "event": "task_completed",
    "what": "汇总完成",
    "detail": {"result": "三条结论"},
    "trace": {"parent_id": None, "session_id": "sess_demo"},
}


def made(value: Any, **more: Any) -> tuple[dict[str, Any], list[Change]]:
    return normalise(value, now=NOW, session="sess_now", new_id=default_new_id(lambda: "abc"), **more)


def refusal_of(value: Any, **more: Any) -> GateRefused:
    with pytest.raises(GateRefused) as caught:
        pass_gates(value, now=NOW, session="sess_now", new_id=default_new_id(lambda: "abc"), **more)
    return caught.value


def paths(refusal: GateRefused) -> set[str]:
    return {path for path, _ in refusal.problems}
