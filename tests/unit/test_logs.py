"""Logs: one line an event, readable or JSON, and never a password."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from protocol.kit import logs


@pytest.fixture(autouse=True)
def _root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before, level, raising = list(root.handlers), root.level, logging.raiseExceptions
    yield
    root.handlers[:] = before
    root.setLevel(level)
    logging.raiseExceptions = raising


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_a_line_for_people():
    stream = io.StringIO()
    logs.configure("worker:审阅@h:1", stream=stream)
    logs.get_log("t").info("claimed", task="T1", attempt=2, title="两个 词", waited_s=0.25, empty="")
    (line,) = lines(stream)
    moment, rest = line.split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment)
    assert rest == 'INFO worker:审阅@h:1 claimed task=T1 attempt=2 title="两个 词" waited_s=0.25 empty=""'


def test_a_json_line():
    stream = io.StringIO()
    logs.configure("leader", style="json", stream=stream)
    try:
        raise ValueError("坏")
    except ValueError as error:
        logs.get_log("t").error("step_failed", error=error, space="S", level="mine")
    line = json.loads(lines(stream)[0])
    assert (line["level"], line["actor"], line["event"], line["space"]) == ("ERROR", "leader", "step_failed", "S")
    assert line["error"] == "ValueError: 坏"
    assert "test_logs.py" in line["trace"]


@pytest.mark.parametrize("style", ["human", "json"])
@pytest.mark.parametrize("nasty", ["a\nb", "a\r\nb", "\x1b[31mred", "a\u2028b", "a\x85b", 'quote " and \\', "\ud800"])
def test_whatever_is_in_it_stays_one_line(style, nasty):
    stream = io.StringIO()
    logs.configure("a", style=style, stream=stream)
    logs.get_log("t").info("odd", text=nasty)
    text = stream.getvalue()
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert "\x1b" not in text
    if style == "human":
        assert len(text.splitlines()) == 1


def test_an_error_is_one_line_unless_everything_is_asked_for():
    for level, most in ((logging.INFO, 1), (logging.DEBUG, 50)):
        stream = io.StringIO()
        logs.configure("a", stream=stream, level=level)
        try:
            raise KeyError("k")
        except KeyError as error:
            logs.get_log("t").error("bad", error=error)
        found = lines(stream)
        assert "error=\"KeyError: 'k'\"" in found[0]
        assert (len(found) == 1) is (most == 1)


@pytest.mark.parametrize("style", ["human", "json"])
def test_no_password_comes_out(style):
    stream = io.StringIO()
    logs.configure("a", style=style, stream=stream)
    logs.get_log("t").warning("unreachable", url="redis://:s3cret@h:1/0", error="to rediss://u:s3cret@h failed")
    logging.getLogger("redis").warning("no answer from %s", "redis://u:s3cret@h")
    assert len(lines(stream)) == 2
    assert "s3cret" not in stream.getvalue()
    assert "redis://***@h:1/0" in stream.getvalue()


def test_configured_twice_says_it_once_and_a_librarys_chatter_is_left_out():
    stream = io.StringIO()
    logs.configure("a", stream=stream)
    logs.configure("b", stream=stream)
    logging.getLogger("httpx").info("HTTP Request: POST")
    logging.getLogger("redis").info("said %d", 3)
    assert [line.split(" ", 2)[2] for line in lines(stream)] == ['b redis message="said 3"']


def test_levels_below_cost_nothing_and_say_nothing():
    stream = io.StringIO()
    logs.configure("a", stream=stream, level="warning")

    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted for nothing")

    logs.get_log("t").info("quiet", value=Costly())
    assert stream.getvalue() == ""
