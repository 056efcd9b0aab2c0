"""All four gates in a row, and the report of what each did."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.gates import default_new_id, pass_gates
from tests.unit.gate_cases import GOOD, NOW, refusal_of


def test_a_messy_answer_becomes_a_record_with_a_report() -> None:
    text = (
        "<think>草稿 {“event”: “task_failed”}</think>好的：\n```json\n"
        "{“id”：“TASK_1”，'who': 'master_1', event: ' Task_Completed ', time: 1719600000123, # 毫秒\n"
        ' "detail": {"result": "三条“结论”",}, "status": "ok"}\n```'
    )
    out, report = pass_gates(text, now=NOW, session="sess_now", new_id=default_new_id(lambda: "abc"))
    assert out.to_json() == {
        "id": "TASK_1",
        "who": "master_1",
        "time": 1719600000,
        "event": "task_completed",
        "what": "task completed",
        "detail": {"result": "三条“结论”", "status": "ok"},
        "trace": {"parent_id": None, "session_id": "sess_now"},
    }
    assert report.refused_at is None
    assert not report.clean
    assert {change.path for change in report.changes} == {"event", "time", "what", "trace", "status"}
    assert any("comment" in note for note in report.repairs)
    json.dumps(report.to_json())


def test_a_clean_record_leaves_a_clean_report() -> None:
    for raw in (GOOD, json.dumps(GOOD), json.dumps(GOOD, ensure_ascii=False).encode()):
        out, report = pass_gates(raw, now=NOW, session="s", new_id=str)
        assert out.to_json() == GOOD
        assert report.clean


@pytest.mark.parametrize(
    ("raw", "gate"),
    [
        ("好的", 1),
        ("[1]", 2),
        ({**GOOD, "event": "done"}, 3),
        ({**GOOD, "detail": {}}, 4),
        ({**GOOD, "event": " TASK_FAILED "}, 4),
    ],
)
def test_a_refusal_carries_the_report(raw: Any, gate: int) -> None:
    refusal = refusal_of(raw)
    assert refusal.gate == gate
    assert refusal.reason == f"gate_{gate}"
    assert refusal.report is not None
    assert refusal.report.refused_at == gate
    assert [(p.gate, p.path, p.message) for p in refusal.report.problems] == [(gate, *p) for p in refusal.problems]
    if isinstance(raw, dict) and raw["event"] == " TASK_FAILED ":
        assert [change.path for change in refusal.report.changes] == ["event"]


def test_of_several_objects_the_record_is_taken() -> None:
    text = f'例子 {{"event": "info"}}：\n{json.dumps({**GOOD, "Who": 1})}\n附 {{"x": 1}}'
    out, report = pass_gates(text, now=NOW, session="s", new_id=str)
    assert out.id == "TASK_001"
    assert any("dropped" in note for note in report.repairs)
    assert refusal_of(json.dumps(GOOD) * 2).gate == 1
    assert refusal_of('{"event": "info"} {"who": "x"}').gate == 1


def test_a_nested_fragment_is_never_a_record() -> None:
    inner = json.dumps(GOOD)
    for text in (f'{{"records": oops, "last": {inner}}}', f"{{占位 {inner}}}", f'"record": {inner}', f"[{inner}, 甲]"):
        assert refusal_of(text).gate == 1
