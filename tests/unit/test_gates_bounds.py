"""Gate 1 under hostile input: linear, bounded, never an exception of another kind; and all gates are cheap."""

from __future__ import annotations

import json
import time
import timeit
import tracemalloc

import pytest

from protocol.errors import GateRefused
from protocol.gates import pass_gates, repair
from protocol.gates.strict import MAX_DEPTH
from tests.unit.gate_cases import attempt

SIZE = 400_000
LIMIT_S = 2.0
"""CPU seconds, for 5 million characters too: most kinds cost less with each step that is refused earlier."""

HOSTILE = {
    "unclosed string with commas": ('{"detail":{"result":"', "alpha, beta: gamma, ", ""),
    "braces": ("", "{", ""),
    "brackets": ("", "[", ""),
    "closing braces": ("", "}", ""),
    "quotes": ("", '"', ""),
    "quotes in an object": ('{"a":"', '"', ""),
    "backslashes": ("", "\\", ""),
    "backslashes in a string": ('{"a":"', "\\", ""),
    "think": ("", "<think>", ""),
    "think pairs": ("", "<think>x</think>", ""),
    "think ends": ("", "</think>", ""),
    "fences": ("", "```json\n", ""),
    "fences in an object": ("{", "```json\n", ""),
    "alternating quotes": ('{"a":', "\"'", ""),
    "alternating typographic quotes": ("{“a”:“", "”“", ""),
    "quote, comma": ('{"a":"', '", ', ""),
    "quote, comma, line": ('{"a":"', '",\n', ""),
    "quote, comment": ('{"a":"', '"//', ""),
    "comments": ("{", "//\n", ""),
    "block comments": ('{"a":"x"', "/**/", ""),
    "commas": ('{"a":1', ",", ""),
    "wide commas": ('{"a":1', "，", ""),
    "colons": ('{"a"', ":", ""),
    "colours": ("{", "\x1b[", ""),
    "prose braces": ("", "{a}", ""),
    "prose brackets": ("", "[ [x", ""),
    "prose tags": ("", "<a href='x'>", ""),
    "angle brackets": ("", "<|", ""),
    "objects": ("", '{"a":1}', ""),
    "objects cut off": ("[", '{"a":1},', ""),
    "objects of Python": ("[", "{'a': 'b', 'c': None},", "]"),
    "nested objects": ("[", '{"a":{"b":{"c":[1]}}},', "],"),
    "bare keys": ("{", "a:1,", "}"),
    "lists closed wrongly": ("[", '{"a":1],', "]"),
    "keys in lists": ('{"a":[', '1,"b":[', ""),
    "closing braces, then more": ('{"a":1', "}", ',"b":2}'),
    "deep and slow": ('{"a":' * 190 + "[", "'x' ,\n# c\n", "]"),
    "deep keys": ('{"a":' * 190 + "{", "'x':/**/1,", "}"),
    "triple quotes": ('{"a":', '"""', ""),
    "an endless integer": ('{"a":', "1", ",}"),
    "an endless fraction": ('{"a":0.', "1", "}"),
    "the same key": ("{", '"a":1,', "}"),
    "a string of strings": ('"', '{\\"a\\":1}', '"'),
    "line breaks": ('{"a":"', "\n", '"}'),
    "unknown escapes": ('{"a":"', "\\d", '"}'),
}


def hostile(name: str, size: int = SIZE) -> str:
    head, piece, tail = HOSTILE[name]
    return head + piece * (size // len(piece)) + tail


def spend(text: str) -> float:
    started = time.process_time()
    got = attempt(lambda: repair(text))
    spent_s = time.process_time() - started
    assert isinstance(got, tuple) or len(str(got)) < 500
    return spent_s


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_costs_little(name: str) -> None:
    assert spend(hostile(name)) < LIMIT_S


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["unclosed string with commas", "quotes in an object", "deep keys", "objects of Python"]
)
def test_five_megabytes_in_two_seconds(name: str) -> None:
    assert spend(hostile(name, 5_000_000)) < LIMIT_S


@pytest.mark.parametrize("opening", ["[", "{", '{"a":', "[{", "｛", "[ ", '{"a":['])
def test_100_000_open_brackets_are_refused_at_once(opening: str) -> None:
    text = opening * 100_000
    started = time.process_time()
    with pytest.raises(GateRefused) as caught:
        repair(text)
    assert time.process_time() - started < 0.1
    assert caught.value.kind in ("too_deep", "damaged", "no_json")


@pytest.mark.parametrize("mend", ["", ","])
def test_the_depth_that_is_let_through(mend: str) -> None:
    deep = "[" * MAX_DEPTH + "1" + mend + "]" * MAX_DEPTH
    assert repair(deep)[0] == json.loads(deep.replace(",", ""))
    with pytest.raises(GateRefused, match="deeper"):
        repair(f"[{deep}]")


@pytest.mark.parametrize(
    "name", ["unclosed string with commas", "quotes in an object", "line breaks", "objects cut off"]
)
def test_memory_is_bounded(name: str) -> None:
    text = hostile(name, 2_000_000)
    tracemalloc.start()
    try:
        spend(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(text.encode()) + 50_000_000


def test_all_four_gates_on_a_clean_record_take_under_50_us() -> None:
    record = {
        "id": "TASK_001",
        "who": "master_docs_01",
        "time": 1719600000,
        "event": "task_completed",
        "what": "汇总完成",
        "detail": {"result": "三条结论：请求超时，重试两次后成功。", "attempt": 1, "tokens": {"in": 120, "out": 45}},
        "trace": {"parent_id": "TASK_000", "session_id": "conv_20251130_211200_001"},
    }
    text = json.dumps(record, ensure_ascii=False)
    assert 250 < len(text.encode()) < 350

    def once() -> None:
        pass_gates(text, now=1, session="s", new_id=str)

    best_s = min(timeit.repeat(once, timer=time.process_time, number=500, repeat=5)) / 500
    assert best_s < 50e-6
