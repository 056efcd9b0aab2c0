"""Spans: GenAI names, one trace from the dispatch to the model call, no words of anybody; and nothing without them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from protocol.errors import ModelError
from protocol.kit import tracing
from protocol.kit.tracing import NoTracing, OtelTracing
from protocol.ports import Delivered, Dispatch, Failed, Outcome, TurnFence
from tests.unit.agentkit import CountedTools, MemoryConversation, OpenFence, ScriptedModel, Store, calls, role, says
from tests.unit.agentkit import dispatch as given
from workers.agent import run_agent
from workers.delivery import Rules, letter_of
from workers.traced import TracedModel, TracedTools, traced_runner

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def recording() -> tuple[OtelTracing, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OtelTracing(provider), exporter


async def turn(traces: tracing.Tracing, script: Sequence[Any]) -> tuple[Outcome, list[dict[str, str]]]:
    """One attempt of an agent, traced; the outcome, and the headers that each model call would carry."""
    sent: list[dict[str, str]] = []

    class Headed(ScriptedModel):
        async def complete(self, *args: Any, **more: Any) -> Any:
            sent.append(traces.headers())
            return await super().complete(*args, **more)

    async def runner(made: Dispatch, fence: TurnFence) -> Outcome:
        return await run_agent(
            made, fence, role=role(), conversation=MemoryConversation(Store(owner=made.owner), made),
            model=TracedModel(Headed(script), traces), tools=TracedTools(CountedTools(), traces),
        )  # fmt: skip

    made = replace(given(prompt="机密的问题"), traceparent=PARENT)
    return await traced_runner(runner, traces)(made, OpenFence()), sent


def told(exporter: InMemorySpanExporter) -> dict[str, Mapping[str, Any]]:
    return {span.name: span.attributes or {} for span in exporter.get_finished_spans()}


async def test_one_trace_from_the_dispatch_to_the_model_call() -> None:
    traces, exporter = recording()
    outcome, sent = await turn(traces, [calls(("c1", "look", {"what": "机密"})), says("机密的答案")])
    assert isinstance(outcome, Delivered)
    spans = exporter.get_finished_spans()
    assert [s.name for s in spans] == ["chat words-1", "execute_tool look", "chat words-1", "invoke_agent reviewer_1"]
    assert {f"{s.context.trace_id:032x}" for s in spans if s.context} == {TRACE}
    agent = spans[-1]
    assert agent.context is not None
    assert agent.parent is not None
    assert f"{agent.parent.span_id:016x}" == PARENT.split("-")[2]
    assert {s.parent.span_id for s in spans[:-1] if s.parent} == {agent.context.span_id}
    assert [h["traceparent"].split("-")[1] for h in sent] == [TRACE, TRACE]
    assert sent[0]["traceparent"].split("-")[2] == f"{spans[0].context.span_id:016x}"


async def test_the_names_are_those_of_the_genai_conventions_and_no_words_are_in_them() -> None:
    traces, exporter = recording()
    await turn(traces, [calls(("c1", "look", {"what": "机密"})), says("机密的答案")])
    found = told(exporter)
    chat = dict(found["chat words-1"])
    assert list(chat.pop("gen_ai.response.finish_reasons")) == ["stop"]
    assert chat == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "words-1",
        "gen_ai.output.type": "text", "server.address": "127.0.0.1", "server.port": 9,
        "gen_ai.response.model": "words-1-real",
        "gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 5,
    }  # fmt: skip
    assert found["execute_tool look"] == {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", "gen_ai.tool.type": "function",
    }  # fmt: skip
    assert found["invoke_agent reviewer_1"]["gen_ai.conversation.id"] == "s1"
    assert all("机密" not in str(dict(attributes)) for attributes in found.values())


async def test_a_fault_is_named_by_its_kind_alone() -> None:
    traces, exporter = recording()
    fault = ModelError("the endpoint repeats: 机密", kind="endpoint_refused", retryable=False)
    outcome, _ = await turn(traces, [fault])
    assert isinstance(outcome, Failed)
    spans = exporter.get_finished_spans()
    assert [s.attributes["error.type"] for s in spans if s.attributes] == ["endpoint_refused", "endpoint_refused"]
    assert spans[0].status.description == "endpoint_refused"
    assert not spans[0].events


async def test_without_tracing_the_context_is_handed_on_and_nothing_else_happens() -> None:
    outcome, sent = await turn(NoTracing(), [says("好")])
    assert isinstance(outcome, Delivered)
    assert sent == [{}]
    with NoTracing().span("x", parent=PARENT) as span:
        assert span.traceparent == PARENT
    made = replace(given(), traceparent=PARENT)
    for result in (outcome, Failed("k", "m", retryable=True)):
        letter = letter_of(made, result, now_s=1, random=0.5, rules=Rules())
        assert {record.trace.traceparent for record in letter.records} == {PARENT}


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"},
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "zipkin"},
    ],
)
def test_no_exporter_no_tracing(env: dict[str, str]) -> None:
    assert isinstance(tracing.load(env, "x"), NoTracing)


def test_a_missing_package_is_said_and_the_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    said: list[dict[str, Any]] = []

    class Told:
        def warning(self, message: str, **more: Any) -> None:
            said.append(more)

    monkeypatch.setattr(tracing, "import_module", gone)
    monkeypatch.setattr(tracing, "log", Told())
    traces = tracing.load({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, "x")
    assert isinstance(traces, NoTracing)
    assert said[0]["mend"] == "pip install 'rolecall[otel]'"


def test_the_console_exporter_writes_a_line_a_span(capsys: pytest.CaptureFixture[str]) -> None:
    traces = tracing.load({"OTEL_TRACES_EXPORTER": "console"}, "rolecall-test")
    with traces.span("一步", parent=PARENT, rolecall__task="T1") as span:
        assert span.traceparent is not None
        assert span.traceparent.split("-")[1] == TRACE
    traces.close()
    [line] = capsys.readouterr().err.splitlines()
    shown = json.loads(line)
    assert (shown["name"], shown["attributes"]) == ("一步", {"rolecall.task": "T1"})
    assert shown["resource"]["attributes"]["service.name"] == "rolecall-test"


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (PARENT, PARENT),
        (PARENT.upper(), PARENT),
        ("", None),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", None),
        (f"{PARENT}; rm -rf", None),
    ],
)
def test_the_context_that_a_process_was_started_in(given: str, taken: str | None) -> None:
    assert tracing.context_of({"TRACEPARENT": given}) == taken
