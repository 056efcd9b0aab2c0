"""The model client against a real server: extras, errors, proxies, names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from protocol.errors import ModelError
from protocol.kit.modellist import ModelEntry
from protocol.record import Json
from tests.integration.endpoint import Answer, Endpoint, body, error, says, serving, stream
from workers.model import ModelClient
from workers.tools import Tool

HELLO = [{"role": "user", "content": "你好"}]
SCHEMA = {"type": "object", "properties": {"摘要": {"type": "string"}}}
FULL = {"thinking": {"enable_thinking": True}}


@asynccontextmanager
async def talking(*answers: Answer, **more: Json) -> AsyncIterator[tuple[Endpoint, ModelClient]]:
    """An endpoint and a client of it; ``more`` goes into its entry of the models list."""
    async with serving(*answers) as endpoint, aclosing(ModelClient(endpoint.entry(**more))) as client:
        yield endpoint, client


async def fault(*answers: Answer, **more: Json) -> ModelError:
    async with talking(*answers, **more) as (_, client):
        with pytest.raises(ModelError) as caught:
            await client.complete(HELLO)
    return caught.value


async def test_it_streams_with_tools_usage_and_the_model_name() -> None:
    deltas: list[tuple[str, str]] = []
    async with talking(says("结论"), api_key="k-1") as (endpoint, client):
        reply = await client.complete(
            HELLO, tools=[Tool("look", "looks")], on_delta=lambda kind, text: deltas.append((kind, text))
        )
    assert (reply.content, reply.finish, reply.model) == ("结论", "stop", "m-1")
    assert (reply.usage.prompt, reply.usage.completion, reply.usage.total) == (3, 2, 5)
    assert deltas == [("content", "结"), ("content", "论")]
    path, headers, sent = endpoint.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == "bearer k-1"
    assert sent["stream"] is True
    assert sent["tools"][0]["function"]["name"] == "look"
    assert sent["messages"] == HELLO


async def test_no_name_means_the_first_that_the_endpoint_lists_asked_once() -> None:
    listed = body({"object": "list", "data": [{"id": "甲-7b", "object": "model"}, {"id": "乙"}]})
    async with (
        serving(listed, says("a"), says("b")) as endpoint,
        aclosing(ModelClient(endpoint.entry(model=""))) as client,
    ):
        await client.complete(HELLO)
        await client.complete(HELLO)
    assert [path for path, _, _ in endpoint.requests] == ["/v1/models", "/v1/chat/completions", "/v1/chat/completions"]
    assert endpoint.requests[1][2]["model"] == "甲-7b"


def _extras(endpoint: Endpoint) -> list[set[str]]:
    known = {"enable_thinking", "response_format", "stream_options"}
    return [known & set(sent) for _, _, sent in endpoint.requests]


async def test_a_refused_thinking_body_is_left_out_once_and_for_all() -> None:
    async with (
        serving(error(400), says("a"), says("b")) as endpoint,
        aclosing(ModelClient(endpoint.entry(**FULL))) as client,
    ):
        first = await client.complete(HELLO, thinking=True, schema=SCHEMA)
        second = await client.complete(HELLO, thinking=True, schema=SCHEMA)
    assert [note.split(":")[0] for note in first.notes] == ["the endpoint refuses the thinking body"]
    assert second.notes == (), "said once"
    assert _extras(endpoint)[1:] == [{"response_format", "stream_options"}] * 2


async def test_a_refused_json_schema_is_found_and_thinking_stays() -> None:
    async with (
        serving(error(400), error(400), says("a")) as endpoint,
        aclosing(ModelClient(endpoint.entry(**FULL))) as client,
    ):
        reply = await client.complete(HELLO, thinking=True, schema=SCHEMA)
    assert "json_schema" in reply.notes[0]
    assert _extras(endpoint)[-1] == {"enable_thinking", "stream_options"}


async def test_an_endpoint_that_knows_no_extra_at_all() -> None:
    async with (
        serving(*[error(422)] * 4, says("a")) as endpoint,
        aclosing(ModelClient(endpoint.entry(**FULL))) as client,
    ):
        reply = await client.complete(HELLO, thinking=True, schema=SCHEMA)
    assert len(reply.notes) == 3
    assert _extras(endpoint)[-1] == set()


async def test_a_schema_that_is_no_object_is_left_to_the_gates() -> None:
    async with talking(says("[]")) as (endpoint, client):
        await client.complete(HELLO, schema={"type": "array"})
    assert _extras(endpoint) == [{"stream_options"}]


async def test_a_bad_request_stays_one_when_nothing_extra_is_to_blame() -> None:
    wrong = await fault(error(400, "没有这个模型"), error(400, "没有这个模型"))
    assert (wrong.kind, wrong.retryable) == ("bad_request", False)
    assert "没有这个模型" in str(wrong)
    assert "models.main" in wrong.mend


@pytest.mark.parametrize(
    ("answer", "kind", "retryable", "wait"),
    [
        (error(429, headers={"retry_after": "7"}), "rate_limited", True, 7.0),
        (error(429, headers={"retry_after_ms": "1500", "retry_after": "9"}), "rate_limited", True, 1.5),
        (error(429), "rate_limited", True, None),
        (error(503, headers={"retry_after": "3"}), "endpoint_error", True, 3.0),
        (error(500), "endpoint_error", True, None),
        (error(401), "endpoint_denied", False, None),
        (error(403), "endpoint_denied", False, None),
        (error(400, code="context_length_exceeded"), "context_overflow", False, None),
        (error(413), "context_overflow", False, None),
    ],
)
async def test_a_status_decides(answer: Answer, kind: str, retryable: bool, wait: float | None) -> None:
    wrong = await fault(answer)
    assert (wrong.kind, wrong.retryable, wrong.retry_after_s) == (kind, retryable, wait)


async def test_a_refused_key_names_its_variable() -> None:
    assert "MY_KEY" in str(await fault(error(401), api_key_env="MY_KEY"))


async def test_retry_after_may_be_a_date() -> None:
    limited = error(429, headers={"retry_after": "Mon, 30 Nov 2026 21:00:30 GMT"})
    async with (
        serving(limited) as endpoint,
        aclosing(ModelClient(endpoint.entry(), clock=lambda: 1_796_072_400.0)) as client,
    ):
        with pytest.raises(ModelError) as caught:
            await client.complete(HELLO)
    assert caught.value.retry_after_s == 30.0


async def test_a_stream_that_breaks_off_is_a_failure_that_may_pass() -> None:
    piece = {"choices": [{"index": 0, "delta": {"content": "半个"}}]}
    for answer in (stream(piece, done=False), stream(piece, done=False, hang_up=True)):
        wrong = await fault(answer)
        assert wrong.retryable
        assert wrong.kind == "stream_broken", "a fault that a turn waits out"


async def test_an_endpoint_that_hangs_up_without_a_word_is_asked_again_soon() -> None:
    wrong = await fault(Answer([], 0))
    assert (wrong.kind, wrong.retryable) == ("stream_broken", True)


async def test_the_length_of_an_answer_by_the_name_that_the_endpoint_knows() -> None:
    """``max_tokens``, else ``max_completion_tokens``, else none; found out once and said once."""
    refuses = [error(400)] * 2  # with everything; without stream_options
    async with talking(says("好"), *refuses, says("一"), says("二")) as (endpoint, client):
        await client.complete(HELLO, most=7)
        first = await client.complete(HELLO, most=8)
        await client.complete(HELLO, most=9)
    limits = [{k: v for k, v in body.items() if k.startswith("max_")} for _, _, body in endpoint.requests]
    assert limits == [
        {"max_tokens": 7}, {"max_tokens": 8}, {"max_tokens": 8}, {"max_completion_tokens": 8},
        {"max_completion_tokens": 9},
    ]  # fmt: skip
    assert len(first.notes) == 1
    async with talking(*[error(400)] * 3, says("三"), says("四")) as (endpoint, client):
        await client.complete(HELLO, most=7)
        await client.complete(HELLO, most=7)
    assert [sorted(k for k in body if k.startswith("max_")) for _, _, body in endpoint.requests] == [
        ["max_tokens"], ["max_tokens"], ["max_completion_tokens"], [], [],
    ]  # fmt: skip


async def test_llama_cpp_says_in_its_own_way_that_the_window_is_full() -> None:
    wrong = await fault(error(400, type="exceed_context_size_error"))
    assert (wrong.kind, wrong.retryable) == ("context_overflow", False)


async def test_an_error_inside_the_stream() -> None:
    wrong = await fault(stream({"error": {"message": "过载", "code": 503}}))
    assert (wrong.kind, wrong.retryable) == ("endpoint_error", True)
    assert "过载" in str(wrong)


@pytest.mark.parametrize("answer", [Answer([b"<html>"], kind="application/json"), Answer([b"data: {oops\n\n"])])
async def test_rubbish_is_named(answer: Answer) -> None:
    assert (await fault(answer)).kind in ("bad_answer", "bad_stream")


async def test_an_endpoint_that_is_not_there_names_url_and_mend() -> None:
    async with serving() as endpoint:
        gone = endpoint.entry()
    async with aclosing(ModelClient(gone)) as client:
        with pytest.raises(ModelError) as caught:
            await client.complete(HELLO)
    assert caught.value.retryable
    assert gone.base_url is not None
    assert gone.base_url in str(caught.value)
    assert "OPENAI_BASE_URL" in str(caught.value)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY", "http_proxy"])
async def test_loopback_ignores_proxy_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with talking(says("好")) as (_, client):
        assert (await client.complete(HELLO)).content == "好"


async def test_outside_endpoints_honour_proxy_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(says("经过代理")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        outside = ModelEntry("main", "m", "http://models.example.invalid/v1")
        async with aclosing(ModelClient(outside)) as client:
            assert (await client.complete(HELLO)).content == "经过代理"
    assert proxy.requests[0][0] == "http://models.example.invalid/v1/chat/completions"


@pytest.mark.parametrize("url", ["http://models.example.invalid/v1", None])
async def test_the_switch_forbids_endpoints_beyond_this_machine(url: str | None) -> None:
    async with aclosing(ModelClient(ModelEntry("main", "m", url, api_key="k"), loopback_only=True)) as client:
        with pytest.raises(ModelError) as caught:
            await client.complete(HELLO)
    assert (caught.value.kind, caught.value.retryable) == ("endpoint_forbidden", False)


async def test_the_default_endpoint_without_a_key_is_named() -> None:
    async with aclosing(ModelClient(ModelEntry("main", "m"))) as client:
        with pytest.raises(ModelError, match="OPENAI_API_KEY"):
            await client.complete(HELLO)
