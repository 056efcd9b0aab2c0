"""Reading answers: pieces of bytes, of characters, of tool calls; odd spellings; what is broken off."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError, ModelError
from protocol.kit.modellist import ModelEntry
from protocol.record import Json
from workers.compat import Calls, arguments_of, mended, text_of, without_thinking
from workers.model import choose_model, retry_after
from workers.stream import Assembly, EventLines, Reply, Usage


def read(*chunks: Json, done: bool = True) -> Reply:
    assembly = Assembly()
    for chunk in chunks:
        assembly.event(json.dumps(chunk))
    if done:
        assembly.event("[DONE]")
    return assembly.reply()


def delta(finish: str | None = None, **fields: Json) -> Json:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(name: str | None = None, arguments: Json = "", **more: Json) -> Json:
    function: dict[str, Json] = {"arguments": arguments} | ({"name": name} if name else {})
    return {"function": function, **more}


def args(reply: Reply) -> list[tuple[str, Json]]:
    return [(each.name, dict(each.args)) for each in reply.tool_calls]


@given(
    st.lists(st.sampled_from(["a", "修", "🚀", "\u2028", " "]), max_size=8),
    st.lists(st.integers(1, 9), max_size=40),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_no_split_of_the_bytes_changes_an_event(parts: list[str], sizes: list[int], end: str) -> None:
    text = "字" + "".join(parts)
    raw = f"event: x{end}data: {text}{end}{end}: comment{end}data:{text}{end}{end}data: [DONE]{end}{end}".encode()
    lines, at, events = EventLines(), 0, []
    for size in [*sizes, len(raw)]:
        events += lines.feed(raw[at : at + size])
        at += size
    assert [*events, *lines.end()] == [text, text, "[DONE]"]


def test_events_without_blank_lines_between_them() -> None:
    lines = EventLines()
    assert lines.feed(b'data: {"a":1}\ndata: {"b":2}\ndata: [DONE]\n\n') == ['{"a":1}', '{"b":2}', "[DONE]"]


def test_the_last_event_may_lack_its_blank_line() -> None:
    lines = EventLines()
    assert lines.feed(b'data: {"a":1}') == []
    assert lines.end() == ['{"a":1}']


def test_halves_of_a_character_in_two_pieces_are_put_together() -> None:
    assembly = Assembly()
    for half in ("\\ud83d", "\\ude80"):
        assembly.event('{"choices":[{"index":0,"delta":{"content":"' + half + '"}}]}')
    assembly.event('{"choices":[{"index":0,"delta":{"content":"\\ud83d"},"finish_reason":"stop"}]}')
    assert assembly.reply().content == "🚀\ufffd"


def test_repeated_ids_and_names_on_every_piece_are_one_call() -> None:
    reply = read(
        delta(tool_calls=[call("look", '{"a"', id="c1", index=0)]),
        delta(tool_calls=[call("look", ": 1}", id="c1", index=0)]),
    )
    assert args(reply) == [("look", {"a": 1})]


def test_every_call_numbered_zero_is_told_apart_by_id_and_name() -> None:
    reply = read(
        delta(tool_calls=[call("look", '{"a": 1}', id="c1", index=0)]),
        delta(tool_calls=[call("pay", '{"b": 2}', id="c2", index=0)]),
    )
    assert args(reply) == [("look", {"a": 1}), ("pay", {"b": 2})]


def test_whole_calls_without_index_and_id_are_not_glued() -> None:
    reply = read(delta(tool_calls=[call("look", {"a": 1})]), delta(tool_calls=[call("look", {"a": 2})]))
    assert args(reply) == [("look", {"a": 1}), ("look", {"a": 2})]
    assert len({each.id for each in reply.tool_calls}) == 2


def test_the_same_id_twice_in_a_stream_is_two_calls_when_the_first_is_whole() -> None:
    reply = read(
        delta(tool_calls=[call("look", '{"a": 1}', id="x")]), delta(tool_calls=[call("pay", '{"b": 2}', id="x")])
    )
    assert args(reply) == [("look", {"a": 1}), ("pay", {"b": 2})]
    assert [each.id for each in reply.tool_calls] == ["x", "x_2"]


def test_a_made_up_id_is_never_one_that_was_given() -> None:
    made = Calls()
    made.add(call("a", "{}"), whole=True)
    made.add(call("b", "{}", id="call_1"), whole=True)
    ids = [each.id for each in made.done()]
    assert ids[1] == "call_1", "given ids are kept"
    assert len(set(ids)) == 2


def test_the_older_function_call_is_a_tool_call() -> None:
    first, second = {"name": "look", "arguments": '{"a":'}, {"arguments": "1}"}
    assert args(read(delta(function_call=first), delta(function_call=second))) == [("look", {"a": 1})]


@pytest.mark.parametrize("raw", ["", "  ", None, "null", "{}", {}])
def test_no_arguments_are_an_empty_object(raw: Json) -> None:
    assert arguments_of(raw) == ({}, "")


def test_arguments_written_as_json_twice() -> None:
    assert arguments_of(json.dumps('{"文": 1}')) == ({"文": 1}, "")


@pytest.mark.parametrize(
    "raw", ['{"a": 1', "[1]", "3", '"text"', '{"a": NaN}', '{"a": Infinity}', "{'a': 1}", [1], True]
)
def test_broken_arguments_are_an_error_and_never_mended_by_guess(raw: Json) -> None:
    value, why = arguments_of(raw)
    assert value == {}
    assert why


def test_a_call_without_a_name_is_not_run() -> None:
    assert read(delta(tool_calls=[call(None, "{}")])).tool_calls[0].error


@given(st.text())
def test_mended_text_can_always_be_stored(text: str) -> None:
    assert mended(text) == text
    mended(text + "\ud83d").encode()


def test_reasoning_stays_apart_in_each_of_its_forms() -> None:
    for field in ("reasoning_content", "reasoning", "thinking"):
        reply = read(delta(**{field: "先想"}), delta("stop", content="结论"))
        assert (reply.content, reply.reasoning) == ("结论", "先想")
    reply = read(delta("stop", content="<think>\n先想 {草稿}\n</think>\n\n结论 <think>不是</think>"))
    assert (reply.content, reply.reasoning) == ("结论 <think>不是</think>", "先想 {草稿}")


def test_an_open_think_tag_is_content() -> None:
    assert without_thinking("<think>没完") == ("<think>没完", "")


@pytest.mark.parametrize("reason", ["stop", "eos", "whatever", 7, "tool_calls"])
def test_any_finish_reason_is_tolerated(reason: Json) -> None:
    reply = read({"choices": [{"index": 0, "delta": {"content": "好"}, "finish_reason": reason}]})
    assert reply.content == "好"
    assert reply.finish in ("stop", "unknown", "tool_calls")


def test_a_finish_reason_is_enough_without_the_end_mark() -> None:
    assert read(delta("stop", content="好"), done=False).content == "好"


def test_neither_of_both_is_broken_off() -> None:
    with pytest.raises(ModelError) as caught:
        read(delta(content="半"), done=False)
    assert caught.value.retryable


def test_a_last_whole_message_after_pieces_is_no_second_answer() -> None:
    whole = {"choices": [{"index": 0, "message": {"content": "好的"}, "finish_reason": "stop"}]}
    assert read(delta(content="好"), delta(content="的"), whole).content == "好的"


def test_an_empty_event_that_keeps_the_line_alive_is_passed_over() -> None:
    assembly = Assembly()
    for event in ("", " ", json.dumps(delta("stop", content="好"))):
        assembly.event(event)
    assert assembly.reply().content == "好"


def test_other_choices_are_left_out() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "乙"}}]}
    assert read(delta(content="甲"), other, delta("stop")).content == "甲"


@pytest.mark.parametrize(
    "chunk", [[], 3, "x", {"choices": None}, {"choices": [None, 3]}, {"choices": [{"delta": None}]}]
)
def test_odd_chunks_are_passed_over(chunk: Json) -> None:
    assert read(chunk, delta("stop", content="好")).content == "好"


def test_content_in_blocks() -> None:
    assert text_of([{"type": "text", "text": "一"}, "二", {"type": "image"}, None, 3]) == "一二"


def test_usage_in_all_its_parts() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 4}, "prompt_tokens_details": {"cached_tokens": 2}}
    usage = Usage.of({"prompt_tokens": 10, "completion_tokens": 5, **details})
    assert usage == Usage(10, 5, 15, 4, 2, 1)
    assert Usage.of(None) == Usage(calls=1, unknown=1)
    assert Usage.of({"prompt_tokens": "x", "completion_tokens": -3, "total_tokens": True}) == Usage(calls=1)
    assert (usage + Usage.of(None)).to_json()["calls_without_usage"] == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "20", "retry-after": "7"}, 0.02),
        ({}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, 60.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, 0.0) == seconds


def test_the_choice_of_a_model() -> None:
    models = [ModelEntry("快"), ModelEntry("slow")]
    assert choose_model(models) == (models[0], None)
    assert choose_model(models, "slow") == (models[1], None)
    entry, warning = choose_model(models, "慢")
    assert entry is models[0]
    assert warning is not None
    assert "'慢'" in warning
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL"):
        choose_model([])
