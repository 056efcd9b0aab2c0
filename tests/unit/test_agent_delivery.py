"""What an agent's last message becomes: a result, a verdict, or a refusal that is told once."""

from __future__ import annotations

import json

import pytest

from protocol.errors import GateRefused, TaskError
from protocol.ports import Delivered, Failed
from tests.unit.agentkit import CountedTools, ScriptedModel, Store, calls, dispatch, role, run, says
from workers.answers import VERDICT_SCHEMA, detail_of, schema_of

SCHEMA = {
    "type": "object",
    "properties": {"摘要": {"type": "string"}, "条目": {"type": "array", "items": {"type": "integer"}}},
    "required": ["摘要", "条目"],
}


async def test_a_schema_is_asked_for_and_checked_all_the_same() -> None:
    model = ScriptedModel([says('好的：\n```json\n{"摘要": "可行", "条目": [1, 2],}\n```')])
    outcome = await run(Store(), model, role_file=role(output_schema=SCHEMA))
    assert isinstance(outcome, Delivered)
    assert outcome.detail["result"] == {"摘要": "可行", "条目": [1, 2]}
    assert outcome.detail["repairs"]
    assert model.schemas == [SCHEMA]
    assert '"摘要"' in model.asked[0][1]["content"], "an endpoint that can't constrain is told the schema"


async def test_the_tasks_own_schema_goes_before_the_roles() -> None:
    own = {"type": "object", "required": ["甲"]}
    assert schema_of(role(output_schema=SCHEMA), dispatch(output_schema=own)) == own


async def test_a_refused_delivery_is_told_once_with_its_path() -> None:
    model = ScriptedModel([says('{"摘要": "a", "条目": ["x"]}'), says('{"摘要": "a", "条目": [1]}')])
    outcome = await run(Store(), model, role_file=role(output_schema=SCHEMA))
    assert isinstance(outcome, Delivered)
    assert "$.条目[0]" in model.asked[1][-1]["content"]


async def test_refused_twice_is_a_failure_for_a_person() -> None:
    outcome = await run(Store(), ScriptedModel([says("没有"), says("没有")]), role_file=role(output_schema=SCHEMA))
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.retryable) == ("bad_delivery", False)


async def test_two_objects_in_one_answer_are_no_delivery() -> None:
    text = '{"摘要": "a", "条目": []} {"摘要": "b", "条目": []}'
    model = ScriptedModel([says(text), says('{"摘要": "b", "条目": []}')])
    outcome = await run(Store(), model, role_file=role(output_schema=SCHEMA))
    assert isinstance(outcome, Delivered)
    assert outcome.detail["result"]["摘要"] == "b"


async def test_a_verifier_delivers_a_verdict_and_never_a_result() -> None:
    text = '{"verdict": "rejected", "reasons": ["第 3 行不存在"], "checked": 4}'
    model = ScriptedModel([says(text)])
    outcome = await run(Store(), model, role_file=role(kind="verifier"), verifies="T0")
    assert isinstance(outcome, Delivered)
    assert {key: outcome.detail[key] for key in ("verdict", "verifies", "reasons", "findings")} == {
        "verdict": "rejected", "verifies": "T0", "reasons": ["第 3 行不存在"], "findings": {"checked": 4}
    }  # fmt: skip
    assert "result" not in outcome.detail
    assert model.schemas == [VERDICT_SCHEMA]


@pytest.mark.parametrize("verdict", ["insufficient", "不充分", "unconfirmed", "confirm", "", None, True])
def test_a_verdict_is_one_of_three_words(verdict: object) -> None:
    text = json.dumps({"verdict": verdict, "reasons": ["r"]})
    with pytest.raises(GateRefused):
        detail_of(text, {"type": "object"}, dispatch(verifies="T0"))


def test_subtasks_are_lifted_only_where_the_schema_knows_them() -> None:
    text = '{"result": 1, "subtasks": [{"id": "a", "role": "r", "prompt": "p"}]}'
    knows = {"type": "object", "properties": {"subtasks": {"type": "array"}}}
    assert detail_of(text, knows, dispatch())[0]["subtasks"] == [{"id": "a", "role": "r", "prompt": "p"}]
    assert "subtasks" not in detail_of(text, {"type": "object"}, dispatch())[0]


def test_a_schema_that_refers_elsewhere_is_not_fetched() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    with pytest.raises(TaskError, match="9/schema"):
        detail_of('{"a": 1}', schema, dispatch())


async def test_done_without_doing_is_told_once_then_delivered_as_unverified() -> None:
    model = ScriptedModel([says("做完了"), says("真的做完了")])
    outcome = await run(Store(), model, evidence=True)
    assert isinstance(outcome, Delivered)
    assert outcome.detail["unverified"]
    assert "finished tool call" in model.asked[1][-1]["content"]


async def test_named_evidence_is_the_tool_run_itself() -> None:
    model = ScriptedModel([says("做完了"), calls(("c1", "pay", {})), says("付了")])
    outcome = await run(Store(), model, CountedTools(), evidence=["pay"])
    assert isinstance(outcome, Delivered)
    assert "unverified" not in outcome.detail
