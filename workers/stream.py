"""From the bytes of a chat completion to one reply, streamed or whole.

Guarantees: bytes are split at line ends before they are decoded, so no cut inside a character shows; a stream that
ends without a finish reason and without its end mark is broken off, never a reply. Never opens a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from protocol.errors import ModelError
from protocol.record import Json
from workers.compat import Calls, ToolCall, loads, mended, reasoning_of, text_of, without_thinking

Finish = Literal["stop", "length", "tool_calls", "content_filter", "unknown"]
_FINISH: Final[Mapping[str, Finish]] = {
    "stop": "stop", "end_turn": "stop", "eos": "stop", "length": "length", "max_tokens": "length",
    "tool_calls": "tool_calls", "function_call": "tool_calls", "content_filter": "content_filter",
}  # fmt: skip

OnDelta = Callable[[Literal["content", "reasoning"], str], None]
"""Called with each piece of text as it comes, for people watching; never the truth."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call or a sum of calls. ``calls`` counts answers; ``unknown`` those that named no usage."""

    prompt: int = 0
    completion: int = 0
    total: int = 0
    reasoning: int = 0
    cached: int = 0
    calls: int = 0
    unknown: int = 0
    micros: int = 0
    """What it cost, in millionths of the budgets' currency; 0 where the model has no price."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt + other.prompt, self.completion + other.completion, self.total + other.total,
            self.reasoning + other.reasoning, self.cached + other.cached, self.calls + other.calls,
            self.unknown + other.unknown, self.micros + other.micros,
        )  # fmt: skip

    def to_json(self) -> dict[str, Json]:
        """As records carry it; what is zero by rule and not by count is left out."""
        out: dict[str, Json] = {
            "calls": self.calls, "prompt_tokens": self.prompt, "completion_tokens": self.completion,
            "total_tokens": self.total,
        }  # fmt: skip
        if self.reasoning:
            out["reasoning_tokens"] = self.reasoning
        if self.cached:
            out["cached_tokens"] = self.cached
        if self.unknown:
            out["calls_without_usage"] = self.unknown
        if self.micros:
            out["cost"] = self.micros / 1_000_000
        return out

    @classmethod
    def of(cls, value: Json) -> Usage:
        """From an endpoint's ``usage``; missing numbers are zero, a missing total is the sum."""
        if not isinstance(value, Mapping):
            return cls(calls=1, unknown=1)
        prompt, completion = _count(value, "prompt_tokens"), _count(value, "completion_tokens")
        deep = value.get("completion_tokens_details")
        cached = value.get("prompt_tokens_details")
        return cls(
            prompt=prompt,
            completion=completion,
            total=_count(value, "total_tokens") or prompt + completion,
            reasoning=_count(deep, "reasoning_tokens") if isinstance(deep, Mapping) else 0,
            cached=_count(cached, "cached_tokens") if isinstance(cached, Mapping) else 0,
            calls=1,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a model. ``notes`` says what the endpoint did not support and was left out, once each."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    fingerprint: str = ""
    refusal: str = ""
    notes: tuple[str, ...] = ()


class EventLines:
    """Splits a byte stream into the data of its server-sent events, whatever the sizes of its pieces."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []
        self._skip_lf = False

    def feed(self, piece: bytes) -> list[str]:
        """The events that are complete with this piece."""
        if self._skip_lf and piece:
            piece = piece.removeprefix(b"\n")
            self._skip_lf = False
        buffer = self._rest + piece
        if buffer.endswith(b"\r"):
            self._skip_lf = True  # a line feed that comes next belongs to this line's end
        lines = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        out: list[str] = []
        for line in lines:
            out += self._line(line.decode("utf-8", "replace"))
        return out

    def end(self) -> list[str]:
        """What was complete but for its blank line."""
        out = self._line(self._rest.decode("utf-8", "replace")) if self._rest else []
        self._rest = b""
        return out + self._flush()

    def _line(self, line: str) -> list[str]:
        if not line:
            return self._flush()
        if line.startswith("data:"):
            value = line[5:].removeprefix(" ")
            self._data.append(value)
        return []

    def _flush(self) -> list[str]:
        data, self._data = self._data, []
        if len(data) > 1 and all(part == "[DONE]" or part.startswith("{") for part in data):
            return data  # an endpoint that leaves out the blank lines: each line is an event
        return ["\n".join(data)] if data else []


class Assembly:
    """Collects the pieces of one answer."""

    def __init__(self, on_delta: OnDelta | None = None) -> None:
        self._on_delta = on_delta
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls = Calls()
        self._finish: Json = None
        self._usage: Json = None
        self._model = self._fingerprint = ""
        self._done = False

    def event(self, data: str) -> None:
        """One event's data. Raises ModelError for an error in the stream or for what is no JSON."""
        if data.strip() == "[DONE]":
            self._done = True
            return
        if not data.strip():  # some endpoints keep the line alive with empty events
            return
        try:
            chunk = loads(data)
        except ValueError as error:
            words = f"the stream has a piece that is no JSON: {error}"
            raise ModelError(words, kind="bad_stream", retryable=True) from error
        if isinstance(chunk, dict):
            self.chunk(chunk)

    def chunk(self, chunk: Mapping[str, Json], *, whole: bool = False) -> None:
        """One chunk, or with ``whole`` a completion that was not streamed."""
        if chunk.get("error"):
            raise _stream_error(chunk["error"])
        self._model = text_of(chunk.get("model")) or self._model
        self._fingerprint = text_of(chunk.get("system_fingerprint")) or self._fingerprint
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict) or choice.get("index") not in (0, None):
                continue
            delta = choice.get("delta")
            if isinstance(delta, dict) and not whole:
                self._delta(delta, whole=False)
            elif isinstance(choice.get("message"), dict) and not self._content and not self._calls:
                self._delta(choice["message"], whole=True)
            self._finish = choice.get("finish_reason") or self._finish
        if whole:
            self._done = True

    def _delta(self, delta: Mapping[str, Json], *, whole: bool) -> None:
        for kind, text, into in (
            ("reasoning", reasoning_of(delta), self._reasoning),
            ("content", text_of(delta.get("content")), self._content),
        ):
            if text:
                into.append(text)
                if self._on_delta is not None:
                    self._on_delta("reasoning" if kind == "reasoning" else "content", text)
        if delta.get("refusal"):
            self._refusal.append(text_of(delta["refusal"]))
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            self._calls.add(call, whole=whole)
        if isinstance(delta.get("function_call"), dict):
            self._calls.add({"function": delta["function_call"]}, whole=whole)

    def reply(self, notes: tuple[str, ...] = ()) -> Reply:
        """The whole answer. Raises ModelError (retryable) where the stream was broken off."""
        if not self._done and self._finish is None:
            raise ModelError(
                "the model's answer was broken off in the middle: the stream ended without a finish reason",
                kind="stream_broken",
                retryable=True,
            )
        content, thought = without_thinking(mended("".join(self._content)))
        reasoning = mended("".join(self._reasoning)) or thought
        finish = _FINISH.get(self._finish, "unknown") if isinstance(self._finish, str) else "unknown"
        return Reply(
            content=content, reasoning=reasoning, tool_calls=self._calls.done(), finish=finish,
            usage=Usage.of(self._usage), model=self._model, fingerprint=self._fingerprint,
            refusal=mended("".join(self._refusal)), notes=notes,
        )  # fmt: skip


def _count(value: Mapping[str, Json], name: str) -> int:
    found = value.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


def _stream_error(error: Json) -> ModelError:
    """An error that an endpoint sends inside a stream. Its code decides where it is an HTTP status."""
    body = error if isinstance(error, dict) else {"message": str(error)}
    code = body.get("code") or body.get("status")
    status = int(code) if isinstance(code, int | str) and str(code).isdigit() else 500
    words = text_of(body.get("message")) or "no message"
    return ModelError(
        f"the model endpoint reported an error inside the stream: {words}",
        kind="endpoint_error",
        retryable=status == 429 or status >= 500,
    )
