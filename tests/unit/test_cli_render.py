"""Text for people: wide characters line up, control characters never reach the terminal."""

from __future__ import annotations

import pytest

from coordinator.cli.render import age, counts, cut, plain, record_line, table, width


def test_a_table_lines_up_with_wide_characters() -> None:
    lines = table(("task", "state"), [("审查", "done"), ("ab", "open")]).splitlines()
    assert [width(line[: line.index(word)]) for line, word in zip(lines, ("state", "done", "open"), strict=True)] == [
        6
    ] * 3


def test_what_comes_from_records_cannot_drive_the_terminal() -> None:
    assert plain("a\x1b[2Jb\r\nc\u202ed") == "a [2Jb c d"
    assert "\x1b" not in table(("x",), [("\x1b[31mred",)])


@pytest.mark.parametrize(
    ("text", "columns", "shown"), [("审查结果", 5, "审查…"), ("short", 5, "short"), ("longer", 5, "long…")]
)
def test_what_is_too_long_is_cut_with_an_ellipsis(text: str, columns: int, shown: str) -> None:
    assert cut(text, columns) == shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.2 s"), (0, "0 s"), (42, "42 s"), (600, "10 min"), (7200, "2 h"), (200_000, "2 d"), (None, "-")],
)
def test_ages_are_in_the_unit_that_fits(seconds: float | None, words: str) -> None:
    assert age(seconds) == words


def test_counts_name_the_most_frequent_first_and_nothing_that_is_not_there() -> None:
    assert counts({"blocked": 1, "completed": 3, "lost": 0}) == "3 completed, 1 blocked"


def test_a_record_is_one_line_with_its_attempt() -> None:
    record = {"who": "master_1", "event": "task_failed", "id": "T1", "what": "失败\nx", "detail": {"attempt": 2}}
    line = record_line("1719600000000-0", record)
    assert line.endswith("master_1  task_failed  T1 #2  失败 x")
    assert "\n" not in line
