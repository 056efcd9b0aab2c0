"""The summary of a log."""

from __future__ import annotations

from typing import Any

from coordinator.summary import summarize
from protocol.record import DETAIL_MAX_BYTES, canonical
from tests.unit.mergekit import record

LOG = [
    record("conv_1", "task_started", "person", goal="审查", flow="plan"),
    record("T1", "task_assigned", "leader", role="r", attempt=1),
    record("T1", "task_processing", "r_1", attempt=1, worker="w"),
    record("HB_1", "heartbeat", "r_1", current_task="T1", status="running", progress="一半"),
    record("T1", "task_completed", "r_1", attempt=1, result="甲"),
    record("T1.verify", "task_completed", "checker_1", "T1", verdict="confirmed", verifies="T1"),
    record("T2", "task_blocked", "r_2", requires_human_intervention=True, reason="没有权限"),
    record("T3", "task_agent_lost", "manager", agent="r_3", last_seen=1),
    record("T4", "task_pending", "leader", role="r"),
    record("T5", "task_pending", "r_1", role="r", waiting_for="ASK_1"),
    record("T6", "task_completed", "r_1", result="乙"),
    record("PV_1", "protocol_violation", "store", reason="superseded_attempt", raw="x"),
    record("DEC_1", "decision", "zhang", action="cancel", task="T4", by="zhang", why="不要了"),
]


def test_what_a_log_amounts_to():
    found = summarize(LOG)
    assert (found["session"], found["records"]) == ("conv_1", 13)
    assert found["events"]["task_completed"] == 3
    assert found["agents"]["count"] == 8
    assert found["agents"]["by_name"]["r_1"] == {
        "records": 5, "last_event": "task_completed", "last_time": 1_719_600_000, "current_task": "T1",
        "status": "running", "progress": "一半",
    }  # fmt: skip
    assert found["tasks"] == {
        "total": 7, "by_state": {"blocked": 1, "cancelled": 1, "completed": 3, "lost": 1, "waiting": 1},
    }  # fmt: skip
    assert found["blocked"] == {"count": 1, "tasks": [{"task": "T2", "state": "blocked", "reason": "没有权限"}]}
    assert [row["task"] for row in found["lost"]["tasks"]] == ["T3"]
    assert [row["task"] for row in found["waiting"]["tasks"]] == ["T5"]
    assert found["open"] == {"count": 0, "tasks": []}
    assert found["verdicts"] == {
        "confirmed": 1, "partial": 0, "rejected": 0, "unverified": 1, "tasks": {"T1": "confirmed"},
    }  # fmt: skip
    assert found["progress"] == {"done": 4, "of": 7, "percent": 57}
    assert found["violations"] == {"superseded_attempt": 1}


def test_an_empty_log():
    found = summarize([])
    assert (found["records"], found["tasks"]["total"], found["progress"]["percent"]) == (0, 0, 0)
    assert found["first_time"] is None


def test_the_summary_of_any_log_fits_into_a_record():
    long = "长" * 2_000
    many: list[Any] = []
    for number in range(400):
        task = f"T{number:03}{'x' * 190}"
        who = f"agent_{number:03}{'y' * 110}"
        many += [
            record(task, "task_blocked", who, requires_human_intervention=True, reason=long),
            record(f"HB_{number}", "heartbeat", who, current_task=task, status=long, progress={"甲": long}),
        ]
    found = summarize(many)
    assert found["blocked"]["count"] == found["agents"]["count"] == 400
    assert len(found["blocked"]["tasks"]) == len(found["agents"]["by_name"]) == 100
    assert len(canonical(found)) < DETAIL_MAX_BYTES
