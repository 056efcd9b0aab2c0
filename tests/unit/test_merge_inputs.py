"""From a log, or a file of deliveries, to what is merged."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.merge import merge, obstacles
from coordinator.mergeinputs import from_deliveries_file, from_records, needed_artifacts
from protocol.errors import Refused
from protocol.record import Json, Trace
from tests.unit.mergekit import log, record

SHA = "a" * 64


def run(task: str, result: Json = "甲", who: str = "coder_1", **more: Json) -> list[Any]:
    """A task from its dispatch to its delivery."""
    return [
        record(task, "task_assigned", "leader", "conv_1", role="coder", attempt=1, by={"flow": "plan"}, **more),
        record(task, "task_processing", who, attempt=1, worker=f"coder@h:1:{task}"),
        record(task, "task_completed", who, attempt=1, result=result),
    ]


def judged(task: str, word: str, who: str = "checker_1", **more: Json) -> list[Any]:
    name = f"{task}.verify" if who == "checker_1" else f"{task}.verify.{who}"
    return [
        record(name, "task_assigned", "leader", "conv_1", role="checker", attempt=1, verifies=task, plan_index=9),
        record(name, "task_completed", who, task, verdict=word, verifies=task, **more),
    ]


ROOT = record("conv_1", "task_started", "person", goal="审查", flow="plan")


def test_a_session_from_its_log():
    inputs = from_records(
        log(
            ROOT,
            *run("T2", "乙", plan_index=1, prefix="T1"),
            *run("T1", "甲", plan_index=0, prefix="T1", title="第一稿", merge_key=["file", "line"]),
            *judged("T1", "confirmed", reasons=["看过"], items=[{"file": "a", "line": 1, "verdict": "rejected"}]),
            record("DEC_finish", "decision", "leader", action="finish", by={}, why="完", status="completed"),
        )
    )
    one, two = inputs.deliveries
    assert (one.task, one.result, one.question, one.plan_index, one.role) == ("T2", "乙", "T1", 1, "coder")
    assert (two.title, two.merge_key, two.who) == ("第一稿", ("file", "line"), "coder_1")
    assert one.order < two.order
    verdict = inputs.verdicts[0]
    assert (verdict.task, verdict.verdict, verdict.who, verdict.reasons) == ("T1", "confirmed", "checker_1", ("看过",))
    assert verdict.items == ({"file": "a", "line": 1, "verdict": "rejected"},)
    assert (inputs.root, inputs.session, inputs.standing) == ("conv_1", "conv_1", ())
    assert inputs.plan_order == ("T1", "T2", "T1.verify")
    assert inputs.verifiers == {"T1.verify"}
    assert merge(inputs).plain()["kept"] == ["T1"]


def test_where_the_items_of_a_verdict_stand():
    items = [{"file": "a", "verdict": "partial"}]
    for more in ({"items": items}, {"findings": {"items": items}}, {"result": {"items": items}}):
        inputs = from_records(log(*run("T1"), *judged("T1", "partial", **more)))
        assert inputs.verdicts[0].items == tuple(items)
    spilled = log(*run("T1"), *judged("T1", "partial", artifact={"sha256": SHA, "size": 9}))
    assert from_records(spilled, resolve={SHA: {"items": items}}).verdicts[0].items == tuple(items)


def test_a_verdict_without_its_task_hangs_under_its_parent_and_a_word_nobody_knows_is_none():
    under_parent = record("V", "task_completed", "verifier_1", "T1", verdict="rejected")
    unknown = record("W", "task_completed", "verifier_2", "T1", verdict="sufficient", result="通过")
    inputs = from_records(log(*run("T1"), under_parent, unknown))
    assert [(v.task, v.verdict) for v in inputs.verdicts] == [("T1", "rejected")]
    assert [d.task for d in inputs.deliveries] == ["T1"]


def test_the_attempt_that_completed_is_the_delivery():
    inputs = from_records(
        log(
            record("T", "task_assigned", role="r", attempt=1),
            record("T", "task_failed", attempt=1, error={"kind": "x", "message": "断了"}),
            record("T", "task_retrying", attempt=2, delay_s=1, reason="断了"),
            record("T", "task_assigned", role="r", attempt=2),
            record("T", "task_completed", "coder_2", attempt=2, result="好"),
        )
    )
    assert [(d.task, d.who, d.result) for d in inputs.deliveries] == [("T", "coder_2", "好")]
    assert obstacles(inputs) == ()


def test_a_result_that_a_person_accepted_is_a_delivery():
    blocked = record("T", "task_blocked", requires_human_intervention=True, reason="没有权限")
    accepted = record("DEC_1", "decision", "zhang@h", action="accept", task="T", result="手工", by="zhang", why="够了")
    waiting = from_records(log(blocked))
    assert obstacles(waiting) == (("T", "blocked: 没有权限"),)
    inputs = from_records(log(blocked, accepted))
    assert [(d.who, d.result) for d in inputs.deliveries] == [("zhang@h", "手工")]
    assert obstacles(inputs) == ()
    without = from_records(log(blocked, record("DEC_1", "decision", action="accept", task="T", by="z", why="")))
    assert merge(without).plain()["empty"] == ["T"]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([record("T", "task_pending", role="r")], (("T", "pending"),)),
        ([record("T", "task_pending", role="r", waiting_for="ASK_1")],
         (("T", "waiting: it waits for the answer to ASK_1"),)),
        ([record("T", "task_failed", error={"kind": "k", "message": "坏"})], (("T", "failed: 坏"),)),
        ([record("T", "task_agent_lost", agent="m_1", last_seen=1)], (("T", "lost: its agent m_1 is lost"),)),
        ([record("m_1", "task_agent_lost", agent="m_1", last_seen=1)], ()),
        ([ROOT], ()),
        ([record("V", "task_pending", role="c", verifies="T")], ()),
        ([record("V", "task_processing", "verifier_01", attempt=1, worker="w")], (("V", "processing"),)),
        ([record("V", "task_started", "verifier_01")], ()),
        ([record("T", "task_started", "master_01")], (("T", "started"),)),
    ],
)  # fmt: skip
def test_what_stands_in_the_way(records, expected):
    assert obstacles(from_records(log(*records))) == expected


def test_the_kind_of_a_role_goes_before_the_name_of_an_agent():
    records = log(record("T", "task_started", "verifier_01", role="author"))
    assert obstacles(from_records(records)) == ()
    assert obstacles(from_records(records, roles={"author": {"kind": "master"}})) == (("T", "started"),)


def test_the_merge_key_of_the_role_serves_where_the_task_has_none():
    roles = {"coder": {"kind": "master", "merge_key": ["file", "line"]}}
    assert from_records(log(*run("T1")), roles=roles).deliveries[0].merge_key == ("file", "line")
    assert from_records(log(*run("T1", merge_key=["rule"])), roles=roles).deliveries[0].merge_key == ("rule",)


def test_what_the_flow_read_itself_is_no_result_but_is_listed():
    planner = run("plan.1", {"tasks": []}, "planner_1", purpose="plan")
    note = record("V", "task_completed", "verifier_1", result="看起来不错")
    inputs = from_records(log(ROOT, *planner, *run("T1"), note))
    assert [d.task for d in inputs.deliveries] == ["T1"]
    assert merge(inputs).detail["not_results"] == [
        {"task": "plan.1", "reason": "the flow has read it (plan)"},
        {"task": "V", "reason": "a verifier's task without a verdict"},
    ]


def test_a_cancelled_task_is_told_with_its_reason():
    cancelled = record("DEC_2", "decision", action="cancel", task="T2", by="z", why="重复了")
    inputs = from_records(log(*run("T1"), record("T2", "task_pending", role="r", prefix="T1"), cancelled))
    assert inputs.standing == (("T2", "cancelled", "重复了"),)
    found = merge(inputs)
    assert found.detail["not_delivered"] == [{"task": "T2", "reason": "cancelled: 重复了"}]
    assert found.status == "delivered", "another try at the same question was delivered"


def test_the_last_finish_counts_and_a_resume_takes_it_back():
    finish = record("DEC_f1", "decision", "leader", action="finish", status="partial", by={}, why="",
                    missing=[{"task": "T2", "reason": "not run, cause T0", "cause": "T0"}])  # fmt: skip
    records = [ROOT, *run("T1"), record("T2", "task_pending", role="r"), finish]
    inputs = from_records(log(*records))
    assert (inputs.finish_status, inputs.missing) == ("partial", (("T2", "not run, cause T0"),))
    assert merge(inputs, force=True).detail["missing"] == [{"task": "T2", "reason": "not run, cause T0"}]
    resumed = from_records(log(*records, record("DEC_r", "decision", action="resume", by="z", why="")))
    assert (resumed.finish_status, resumed.missing) == ("", ())


def test_what_came_after_and_says_nothing_new_is_no_news():
    records = [*run("T1"), *judged("T1", "confirmed")]
    before = merge(from_records(log(*records)))
    later = record("HB_1", "heartbeat", current_task=None, status="idle", progress=None)
    later = later.model_copy(update={"trace": Trace(parent_id=None, session_id="sess_2")})
    after = merge(from_records(log(*records, later, record(before.merge_id, "task_merged", **before.detail))))
    assert (after.merge_id, after.detail) == (before.merge_id, before.detail)
    news = merge(from_records(log(*records, *judged("T1", "rejected", "checker_2"))))
    assert news.merge_id != before.merge_id


class TestArtifacts:
    LARGE = (
        record("T1", "task_completed", artifact={"sha256": SHA, "size": 900_000}),
        record("T2", "task_completed", result="小", artifact={"sha256": "b" * 64, "size": 1}),
        record("T3", "task_blocked", requires_human_intervention=True, reason="x"),
        record("DEC_3", "decision", action="accept", task="T3", by="z", why="", artifact={"sha256": "c" * 64}),
    )  # fmt: skip

    def test_those_that_are_needed(self):
        assert needed_artifacts(self.LARGE) == [SHA, "c" * 64]

    def test_they_are_put_in_place(self):
        inputs = from_records(log(*self.LARGE), resolve={SHA: "大", "c" * 64: [1]})
        assert [d.result for d in inputs.deliveries] == ["大", "小", [1]]

    def test_one_that_is_gone_is_told_and_does_not_hold_up_the_merge(self):
        inputs = from_records(log(*self.LARGE), resolve={"c" * 64: [1]})
        found = merge(inputs)
        assert found.status == "partial"
        assert [row["task"] for row in found.detail["not_delivered"]] == ["T1"]
        assert SHA in found.detail["not_delivered"][0]["reason"]

    def test_without_their_content_they_stand_for_themselves(self):
        same = record("T4", "task_completed", artifact={"sha256": SHA, "size": 900_000})
        found = merge(from_records(log(*self.LARGE, same))).plain()
        assert found["overlaps"] == [{"tasks": ["T1", "T4"], "type": "identical", "kept": "T4"}]


DELIVERY: dict[str, Any] = {"task": "T1", "who": "master_1", "time": 5, "result": "甲"}
VERDICT: dict[str, Any] = {"task": "T1", "verdict": "confirmed", "who": "v", "time": 6}


@pytest.mark.parametrize(
    ("given", "path", "message"),
    [
        ([], "$", "must be an object, not a list"),
        ({}, "deliveries", "is missing"),
        ({"deliveries": {}}, "deliveries", "must be a list, not an object"),
        ({"deliveries": ["x"]}, "deliveries[0]", "must be an object, not a text"),
        ({"deliveries": [DELIVERY, {**DELIVERY, "task": ""}]}, "deliveries[1].task", "an empty text"),
        ({"deliveries": [{**DELIVERY, "task": "任务"}]}, "deliveries[0].task", "no task id"),
        ({"deliveries": [{**DELIVERY, "who": None}]}, "deliveries[0].who", "not null"),
        ({"deliveries": [{k: v for k, v in DELIVERY.items() if k != "who"}]}, "deliveries[0].who", "is missing"),
        ({"deliveries": [{**DELIVERY, "time": True}]}, "deliveries[0].time", "not True"),
        ({"deliveries": [{**DELIVERY, "time": 1.5}]}, "deliveries[0].time", "not 1.5"),
        ({"deliveries": [{**DELIVERY, "time": -1}]}, "deliveries[0].time", "not -1"),
        ({"deliveries": [{**DELIVERY, "prefix": 3}]}, "deliveries[0].prefix", "not a number"),
        ({"deliveries": [{**DELIVERY, "merge_key": "line"}]}, "deliveries[0].merge_key", "list of field names"),
        ({"deliveries": [{**DELIVERY, "result": {"a\ud800": 1}}]}, "deliveries[0].result", "not a JSON value"),
        ({"deliveries": [DELIVERY, {**DELIVERY, "result": "乙"}]}, "deliveries[1].task", "delivered already"),
        ({"deliveries": [], "verdicts": "x"}, "verdicts", "must be a list"),
        ({"deliveries": [], "verdicts": [{**VERDICT, "verdict": "ok"}]}, "verdicts[0].verdict", "'ok' is none of"),
        ({"deliveries": [], "verdicts": [{**VERDICT, "reasons": "x"}]}, "verdicts[0].reasons", "list of texts"),
        ({"deliveries": [], "verdicts": [{**VERDICT, "items": [1]}]}, "verdicts[0].items", "list of objects"),
        ({"deliveries": [], "policy": []}, "policy", "not a list"),
    ],
)  # fmt: skip
def test_a_wrong_field_of_a_file_is_named_by_its_path(given, path, message):
    with pytest.raises(Refused, match="the shape is") as refused:
        from_deliveries_file(given)
    assert refused.value.path == path
    assert refused.value.message.startswith(f"{path}: ")
    assert message in refused.value.message


def test_the_same_delivery_twice_is_one():
    twice = [{**DELIVERY, "time": 9}, DELIVERY]
    for rows in (twice, twice[::-1]):
        inputs = from_deliveries_file({"deliveries": rows})
        assert [(d.task, d.time) for d in inputs.deliveries] == [("T1", 5)]


def test_a_file_may_say_more():
    items = [{"line": 1, "verdict": "rejected", "reasons": ["否"]}]
    found = merge(
        from_deliveries_file(
            {
                "deliveries": [{**DELIVERY, "result": [{"line": 1}, {"line": 2}], "merge_key": ["line"], "note": 1}],
                "verdicts": [{**VERDICT, "verdict": "partial", "items": items}],
                "policy": {"disagreement": "newest"},
                "session": "conv_9",
            }
        )
    ).plain()
    assert [one["key"] for one in found["items"]] == [{"line": 2}]
    assert [one["reasons"] for one in found["rejected_items"]] == [["否"]]


def test_an_empty_file_of_deliveries_merges_to_nothing_and_says_so():
    assert merge(from_deliveries_file({"deliveries": []})).plain()["status"] == "partial"
