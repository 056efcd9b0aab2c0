"""Metrics for Prometheus: one table, bounded labels, one port a process.

Guarantees: every metric is declared in `TABLE` and nowhere else; a label's values come from a small set, whatever is
outside it is counted as ``other``: ids and free text never become labels. Several processes of one host share a
configured port by taking the next free one. Never blocks the work, never raises into it for a label's sake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Thread
from typing import Any, Literal
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)

from protocol.errors import ConfigError
from protocol.kit.logs import get_log

log = get_log(__name__)

OTHER = "other"
PORT_TRIES = 20
MOST_VALUES = 200

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row: its name as it is scraped, what it is, what it means, its labels."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()


LABELS: Mapping[str, frozenset[str] | None] = {
    "role": None,  # the fleet's roles, admitted by whoever knows them
    "model": None,  # the keys of the models list
    "outcome": frozenset(
        {"completed", "failed", "retrying", "blocked", "waiting", "refused", "cancelled", "handed_back"}
    ),
    "gate": frozenset({"1", "2", "3", "4"}),
    "state": frozenset({"live", "stalled", "dead"}),
    "direction": frozenset({"input", "output"}),
}
"""Each label's values; None: those that were admitted (`Metrics.admit`), at most 200."""

TABLE: tuple[Metric, ...] = (
    Metric("rolecall_deliveries_total", "counter", "Attempts of tasks that ended, by outcome", ("role", "outcome")),
    Metric("rolecall_role_backlog", "gauge", "Dispatches in a role's stream that nobody acknowledged yet", ("role",)),
    Metric("rolecall_agents_lost_total", "counter", "Losses recorded: a holder of work is gone", ("role",)),
    Metric("rolecall_gate_refusals_total", "counter", "Texts or records that a gate refused", ("gate",)),
    Metric("rolecall_gate_repairs_total", "counter", "Texts or records that a gate changed", ("gate",)),
    Metric(
        "rolecall_task_seconds",
        "histogram",
        "Seconds from claim to outcome of an attempt",
        ("role",),
        (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
    ),
    Metric("rolecall_workers", "gauge", "Worker processes by what they look like", ("role", "state")),
    Metric("rolecall_model_calls_total", "counter", "Answers of models", ("role", "model")),
    Metric(
        "rolecall_model_tokens_total",
        "counter",
        "Tokens sent to and received from models",
        ("role", "model", "direction"),
    ),
    Metric(
        "rolecall_model_cost_total",
        "counter",
        "What model calls cost, by the prices of the models list and in their currency",
        ("role", "model"),
    ),
)


class Metrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self, *, roles: Iterable[str] = (), models: Iterable[str] = (), process: bool = True) -> None:
        """``roles``, ``models``: the label values known from the start. ``process``: the process's own figures too."""
        self.registry = CollectorRegistry()
        self._admitted: dict[str, set[str]] = {name: set() for name, values in LABELS.items() if values is None}
        self._collectors: dict[str, tuple[Metric, Any]] = {}
        for row in TABLE:
            self._collectors[row.name] = (row, _collector(row, self.registry))
        if process:
            ProcessCollector(registry=self.registry)
            PlatformCollector(registry=self.registry)
        for role in roles:
            self.admit("role", role)
        for model in models:
            self.admit("model", model)
        self._children: dict[tuple[object, ...], Any] = {}

    def admit(self, label: str, value: str) -> None:
        """``value`` becomes one of the label's values, as long as there are not 200 of them."""
        known = self._admitted[label]
        if len(known) < MOST_VALUES:
            known.add(value)

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Adds to a counter."""
        self._child(name, "counter", labels).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Sets a gauge."""
        self._child(name, "gauge", labels).set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Puts a value into a histogram."""
        self._child(name, "histogram", labels).observe(value)

    def value(self, name: str, **labels: str) -> float:
        """What a counter or gauge says now (0 if it was never touched); for tests and the command line."""
        found = self.registry.get_sample_value(name, {label: self._fold(label, text) for label, text in labels.items()})
        return found if found is not None else 0.0

    def serve(self, port: int, address: str = "0.0.0.0") -> MetricsServer:  # noqa: S104 - scraped from another host
        """Serves ``/metrics`` on ``port``, or on the next free one of the 20 after it (0: any). Says which.

        Raises `ConfigError` when none is free.
        """
        for candidate in range(port, port + PORT_TRIES + 1) if port else (0,):
            if candidate > 65_535:
                break
            try:
                server, thread = start_http_server(candidate, addr=address, registry=self.registry)
            except OSError:
                continue
            log.info("metrics_served", port=server.server_port, asked=port)
            return MetricsServer(server, thread)
        raise ConfigError(
            f"no port for metrics: {port} and the {PORT_TRIES} after it are taken",
            mend="set ROLECALL_METRICS_PORT to another one, or to off",
        )

    def _child(self, name: str, kind: Kind, labels: Mapping[str, str]) -> Any:
        key = (name, kind, *labels.items())
        child = self._children.get(key)
        if child is None:
            row, collector = self._collectors[name]
            if row.kind != kind:
                raise TypeError(f"{name!r} is a {row.kind}, not a {kind}")
            folded = {label: self._fold(label, value) for label, value in labels.items()}
            child = collector.labels(**folded)
            if folded == labels:  # a value that is folded may be admitted later, and what is kept stays bounded
                self._children[key] = child
        return child

    def _fold(self, label: str, value: str) -> str:
        known = LABELS[label]
        return value if value in (self._admitted[label] if known is None else known) else OTHER


class MetricsServer:
    """A served `Metrics`; ``port`` is the one in force."""

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self._server = server
        self._thread = thread
        self.port: int = server.server_port

    def close(self) -> None:
        """Stops serving. Legal twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _collector(row: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    name = row.name.removesuffix("_total")
    if row.kind == "counter":
        return Counter(name, row.help, row.labels, registry=registry)
    if row.kind == "gauge":
        return Gauge(row.name, row.help, row.labels, registry=registry)
    return Histogram(row.name, row.help, row.labels, registry=registry, buckets=row.buckets)
