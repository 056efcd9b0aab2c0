"""Metrics: one table, and labels that can't grow."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from protocol.kit.metrics import LABELS, MOST_VALUES, TABLE, Metrics


def test_every_label_is_bounded_and_every_name_is_ours():
    for row in TABLE:
        assert row.name.startswith("rolecall_")
        assert row.name.endswith("_total") == (row.kind == "counter")
        assert bool(row.buckets) == (row.kind == "histogram")
        assert set(row.labels) <= set(LABELS)
        assert row.help


def test_what_is_not_known_is_other():
    metrics = Metrics(roles=["审阅"])
    for role in ("审阅", "someone's", "x" * 1000):
        metrics.add("rolecall_deliveries_total", role=role, outcome="completed")
    metrics.add("rolecall_deliveries_total", role="审阅", outcome="it took 3 s")
    text = generate_latest(metrics.registry).decode()
    assert 'rolecall_deliveries_total{outcome="completed",role="审阅"} 1.0' in text
    assert 'rolecall_deliveries_total{outcome="completed",role="other"} 2.0' in text
    assert 'rolecall_deliveries_total{outcome="other",role="审阅"} 1.0' in text
    assert "someone" not in text
    assert "3 s" not in text


def test_a_label_takes_no_more_than_its_bound():
    metrics = Metrics(process=False)
    for number in range(MOST_VALUES + 50):
        metrics.admit("role", f"r{number}")
        metrics.set("rolecall_role_backlog", number, role=f"r{number}")
    series = [
        line for line in generate_latest(metrics.registry).decode().splitlines() if line.startswith("rolecall_role_")
    ]
    assert len(series) == MOST_VALUES + 1
    assert metrics.value("rolecall_role_backlog", role="r7") == 7


def test_two_processes_metrics_know_nothing_of_each_other():
    one, two = Metrics(), Metrics()
    one.add("rolecall_gate_repairs_total", 3, gate="1")
    assert one.value("rolecall_gate_repairs_total", gate="1") == 3
    assert two.value("rolecall_gate_repairs_total", gate="1") == 0


def test_a_histogram_counts_and_sums():
    metrics = Metrics(roles=["a"], process=False)
    metrics.observe("rolecall_task_seconds", 0.25, role="a")
    text = generate_latest(metrics.registry).decode()
    assert 'rolecall_task_seconds_bucket{le="0.1",role="a"} 0.0' in text
    assert 'rolecall_task_seconds_bucket{le="0.5",role="a"} 1.0' in text
    assert 'rolecall_task_seconds_sum{role="a"} 0.25' in text


def test_a_metric_is_used_as_what_it_is():
    metrics = Metrics(process=False)
    with pytest.raises(TypeError, match="is a gauge, not a counter"):
        metrics.add("rolecall_role_backlog", role="a")
    with pytest.raises(KeyError):
        metrics.add("rolecall_invented_total")
    with pytest.raises(ValueError, match="label"):
        metrics.add("rolecall_gate_repairs_total")
