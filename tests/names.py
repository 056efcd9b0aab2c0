"""Names of tests, as tables of cases and of traps give them: ``tests/unit/test_x.py::test_y``."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def is_test(name: str) -> bool:
    """Whether ``path::function`` (or ``path::Class::function``) is there."""
    path, _, inside = name.partition("::")
    return inside in _tests(path)


@cache
def _tests(path: str) -> frozenset[str]:
    try:
        tree = ast.parse((ROOT / path).read_text("utf-8"))
    except OSError:
        return frozenset()
    found = [(node, "") for node in tree.body]
    found += [(inner, f"{node.name}::") for node in tree.body if isinstance(node, ast.ClassDef) for inner in node.body]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        f"{place}{node.name}" for node, place in found if isinstance(node, functions) and node.name.startswith("test_")
    )
