"""Spans for OpenTelemetry, where an exporter is configured; nothing at all where none is.

Guarantees: without a configured exporter, or without the packages of the extra ``otel``, every call here is a no-op and
imports nothing; a trace context that came in is handed on all the same. An exporter that is away never holds the work
up and never fails it. Names are those of the GenAI conventions where they have one. Never a prompt, an answer or a key
in a span.

Configured by OpenTelemetry's own variables: ``OTEL_TRACES_EXPORTER`` (``otlp``, ``console``, ``none``),
``OTEL_EXPORTER_OTLP_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``; the packages read the others.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from threading import Thread
from typing import Any, Final, Literal, Protocol

from protocol.kit.logs import get_log
from protocol.kit.settings import is_loopback

log = get_log(__name__)
Value = str | int | float | bool | list[str]
Kind = Literal["internal", "client"]
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
FLUSH_MS: Final = 2_000
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Span(Protocol):
    """What one piece of work tells of itself. ``traceparent``: the context for what it starts; None: there is none."""

    traceparent: str | None

    def set(self, **attributes: Value | None) -> None:
        """Attributes; two ``_`` in a name stand for a ``.`` (``gen_ai__request__model``), None is left out."""


class Tracing(Protocol):
    """Makes spans."""

    def span(self, name: str, *, parent: str | None = None, kind: Kind = "internal", **attributes: Value | None) -> Any:
        """A context manager with a `Span`: a child of ``parent`` (a traceparent), else of the span around it."""

    def headers(self) -> dict[str, str]:
        """What a request carries so that its receiver can go on with the trace; empty where there is none."""

    def close(self) -> None:
        """Send what is left; legal twice."""


class _NoSpan:
    def __init__(self, traceparent: str | None) -> None:
        self.traceparent = traceparent

    def set(self, **attributes: Value | None) -> None:
        return None


class NoTracing:
    """No exporter: a context that came in is handed on, nothing is measured."""

    @contextmanager
    def span(
        self, name: str, *, parent: str | None = None, kind: Kind = "internal", **attributes: Value | None
    ) -> Iterator[Span]:
        yield _NoSpan(parent)

    def headers(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        return None


class _OtelSpan:
    def __init__(self, span: Any, traceparent: str | None) -> None:
        self._span = span
        self.traceparent = traceparent

    def set(self, **attributes: Value | None) -> None:
        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(name.replace("__", "."), value)


class OtelTracing:
    """Spans of one process through a provider of its own (``provider`` of the OpenTelemetry SDK)."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("rolecall")
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(
        self, name: str, *, parent: str | None = None, kind: Kind = "internal", **attributes: Value | None
    ) -> Iterator[Span]:
        context = self._propagator.extract({"traceparent": parent}) if parent else None
        kinds = {"internal": self._trace.SpanKind.INTERNAL, "client": self._trace.SpanKind.CLIENT}
        with self._tracer.start_as_current_span(
            name, context=context, kind=kinds[kind], record_exception=False, set_status_on_exception=False
        ) as span:
            made = _OtelSpan(span, self.headers().get("traceparent"))
            made.set(**attributes)
            try:
                yield made
            except BaseException as error:
                # The kind alone: an endpoint's words may repeat what it was asked.
                kind_of = getattr(error, "kind", None)
                words = kind_of if isinstance(kind_of, str) else type(error).__name__
                made.set(error__type=words)
                span.set_status(self._trace.StatusCode.ERROR, words)
                raise

    def headers(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier

    def close(self) -> None:
        def end() -> None:
            self._provider.force_flush(FLUSH_MS)
            self._provider.shutdown()

        # An exporter that is away would be waited for; the process ends all the same.
        ending = Thread(target=end, daemon=True)
        ending.start()
        ending.join(2 * FLUSH_MS / 1000)


def load(env: Mapping[str, str], service: str) -> Tracing:
    """The tracing that ``env`` configures; ``service`` names this kind of process (``OTEL_SERVICE_NAME`` goes first).
    What is configured and can't be had is said once, and the work goes on without."""
    wanted = _wanted(env)
    if wanted is None:
        return NoTracing()
    try:
        exporter, simple = _exporter(wanted, env)
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    except ImportError as error:
        log.warning("no traces: a package is missing", why=str(error), mend="pip install 'rolecall[otel]'")
        return NoTracing()
    named = {} if env.get("OTEL_SERVICE_NAME") else {"service.name": service}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor((SimpleSpanProcessor if simple else BatchSpanProcessor)(exporter))
    return OtelTracing(provider)


def context_of(env: Mapping[str, str]) -> str | None:
    """The trace context that this process was started in (``TRACEPARENT``); None where there is no valid one."""
    given = env.get("TRACEPARENT", "").strip().lower()
    return given if _TRACEPARENT.fullmatch(given) else None


def _wanted(env: Mapping[str, str]) -> str | None:
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    named = env.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if named in ("console", "otlp"):
        return named
    if named and named != "none":
        log.warning("no traces: OTEL_TRACES_EXPORTER is neither otlp nor console", given=named)
    return None if named or not any(env.get(name) for name in ENDPOINTS) else "otlp"


def _exporter(wanted: str, env: Mapping[str, str]) -> tuple[Any, bool]:
    """The exporter, and whether each span is sent at once."""
    if wanted == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: f"{span.to_json(indent=None)}\n"), True
    session = import_module("requests").Session()
    exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    url = next((env[name] for name in ENDPOINTS if env.get(name)), "http://localhost:4318")
    session.trust_env = not is_loopback(url)  # a proxy variable would send what is for this machine elsewhere
    return exporter.OTLPSpanExporter(session=session), False
