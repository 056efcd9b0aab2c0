"""Metrics over HTTP: one port a process, the next free one when it is taken."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from protocol.errors import ConfigError
from protocol.kit.metrics import PORT_TRIES, Metrics


def read(port: int) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_two_processes_with_one_setting_serve_on_two_ports():
    one, two = Metrics(roles=["审阅"]), Metrics()
    first = one.serve(0, "127.0.0.1")
    second = two.serve(first.port, "127.0.0.1")
    try:
        assert first.port < second.port <= first.port + PORT_TRIES
        one.add("rolecall_agents_lost_total", role="审阅")
        assert 'rolecall_agents_lost_total{role="审阅"} 1.0' in read(first.port)
        assert "process_cpu_seconds_total" in read(first.port)
        assert 'role="审阅"' not in read(second.port)
    finally:
        for served in (first, second, first):
            served.close()
    with pytest.raises(OSError, match="refused"):
        read(first.port)


def test_no_free_port_is_one_clear_line(monkeypatch):
    def taken(*_: object, **__: object) -> None:
        raise OSError("Address already in use")

    monkeypatch.setattr("protocol.kit.metrics.start_http_server", taken)
    with pytest.raises(ConfigError, match="ROLECALL_METRICS_PORT"):
        Metrics().serve(65_500, "127.0.0.1")


def test_what_listens_is_what_was_asked_for():
    served = Metrics().serve(0, "127.0.0.1")
    try:
        with socket.create_connection(("127.0.0.1", served.port), timeout=5) as connection:
            assert connection.getpeername() == ("127.0.0.1", served.port)
    finally:
        served.close()
