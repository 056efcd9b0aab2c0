"""The client of one model endpoint: chat completions through the `openai` package, streamed.

Guarantees: one call is one request plus, where an endpoint refuses an extra (thinking body, JSON schema, usage in the
stream), the same request without it, said once; an error is a ``ModelError`` whose attributes decide. Clients for
loopback addresses ignore proxy variables, others honour them. Never retries by itself, never keeps a conversation,
never calls beyond this machine where that is forbidden.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

from protocol.errors import ConfigError, ModelError
from protocol.kit.modellist import ModelEntry, find_model
from protocol.kit.settings import hide_password, is_loopback
from protocol.ports import Clock
from protocol.record import Json
from workers.compat import loads
from workers.stream import Assembly, EventLines, OnDelta, Reply
from workers.tools import Tool

if TYPE_CHECKING:
    from openai import AsyncOpenAI

ModelSpec = ModelEntry

THINKING: Final = "thinking"
SCHEMA: Final = "response_format"
USAGE: Final = "stream_options"
MOST: Final = "max_tokens"
MOST_NEW: Final = "max_completion_tokens"
"""The name that some endpoints insist on instead."""
_EXTRAS: Final = (THINKING, SCHEMA, USAGE, MOST, MOST_NEW)
_REFUSED: Final = frozenset({400, 404, 415, 422, 501})
"""Statuses by which endpoints refuse a body they do not know."""
_NOTES: Final[Mapping[str, str]] = {
    THINKING: "the endpoint refuses the thinking body: used without",
    SCHEMA: "the endpoint refuses response_format json_schema: answers go through the gates alone",
    USAGE: "the endpoint refuses stream_options: token use may be unknown",
    MOST: "the endpoint refuses max_tokens: max_completion_tokens is sent, or nothing where it refuses that too",
    MOST_NEW: "the endpoint refuses max_completion_tokens: its own limit holds",
}
CONNECT_S: Final = 10.0
SILENCE_S: Final = 300.0
"""A reading model may be quiet for long; a peer that is quiet for longer is taken for gone."""


class Model(Protocol):
    """What the turn loop needs of a model."""

    @property
    def spec(self) -> ModelSpec:
        """The entry of the models list that it calls."""

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
        """One answer of at most ``most`` tokens. Raises ModelError."""


def choose_model(models: Sequence[ModelSpec], key: str = "") -> tuple[ModelSpec, str | None]:
    """The entry for ``key`` and, where one is due, a warning for the record: empty is the first of the list, unknown is
    the first with a warning. Raises ConfigError where there is no model at all."""
    entry, warning = find_model(models, key)
    if entry is None:
        raise ConfigError(
            "no model endpoint is configured", mend="set OPENAI_BASE_URL (and OPENAI_MODEL), or a [[models]] table"
        )
    return entry, warning


class ModelClient:
    """Calls one entry of the models list. Build one per entry and process; ``aclose`` it at the end."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        loopback_only: bool = False,
        silence_s: float = SILENCE_S,
        clock: Clock = time.time,
        headers: Callable[[], dict[str, str]] = dict,
    ) -> None:
        """``headers``: what each request carries besides (a trace context)."""
        self._spec = spec
        self._headers = headers
        self._loopback_only = loopback_only
        self._silence_s = silence_s
        self._clock = clock
        self._client: AsyncOpenAI | None = None
        self._name = spec.model
        self._without: set[str] = set()

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def url(self) -> str:
        """The endpoint as messages show it, without a password."""
        return hide_password(self._spec.base_url) if self._spec.base_url else "the openai client's default endpoint"

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
        """One answer. ``schema`` asks for JSON of that shape where the endpoint can (the answer is not checked here);
        ``thinking`` merges the entry's thinking body; ``most`` is the most tokens that it may have (where the endpoint
        knows such a limit). Raises ModelError."""
        asked = {USAGE}
        if thinking and self._spec.thinking:
            asked.add(THINKING)
        if schema is not None and schema.get("type") == "object":
            asked.add(SCHEMA)
        if most is not None:
            asked.add(MOST_NEW if MOST in self._without else MOST)
        extras = asked - self._without
        name = await self._model_name()
        try:
            return await self._call(name, messages, tools, schema, extras, most, on_delta)
        except ModelError as error:
            refused = error
        if refused.kind != "bad_request" or not extras:
            raise refused
        # Which extra the endpoint refuses is found by leaving out one at a time, then all: never by reading its words.
        steps: list[set[str]] = [{extra} for extra in _EXTRAS if extra in extras]
        steps += [{MOST, MOST_NEW}] if MOST in extras else []
        steps += [extras] if len(extras) > 1 else []
        for dropped in steps:
            instead = {MOST_NEW} if dropped == {MOST} else set()
            try:
                reply = await self._call(name, messages, tools, schema, extras - dropped | instead, most, on_delta)
            except ModelError as error:
                if error.kind != "bad_request":
                    raise
                continue
            self._without |= dropped
            notes = tuple(_NOTES[extra] for extra in _EXTRAS if extra in dropped)
            return replace(reply, notes=notes)
        raise refused

    async def aclose(self) -> None:
        """Close the connections; legal twice and before the first call."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _call(
        self,
        name: str,
        messages: Sequence[Mapping[str, Json]],
        tools: Sequence[Tool],
        schema: Mapping[str, Json] | None,
        extras: set[str],
        most: int | None,
        on_delta: OnDelta | None,
    ) -> Reply:
        body: dict[str, Any] = {"model": name, "messages": list(messages), "stream": True}
        if tools:
            body["tools"] = [tool.to_openai() for tool in tools]
        if USAGE in extras:
            body["stream_options"] = {"include_usage": True}
        for extra in (MOST, MOST_NEW):
            if extra in extras:
                body[extra] = most
        if SCHEMA in extras:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "delivery", "schema": schema}}
        if THINKING in extras:
            body["extra_body"] = dict(self._spec.thinking)
        if headers := self._headers():
            body["extra_headers"] = headers
        with _Faults(self):
            assembly = Assembly(on_delta)
            async with self._opened().chat.completions.with_streaming_response.create(**body) as response:
                if "json" in response.headers.get("content-type", ""):  # an endpoint that does not stream
                    whole = loads(await response.read())
                    if not isinstance(whole, dict):
                        raise ValueError("no JSON object")
                    assembly.chunk(whole, whole=True)
                else:
                    lines = EventLines()
                    async for piece in response.iter_bytes():
                        for event in lines.feed(piece):
                            assembly.event(event)
                    for event in lines.end():
                        assembly.event(event)
            return assembly.reply()

    async def _model_name(self) -> str:
        """The name that the endpoint knows; none configured: the first that it lists, asked once."""
        if not self._name:
            with _Faults(self):
                page = await self._opened().models.list()
                names = [model.id for model in page.data or ()]
            if not names:
                raise ModelError(
                    f"model endpoint {self.url!r} lists no model",
                    kind="no_model",
                    retryable=False,
                    mend=f"name one for models.{self._spec.key} (OPENAI_MODEL)",
                )
            self._name = names[0]
        return self._name

    def _opened(self) -> AsyncOpenAI:
        if self._client is None:
            self._client = _build(self._spec, self._loopback_only, self._silence_s, self.url)
        return self._client

    def fault(self, error: Exception) -> ModelError | None:
        """What ``error`` is in our tree; None where it is not the endpoint's."""
        import openai

        if isinstance(error, openai.APIStatusError):
            return self._status_fault(error)
        if _caused_by(error, _transport_errors("RemoteProtocolError", "ReadError")):
            # Also a connection that was kept open and that the endpoint has closed meanwhile: the next try opens one.
            return ModelError(
                f"model endpoint {self.url!r} hung up in the middle: {_cause(error)}",
                kind="stream_broken",
                retryable=True,
            )
        if isinstance(error, (openai.APIConnectionError, OSError, *_transport_errors("HTTPError", "StreamError"))):
            return ModelError(
                f"model endpoint {self.url!r} can't be reached or fell silent: {_cause(error)}",
                kind="endpoint_unreachable",
                retryable=True,
                mend=f"is it running? see OPENAI_BASE_URL, or base_url of models.{self._spec.key}",
            )
        if isinstance(error, openai.APIError | ValueError):
            return ModelError(
                f"model endpoint {self.url!r} answered with something unusable: {error}",
                kind="bad_answer",
                retryable=True,
            )
        return None

    def _status_fault(self, error: Any) -> ModelError:
        status: int = error.status_code
        wait = retry_after(error.response.headers, self._clock())
        words = f"model endpoint {self.url!r} answered {status}: {error.message}"
        key = self._spec.key
        if status in (401, 403):
            mend = f"check the key in {self._spec.api_key_env}" if status == 401 else "this key may not use that model"
            return ModelError(words, kind="endpoint_denied", retryable=False, mend=mend)
        if status == 429:
            return ModelError(words, kind="rate_limited", retryable=True, retry_after_s=wait)
        if status in (408, 409, 425) or (status >= 500 and status != 501):
            return ModelError(words, kind="endpoint_error", retryable=True, retry_after_s=wait)
        if error.code == "context_length_exceeded" or error.type == "exceed_context_size_error" or status == 413:
            mend = f"lower context_window of models.{key}, or give the agent less"
            return ModelError(words, kind="context_overflow", retryable=False, mend=mend)
        kind = "bad_request" if status in _REFUSED else "endpoint_refused"
        return ModelError(words, kind=kind, retryable=False, mend=f"check model and base_url of models.{key}")


class _Faults:
    """Turns what the openai client and its transport raise into ``ModelError``."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, ModelError):
            return
        fault = self._client.fault(error)
        if fault is not None:
            raise fault from error


def retry_after(headers: Mapping[str, str], now_s: float) -> float | None:
    """Seconds that an endpoint asks to wait (``retry-after-ms``, or ``retry-after`` in seconds or as a date)."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = (headers.get(name) or "").strip()
        if re.fullmatch(r"[0-9]{1,12}(\.[0-9]+)?", text):
            return float(text) * scale
    try:
        moment = parsedate_to_datetime(headers.get("retry-after") or "")
    except (TypeError, ValueError, IndexError):
        return None
    return max(0.0, moment.timestamp() - now_s)


def _build(spec: ModelSpec, loopback_only: bool, silence_s: float, shown: str) -> AsyncOpenAI:
    """The openai client for one entry; imported here, so that a process that calls no model does not pay for it."""
    import openai

    here = spec.base_url is not None and is_loopback(spec.base_url)
    if loopback_only and not here:
        raise ModelError(
            f"ROLECALL_NO_MODEL is on, {shown!r} is not on this machine", kind="endpoint_forbidden", retryable=False
        )
    if spec.base_url is None and not spec.api_key:
        raise ModelError(
            f"models.{spec.key} needs a key for {shown}",
            kind="endpoint_denied",
            retryable=False,
            mend=f"set {spec.api_key_env}, or base_url for an endpoint without one",
        )
    timeout = openai.Timeout(silence_s, connect=CONNECT_S)
    try:
        # A proxy variable would send calls for this machine to the proxy, which can't reach it.
        transport = openai.DefaultAsyncHttpxClient(trust_env=not here, timeout=timeout)
    except (ImportError, ValueError) as error:
        raise ModelError(
            f"the proxy in the environment can't be used for {shown!r}: {error}",
            kind="bad_proxy",
            retryable=False,
            mend="mend HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or unset them",
        ) from error
    return openai.AsyncOpenAI(
        api_key=spec.api_key or "none",
        base_url=spec.base_url or "https://api.openai.com/v1",
        max_retries=0,
        timeout=timeout,
        http_client=transport,
    )


def _transport_errors(*names: str) -> tuple[type[Exception], ...]:
    """Errors of the HTTP library under the openai client, which is httpx2 or httpx by its version."""
    found = [import_module(name) for name in ("httpx2", "httpx") if find_spec(name) is not None]
    return tuple(getattr(module, name) for module in found for name in names)


def _caused_by(error: BaseException | None, kinds: tuple[type[Exception], ...]) -> bool:
    while error is not None and not isinstance(error, kinds):
        error = error.__cause__
    return error is not None


def _cause(error: BaseException) -> str:
    """The innermost words: "Connection error." alone helps nobody."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
