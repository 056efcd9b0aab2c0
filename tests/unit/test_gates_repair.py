"""Gate 1, rule by rule: marks, quotes, brackets, literals, comments; what is mended and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.errors import GateRefused
from protocol.gates import repair
from tests.unit.gate_cases import same

MENDED: dict[str, tuple[str, Any]] = {
    # commas
    "trailing comma": ('{"a": "x",}', {"a": "x"}),
    "trailing commas everywhere": ('{"a":[{"b":[{"c":1,},],},],}', {"a": [{"b": [{"c": 1}]}]}),
    "double comma": ('{"a": 1, "b": {"c": 2},,}', {"a": 1, "b": {"c": 2}}),
    "missing commas": ('{"a": {"x":1} "b": [1] "c": 3}', {"a": {"x": 1}, "b": [1], "c": 3}),
    "missing commas on lines": ('{"甲": ["一"\n"二"\n"三"]\n"乙": 2}', {"甲": ["一", "二", "三"], "乙": 2}),
    "missing commas between objects": ('[{"a":1} {"a":2}]', [{"a": 1}, {"a": 2}]),
    "a comma in a string": ('{"a": ",}", "b": "x,]",}', {"a": ",}", "b": "x,]"}),
    # typographic and full-width marks
    "full-width everything": ("｛＂a＂：１２，＂b＂：［ｔｒｕｅ］｝", {"a": 12, "b": [True]}),
    "lenticular brackets": ("{“a”：“x，y：z【1】”，“b”：【1，2】}", {"a": "x，y：z【1】", "b": [1, 2]}),
    "enumeration comma": ('{"b": [“甲”、“乙”]}', {"b": ["甲", "乙"]}),
    "semicolon": ('{"a": 1; "b": 2}', {"a": 1, "b": 2}),
    "marks in strings stay": ('{"a": "全角：，、；｛｝［］“”‘’１２", }', {"a": "全角：，、；｛｝［］“”‘’１２"}),
    "curly pairs in ASCII stay": ('{"a": "“甲”，“乙”", "b": "‘c’",}', {"a": "“甲”，“乙”", "b": "‘c’"}),
    "curly in curly": ("{“a”:“他说“好”，走”,“n”:1}", {"a": "他说“好”，走", "n": 1}),
    "curly list in curly": ("{“a”:“选“甲”、“乙”两项”,“n”:1}", {"a": "选“甲”、“乙”两项", "n": 1}),
    "ASCII in curly": ('{“a”:“run "x", "y" now”,“n”:1}', {"a": 'run "x", "y" now', "n": 1}),
    "opened ASCII, closed curly": ('{"id":"A1”,"n":1}', {"id": "A1", "n": 1}),
    "opened curly, closed ASCII": ('{“id": "A1", "n": 1}', {"id": "A1", "n": 1}),
    "mixed key": ('{"id”: “A1", "n": 1}', {"id": "A1", "n": 1}),
    "corner brackets as quotes": ("{「甲」：「乙「丙」丁」}", {"甲": "乙「丙」丁"}),
    # quotes inside strings
    "inner quotes": ('{"a": "he said "hi" to me", "c": 1}', {"a": 'he said "hi" to me', "c": 1}),
    "inner quotes at the end": ('{"b": "说"好"", "c": 1}', {"b": '说"好"', "c": 1}),
    "inner quotes and commas": ('{"a": "选择 "A", "B" 或 "C"", "n": 1}', {"a": '选择 "A", "B" 或 "C"', "n": 1}),
    "inner quotes in a list": ('["he said "no", and left", "b"]', ['he said "no", and left', "b"]),
    "inches": ('{"size": "32" x 20"", "n": 1}', {"size": '32" x 20"', "n": 1}),
    "apostrophe": ("{'a': 'it's fine', 'b': 1}", {"a": "it's fine", "b": 1}),
    "empty strings": ('{"a": \'\', "b": [“”], "c": "",}', {"a": "", "b": [""], "c": ""}),
    # Python and JavaScript
    "repr": ("{'a': 'it\\'s', 'b': \"it's\", 'c': [None, True]}", {"a": "it's", "b": "it's", "c": [None, True]}),
    "repr escapes": (r"{'a': '\x41\u00e9\U0001f600\\d'}", {"a": "Aé😀\\d"}),
    "words in strings": ("{'a': 'None of True', 'b': None}", {"a": "None of True", "b": None}),
    "number keys": ('{1: "a", 2: "b"}', {"1": "a", "2": "b"}),
    "u strings": ("{'a': u'b'}", {"a": "b"}),
    "bare keys": ('{a: 1, b_c: [1], 姓名: "甲"}', {"a": 1, "b_c": [1], "姓名": "甲"}),
    "numbers": ('{"a": +1, "b": .5, "c": 1., "d": -1e3,}', {"a": 1, "b": 0.5, "c": 1.0, "d": -1000.0}),
    "triple quotes": ('{"code": """\nprint("x")\n""", "n": 1}', {"code": '\nprint("x")\n', "n": 1}),
    "patterns and paths": (r'{"re": "\d+\.\w", "p": "C:\Users\x",}', {"re": r"\d+\.\w", "p": r"C:\Users\x"}),
    "surrogate pair": (r'{"a": "\ud83d\ude00",}', {"a": "😀"}),
    "surrogate pair, single quotes": (r"{'a': '\ud83d\ude00'}", {"a": "😀"}),
    # comments
    "line comment": ('{"url": "http://x/y", // 注\n}', {"url": "http://x/y"}),
    "hash comment": ('{"url": \'http://x/y#z\', # 注 "q"\n}', {"url": "http://x/y#z"}),
    "block comments": ('{"a": 1 /* c */, /* {"x":1} */ "b": 2}', {"a": 1, "b": 2}),
    "comments between": ('{"a":1,\n\n// x, "y": 2\n// }\n"b":2}', {"a": 1, "b": 2}),
    "comment before": ('// header\n{"a": 1}', {"a": 1}),
    # strings
    "line breaks": ('{"a": "一\n二", "b": "tab\there"}', {"a": "一\n二", "b": "tab\there"}),
    "code in a string": ('{"a": "if x {\n  y: [1,\n}\n", "n": 1}', {"a": "if x {\n  y: [1,\n}\n", "n": 1}),
    "tags in a string": ('{"a": "<think> {\\"x\\":1} </think> ```json",}', {"a": '<think> {"x":1} </think> ```json'}),
    # brackets
    "list closed by a brace": ('{"a": [1, 2}, "b": 3}', {"a": [1, 2], "b": 3}),
    "object closed by a bracket": ('{"a":[{"x":1},{"y":2],"n":3}', {"a": [{"x": 1}, {"y": 2}], "n": 3}),
    "missing ] before a key": ('{"a": [1, 2, "b": 3}', {"a": [1, 2], "b": 3}),
    "missing ] and comma": ('{"a": ["x" "b": 3}', {"a": ["x"], "b": 3}),
    "missing ] before }": ('{"a":{"list":[1,2},"n":3}', {"a": {"list": [1, 2]}, "n": 3}),
    "missing } between items": ('[{"a":1,{"a":2}]', [{"a": 1}, {"a": 2}]),
    "wrong last bracket": ('{"a": 1]', {"a": 1}),
    "one ] too many": ('{"a": [1, 2]]}', {"a": [1, 2]}),
    "one } too many inside": (
        '{"id":"T1","detail":{"a":1}},"trace":{"p":null}}',
        {"id": "T1", "detail": {"a": 1}, "trace": {"p": None}},
    ),
    "many } too many": ('{"a":{"b":1}}}},"c":2}', {"a": {"b": 1}, "c": 2}),
    "] after the end": ('{"a":1}]', {"a": 1}),
    "doubled braces": ('{{"a":1}}', {"a": 1}),
    # what is nothing outside strings
    "byte order marks and NUL": ('\ufeff\ufeff {"a":1}\x00\x00', {"a": 1}),
    "wide spaces": ('{\u3000"a"\u00a0:\u200b1\u2028}', {"a": 1}),
    "colours": (
        '\x1b[1;39m{\n  \x1b[0m\x1b[34;1m"a"\x1b[0m\x1b[1;39m:\x1b[0m 1\x1b[1;39m}\x1b[0m',
        {"a": 1},
    ),
    # peeled
    "string in a fence": ('```json\n"{\\"a\\":1}"\n```', {"a": 1}),
    "escaped through and through": ('{\\"a\\": {\\"b\\": 1}}', {"a": {"b": 1}}),
    "in quotes": ('"{"a": 1}"', {"a": 1}),
    "peeled and mended": ('"{\\"a\\":1,}"', {"a": 1}),
}

REFUSED: dict[str, tuple[str, str]] = {
    # cut off
    **{
        f"cut: {text}": (text, "truncated")
        for text in (
            "{",
            '{"a"',
            '{"a":',
            '{"a": ',
            '{"a": 1',
            '{"a": 1,',
            '{"a": tru',
            '{"a": "x',
            '{"a": "x"',
            '{"a": "x\\',
            "[1, 2",
            '[{"a":1}',
            '{"a": [1, 2',
            '{"a": {"b": 1}',
            '{"a":1}\n{"b":',
            '{"a": 1 /* x }',
            "{'甲': '乙",
            '结果：{"a": {"b": "c"}, "d"',
        )
    },
    "cut in a fence": ('```json\n{"a": 1,\n```', "damaged"),
    "elided member": ('{"a": "x", ...}', "truncated"),
    "elided item": ('{"a": [1, 2, ...]}', "damaged"),
    "elided value": ('{"a": …}', "damaged"),
    # numbers
    **{
        f"number: {text}": (f'{{"a": {text}}}', "non_finite")
        for text in ("NaN", "-Infinity", "nan", "inf", "+Infinity")
    },
    **{
        f"digits: {text}": (f'{{"a": {text}}}', "loses_digits")
        for text in (
            "1e999",
            "-1e999",
            "0.1234567890123456789",
            "1e-400",
            "9007199254740993.0",
        )
    },
    "an endless integer": ('{"a": ' + "1" * 5000 + "}", "loses_digits"),
    "digits on the mended path": ('{"a": 0.1234567890123456789,}', "loses_digits"),
    "leading zeros": ('{"a": 007}', "damaged"),
    "hexadecimal": ('{"a": 0x1F}', "damaged"),
    # values that nobody wrote
    "no value": ('{"a": , "b": 1}', "damaged"),
    "no value at the end": ('{"a": }', "damaged"),
    "undefined": ('{"a": undefined}', "damaged"),
    "a word": ('{"a": ok}', "damaged"),
    "nothing between commas": ("[1,,2]", "damaged"),
    # where a string ends is in doubt
    "brace in an inner quote": ('{"t": "use "}" here", "n":1}', "ambiguous"),
    "brace after an inner quote": ('{"t": "use "} here", "n":1}', "damaged"),
    "missing colon": ('{"a": "x" "b" 2, "c": "y"}', "ambiguous"),
    "missing closing quote": ('{"a": "x,\n "b": "y"}', "ambiguous"),
    "an object unescaped in a string": ('{"detail": "{"a": 1}", "n": 1}', "ambiguous"),
    "an odd quote in a list": ('["a "x", "y" b", "c"]', "ambiguous"),
    "an item after an object without end": ('[{"a": "b", ""]', "ambiguous"),
    # where a bracket belongs is in doubt
    "missing ] in nested lists": ('{"a":[[1],[2,3],"n":3}', "damaged"),
    "doubled and closed": ('{{"a":1},"b":2}', "damaged"),
    "not storable": (r'{"a": "\ud800"}', "not_storable"),
    "not storable, mended": (r'{"a": "\ud800",}', "not_storable"),
}


@pytest.mark.parametrize("name", MENDED)
def test_mended(name: str) -> None:
    text, want = MENDED[name]
    value, notes = repair(text)
    assert same(value, want)
    assert notes, "what was mended is told"


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    text, kind = REFUSED[name]
    with pytest.raises(GateRefused) as caught:
        repair(text)
    assert caught.value.kind == kind
    assert caught.value.reason == "gate_1"
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text",
    ['{"a": 1}', " [1, 2.5, -0, 1e5]\n", '"done"', "null", "true", '{"a": {"b": ["“x”：，", "// c", "<think>"]}}'],
)
def test_json_is_passed_on(text: str) -> None:
    value, notes = repair(text)
    assert same(value, json.loads(text))
    assert notes == []


@pytest.mark.parametrize("text", ['"see {\\"a\\":1}"', '"[1]"', '"{占位符}"', '"{}} x {"'])
def test_a_string_that_merely_holds_json_stays_a_string(text: str) -> None:
    assert repair(text) == (json.loads(text), [])


def test_one_layer_is_peeled_and_no_more() -> None:
    twice = json.dumps(json.dumps({"a": 1}))
    assert repair(json.dumps({"a": json.dumps({"b": 1})}))[0] == {"a": '{"b": 1}'}
    assert repair(twice)[0] == {"a": 1}
    assert repair(json.dumps(twice))[0] == twice


@pytest.mark.parametrize("text", ['{"a": 1, "b": 0, "a": 2}', '{"a": 1, "b": 0, "a": 2,}', '{"a" : 1, "b":0, "a" : 2}'])
def test_the_last_of_two_keys_wins_with_a_note(text: str) -> None:
    value, notes = repair(text)
    assert value == {"a": 2, "b": 0}
    assert any("'a'" in note and "last" in note for note in notes)


def test_integers_stay_exact() -> None:
    text = '{"a": 9007199254740993, "b": 18446744073709551616, "c": -9223372036854775809, "d": 1.0}'
    assert same(repair(text)[0], json.loads(text))


def test_the_path_of_what_was_mended_is_told() -> None:
    assert any("detail.items[].ok" in note for note in repair('{"detail": {"items": [{"ok": TRUE}]}}')[1])


def test_the_path_of_what_is_refused_is_told() -> None:
    with pytest.raises(GateRefused) as caught:
        repair('{"id": "T1", "detail": {"进度": NaN}}')
    assert caught.value.path == "detail.进度"
    with pytest.raises(GateRefused) as caught:
        repair('{"id": "T1", "detail": {"items": [0, 1e999]}}')
    assert caught.value.path == "detail.items[1]"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_bytes_are_decoded(encoding: str) -> None:
    assert repair('{"名": "甲", "n": [1,]}'.encode(encoding))[0] == {"名": "甲", "n": [1]}


def test_bytes_that_are_no_utf8_are_refused_with_their_place() -> None:
    with pytest.raises(GateRefused, match="byte 6") as caught:
        repair(b'{"a":"' + "甲".encode("gbk") + b'"}')
    assert caught.value.kind == "not_utf8"
