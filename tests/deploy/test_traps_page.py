"""The page of traps: every trap has its row, every row names tests that are there, every file of cases is run."""

from __future__ import annotations

import re
from pathlib import Path

from tests.names import is_test

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/traps.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/.-]+\.py::[\w:]+)`")
TRAPS = [*(str(n) for n in range(1, 33)), *("16a", "16b", "16c", "16d"), *("23a", "23b", "23c", "23d"), "26a"]


def rows(key: str) -> dict[str, str]:
    """First cell -> last cell of each row whose first cell is like ``key``."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line[:1] == "|"]
    return {row[0]: row[-1] for row in cells if re.fullmatch(key, row[0])}


def test_every_trap_has_its_row_and_every_row_its_tests() -> None:
    found = rows(r"\d+[a-d]?")
    assert sorted(found) == sorted(TRAPS)
    assert [number for number, held in found.items() if not TEST.search(held)] == []


def test_every_named_test_is_there() -> None:
    named = TEST.findall(PAGE)
    assert len(named) > 60
    assert [name for name in named if not is_test(name)] == []


def test_a_test_that_is_not_there_is_seen() -> None:
    here = "tests/deploy/test_traps_page.py"
    assert is_test(f"{here}::test_a_test_that_is_not_there_is_seen")
    assert not is_test(f"{here}::test_nothing")
    assert not is_test(f"{here}::rows"), "a function is no test"
    assert not is_test("tests/deploy/nowhere.py::test_nothing")


def test_every_file_of_cases_is_run() -> None:
    files = {path.name for path in (ROOT / "tests/unit/data/cases").glob("*.jsonl")}
    assert {name.strip("`") for name in rows(r"`[\w-]+\.jsonl`")} == files
