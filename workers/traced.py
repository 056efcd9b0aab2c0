"""Spans around what a worker does: an agent's attempt, each model call, each tool call (GenAI names).

Guarantees: wraps and never changes: without tracing each call goes straight through. No prompt, no answer and no
argument of a tool is in a span. The attempt's span goes on the trace context that its dispatch brought.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from protocol.kit.tracing import NoTracing, Tracing
from protocol.ports import Dispatch, Failed, Outcome, Runner, TurnFence
from protocol.record import Json
from workers.model import Model, ModelSpec
from workers.stream import OnDelta, Reply
from workers.tools import Tool, ToolResult, Tools

PROVIDER = "openai"
"""The protocol that endpoints speak; which endpoint it is, ``server.address`` says."""


def traced_runner(runner: Runner, tracing: Tracing) -> Runner:
    """``runner`` in a span ``invoke_agent <agent>``; without tracing it is the runner itself."""
    if isinstance(tracing, NoTracing):
        return runner

    async def run(dispatch: Dispatch, fence: TurnFence) -> Outcome:
        with tracing.span(
            f"invoke_agent {dispatch.agent}",
            parent=dispatch.traceparent,
            gen_ai__operation__name="invoke_agent",
            gen_ai__agent__name=dispatch.agent,
            gen_ai__conversation__id=dispatch.session,
            rolecall__role=dispatch.role,
            rolecall__task=dispatch.task,
            rolecall__attempt=dispatch.attempt,
        ) as span:
            outcome = await runner(dispatch, fence)
            span.set(rolecall__outcome=type(outcome).__name__)
            if isinstance(outcome, Failed):
                span.set(error__type=outcome.kind)
            return outcome

    return run


class TracedModel:
    """A model whose calls are spans ``chat <model>``."""

    def __init__(self, model: Model, tracing: Tracing) -> None:
        self._model = model
        self._tracing = tracing

    @property
    def spec(self) -> ModelSpec:
        return self._model.spec

    async def complete(
        self,
        messages: Sequence[Mapping[str, Json]],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Json] | None = None,
        thinking: bool = False,
        most: int | None = None,
        on_delta: OnDelta | None = None,
    ) -> Reply:
        """One answer, as the model gives it."""
        spec = self.spec
        place = urlsplit(spec.base_url or "")
        with self._tracing.span(
            f"chat {spec.model or spec.key}",
            kind="client",
            gen_ai__operation__name="chat",
            gen_ai__provider__name=PROVIDER,
            gen_ai__request__model=spec.model or spec.key,
            gen_ai__request__max_tokens=most,
            gen_ai__output__type="json" if schema is not None else "text",
            server__address=place.hostname,
            server__port=place.port,
        ) as span:
            reply = await self._model.complete(
                messages, tools=tools, schema=schema, thinking=thinking, most=most, on_delta=on_delta
            )
            span.set(
                gen_ai__response__model=reply.model or None,
                gen_ai__response__finish_reasons=[reply.finish],
                gen_ai__usage__input_tokens=reply.usage.prompt,
                gen_ai__usage__output_tokens=reply.usage.completion,
            )
            return reply


class TracedTools:
    """Tools whose calls are spans ``execute_tool <name>``."""

    def __init__(self, tools: Tools, tracing: Tracing) -> None:
        self._tools = tools
        self._tracing = tracing

    def list(self) -> Sequence[Tool]:
        """The tools, as they are."""
        return self._tools.list()

    async def call(self, name: str, args: Mapping[str, Json]) -> ToolResult:
        """One call, as the tool does it."""
        with self._tracing.span(
            f"execute_tool {name}",
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name=name,
            gen_ai__tool__type="function",
        ) as span:
            result = await self._tools.call(name, args)
            if not result.ok:
                span.set(error__type="tool_failed")
            return result
