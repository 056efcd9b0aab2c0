"""Gate 1, the front part: reasoning, prose, several values; what is never taken."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import GateRefused
from protocol.gates import object_from_text, repair
from tests.unit.gate_cases import same

TAKEN: dict[str, tuple[str, Any]] = {
    # reasoning
    "draft in think": ('<think>草稿 {"a":1}</think>{"a":2}', {"a": 2}),
    "upper case": ('<THINK>{"a":1}</THINK>{"a":2}', {"a": 2}),
    "attributes": ('<thinking budget="3">{"a":1}</thinking>{"a":2}', {"a": 2}),
    "reasoning and fence": ('<reasoning>\n{"a":1}\n</reasoning>\n```json\n{"a":2}\n```', {"a": 2}),
    "nested": ('<think>a<think>b {"a":1}</think> c {"a":9}</think>{"a":2}', {"a": 2}),
    "opened in the prompt": ('先想一想 {"a":1}\n</think>\n{"a":2}', {"a": 2}),
    "opened in the prompt, draft elided": ('先想 {"a": ...}\n</think>\n\n{"a":2}', {"a": 2}),
    "opened in the prompt, one line": ('先想 {"a":1}</think>{"a":2}', {"a": 2}),
    "square tags": ('[THINK]{"a":1}[/THINK]{"a":2}', {"a": 2}),
    "triangle tags": ('◁think▷{"a":1}◁/think▷{"a":2}', {"a": 2}),
    "thought tokens": ('<|begin_of_thought|>{"a":1}<|end_of_thought|>{"a":2}', {"a": 2}),
    "channels": (
        '<|channel|>analysis<|message|>{"a":1}<|end|><|start|>assistant<|channel|>final<|message|>{"a":2}',
        {"a": 2},
    ),
    "after the answer": ('{"a":1}<think>哦 {"b":2}</think>', {"a": 1}),
    "a tag in prose that is none": ('用 <b>粗体</b> 与 <|sep|>：{"a":1}', {"a": 1}),
    # wrappers and fences
    "answer tag": ('<answer>{"a":1}</answer>', {"a": 1}),
    "tildes": ('~~~json\n{"a":1}\n~~~', {"a": 1}),
    "list in a fence": ('结果：\n```\n[{"a":1},{"a":2},]\n```', [{"a": 1}, {"a": 2}]),
    "numbers in a fence": ("如下：\n```json\n[1,2,]\n```", [1, 2]),
    "empty in a fence": ("如下：\n```json\n{}\n```", {}),
    # prose
    "placeholder in prose": ('请把 {占位符} 换成真实名称。\n{"a":1}\n备注：{另一个}', {"a": 1}),
    "quoted placeholder": ('请填 {“名称”}：{"a":1}', {"a": 1}),
    "template": ('模板 {{name}} 用法\n{"a":1}', {"a": 1}),
    "code in prose": ('function f(x) { return x; }\n{"a":1}', {"a": 1}),
    "empty braces in prose": ('use {} and [] with {"a":1}', {"a": 1}),
    "footnotes": ('见 [1] 与 [2, 3]。{"a":1}', {"a": 1}),
    "task list": ('- [ ] 待办\n- [x] 完成\n{"a":1}\n- [x] 又一个', {"a": 1}),
    "log line": ('[2025-11-30 12:00:00] INFO [worker-1] {"a":1}', {"a": 1}),
    "link": ('见 [文档](http://x/y)：{"a":1}', {"a": 1}),
    "assignment": ('data = {"a":1};', {"a": 1}),
    "call": ('callback({"a":1});', {"a": 1}),
    "prose after": ('{"a":1}，说明：以上。', {"a": 1}),
    "quoted by a shell": ("echo '{\"a\": 1}'", {"a": 1}),
    "quoted in a sentence": ('输出："{"a":1}"。', {"a": 1}),
    "numbers alone": ("[1, 2, 3,]", [1, 2, 3]),
}

REFUSED: dict[str, tuple[str, str]] = {
    "prose": ("抱歉，我做不到。", "no_json"),
    "nothing": ("\ufeff \x00\n", "no_json"),
    "braces of prose": ("使用 {} 作为占位符", "no_json"),
    "footnote of prose": ("见 [1]。", "no_json"),
    "python words": ("None", "no_json"),
    "think without end": ('<think>草稿 {"a":1}', "truncated"),
    "think without end after the answer": ('{"a":1}<think>不对 {"b":2}', "truncated"),
    "nothing after think": ('<think>草稿 {"a":1}</think>', "no_json"),
    "draft, then prose": ('{"a":1}</think>完', "no_json"),
    "inner object of a damaged one": ('{"outer": bro ken, "inner": {"a": 1}}', "damaged"),
    "inner object before the damage": ('{"outer": {"a": 1}, "broken: }', "truncated"),
    "object in braces of prose": ('{占位 {"a":1}}', "damaged"),
    "object in braces that never close": ('{占位 {"a":1}', "damaged"),
    "object in a damaged list": ('[{"a":1}, 甲]', "damaged"),
    "head cut off": ('"id": "T1", "detail": {"a": 1}}', "damaged"),
    "head cut off, no brace": ('"id": "T1", "detail": {"a": 1}', "damaged"),
    "a fence in a damaged string": ('{"what": x "```json\n{"a":1}\n```"}', "damaged"),
    "several": ('{"a":1}\n{"b":2}', "several"),
    "several alike": ('{"a":1} {"a":1}', "several"),
    "several fences": ('```json\n{"a":1}\n```\n或\n```json\n{"a":2}\n```', "several"),
    "several calls": ('<tool_call>{"a":1}</tool_call>\n<tool_call>{"a":2}</tool_call>', "several"),
    "object and list": ('{"a":1}\n["b"]', "several"),
    "items after a list": ('["a"], "b"', "ambiguous"),
    "second damaged": ('{"a":"b"} 和 {"x": 1', "truncated"),
    "bracket after the end": ('结果为：{"a":1}。谢谢}', "damaged"),
    "hash comment over the object": ('# {"x": 2}\n{"a": 1}', "several"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    text, want = TAKEN[name]
    value, notes = repair(text)
    assert same(value, want)
    assert notes


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    text, kind = REFUSED[name]
    with pytest.raises(GateRefused) as caught:
        repair(text)
    assert caught.value.kind == kind
    assert caught.value.gate == 1


# -- the object with the required keys -------------------------------------------------------------------------------

SEVERAL = '先试 {"思路": 1}。\n```json\n{"result": "好", "n": 1,}\n```\n附 ["x"] 与 {}'


def test_the_object_with_the_required_keys_is_taken() -> None:
    value, notes = object_from_text(SEVERAL, required=("result",))
    assert value == {"result": "好", "n": 1}
    assert any("dropped" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "required", "kind"),
    [
        (SEVERAL, (), "several"),
        (SEVERAL, ("verdict",), "no_json"),
        ('{"result": 1} {"result": 2}', ("result",), "several"),
        ('{"result": 1}', ("result", "verdict"), "no_json"),
        ('[{"result": 1}]', ("result",), "no_json"),
        ('"result"', ("result",), "no_json"),
        ('<think>{"result": 1}</think>', ("result",), "no_json"),
        ('{"result": {"result": 1}, "x": }', ("result",), "damaged"),
        ("好的", ("result",), "no_json"),
    ],
)
def test_not_exactly_one_object_is_refused(text: str, required: tuple[str, ...], kind: str) -> None:
    with pytest.raises(GateRefused) as caught:
        object_from_text(text, required=required)
    assert caught.value.kind == kind


def test_a_missing_key_is_named() -> None:
    with pytest.raises(GateRefused, match="'verdict'") as caught:
        object_from_text('{"result": 1}', required=("result", "verdict"))
    assert caught.value.path == "verdict"


@pytest.mark.parametrize("text", ['{"result": 1}', '{"result": 1', ""])
def test_an_answer_cut_off_is_refused_even_if_it_looks_whole(text: str) -> None:
    with pytest.raises(GateRefused, match="cut off") as caught:
        object_from_text(text, truncated=True)
    assert caught.value.kind == "truncated"


def test_one_object_needs_no_keys() -> None:
    assert object_from_text('好的：{"n": 1}') == ({"n": 1}, ["text round the value dropped"])
