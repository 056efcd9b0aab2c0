"""Verdicts, conflicts, identical and contained results; what stands in a merge's way; the record."""

from __future__ import annotations

import pytest

from coordinator.merge import MergeInputs, merge, merge_id, obstacles
from coordinator.mergeinputs import prefix_of
from protocol.errors import MergeRefused, Refused
from protocol.record import DETAIL_MAX_BYTES, Json, canonical
from tests.unit.mergekit import delivery, merged, verdict


@pytest.mark.parametrize(
    ("task", "prefix"),
    [
        ("TASK_001_a", "TASK_001"), ("TASK_001/left", "TASK_001"), ("TASK_001#2", "TASK_001"), ("TASK_001", "TASK_001"),
        ("TASK_ab", "TASK_ab"), ("T_a_b", "T_a"), ("a/b/c", "a/b"), ("T/x_a", "T/x"), ("_a", "_a"), ("T/", "T/"),
    ],
)  # fmt: skip
def test_the_prefix_of_a_hand_written_id(task, prefix):
    assert prefix_of(task) == prefix


def test_slices_of_a_plan_are_no_alternatives_whatever_their_names():
    found = merged(delivery("part_a", "甲", prefix="part_a"), delivery("part_b", "乙", 1, prefix="part_b"))
    assert found.plain()["kept"] == ["part_a", "part_b"]
    assert found.plain()["conflicts"] == []


def test_hand_written_tries_are_alternatives_by_their_ids():
    found = merged(delivery("T_a", "开放", 2), delivery("T_b", "关闭", 1)).plain()
    assert found["conflicts"] == [{"tasks": ["T_a", "T_b"], "kept": "T_a"}]
    assert found["kept"] == ["T_a"]


class TestVerdicts:
    def status(self, *verdicts, policy=None):
        found = merged(delivery("T", "甲", who="master_1"), *verdicts, policy=policy or {})
        return found.detail["verification_status"]["T"]

    def test_none_is_unverified(self):
        assert self.status() == "unverified"

    def test_the_newest_of_each_verifier_counts(self):
        both = (verdict("T", "rejected", order=5), verdict("T", "confirmed", order=9))
        assert self.status(*both) == self.status(*reversed(both)) == "confirmed"

    def test_nobody_judges_his_own_work(self):
        assert self.status(verdict("T", "confirmed", "master_1")) == "unverified"
        assert self.status(verdict("T", "rejected", "master_1"), verdict("T", "confirmed", "v")) == "confirmed"

    def test_verifiers_that_disagree_make_it_partial(self):
        two = (verdict("T", "confirmed", "v1", 5), verdict("T", "rejected", "v2", 6))
        assert self.status(*two) == "partial"
        assert self.status(*two, policy={"disagreement": "rejected"}) == "rejected"
        assert self.status(*two, policy={"disagreement": "newest"}) == "rejected"
        assert self.status(*reversed(two), policy={"disagreement": "newest"}) == "rejected"

    def test_a_policy_nobody_knows_is_refused_by_its_path(self):
        with pytest.raises(Refused, match=r"policy\.disagreement: 'vote'"):
            merged(policy={"disagreement": "vote"})


class TestRejected:
    def test_it_is_never_delivered_also_when_it_is_all_there_is(self):
        found = merged(delivery("T", "秘密的错误结论"), verdict("T", "rejected", reasons=("没有证据",)))
        assert found.plain()["not_delivered"] == [{"task": "T", "reason": "rejected by verifier_01: 没有证据"}]
        assert found.plain()["kept"] == []
        assert found.status == "partial"
        assert "错误结论" not in found.markdown + str(found.artifact) + str(found.detail)

    def test_a_repeated_answer_to_the_same_question_is_no_better(self):
        found = merged(delivery("T_a", "甲"), delivery("T_b", "甲 ", 1), verdict("T_a", "rejected"))
        assert found.plain()["kept"] == []
        assert [row["task"] for row in found.plain()["not_delivered"]] == ["T_a", "T_b"]

    def test_the_same_text_of_another_task_is_judged_for_itself(self):
        found = merged(delivery("T1", "无发现"), delivery("T2", "无发现", 1), verdict("T1", "rejected"))
        assert found.plain()["kept"] == ["T2"]
        assert found.status == "partial"

    def test_a_question_that_another_try_answered_is_delivered(self):
        found = merged(delivery("T_a", "甲"), delivery("T_b", "乙", 1), verdict("T_b", "rejected"))
        assert found.status == "delivered"
        assert found.plain()["conflicts"] == [{"tasks": ["T_a", "T_b"], "kept": "T_a"}]


class TestComparison:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("cafe\u0301", "café"), ("한국", "\u1112\u1161\u11ab\u1100\u116e\u11a8"), ("甲 \r\n乙\t", "甲\n乙"),
            ("甲\n", "甲"), ({"b": 1, "a": "e\u0301"}, {"a": "é", "b": 1}),
        ],
    )  # fmt: skip
    def test_the_same(self, one, other):
        found = merged(delivery("T1", one), delivery("T2", other, 1)).plain()
        assert [entry["type"] for entry in found["overlaps"]] == ["identical"]
        assert found["kept"] == ["T2"]

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (" 甲", "甲乙"), ("甲  乙", "甲 乙"), ("A", "a"), ("１", "1"), (1, "1"), (1, 1.0), (True, 1), ([1], [[1]]),
            ("a", ["a"]),
        ],
    )  # fmt: skip
    def test_not_the_same_and_not_contained(self, one, other):
        assert merged(delivery("T1", one), delivery("T2", other, 1)).plain()["overlaps"] == []

    def test_empty_results_are_reported_and_contained_nowhere(self):
        results: list[Json] = [None, "", " \n", "甲", [], {}]
        found = merged(*(delivery(f"T{n}", result, n) for n, result in enumerate(results))).plain()
        assert found["empty"] == ["T0", "T1", "T2"]
        assert found["kept"] == ["T3", "T4", "T5"]
        assert found["overlaps"] == []

    def test_an_empty_try_is_no_rival(self):
        found = merged(delivery("T_a", "甲"), delivery("T_b", "", 1), verdict("T_b", "confirmed")).plain()
        assert (found["kept"], found["conflicts"], found["empty"]) == (["T_a"], [], ["T_b"])


class TestOverlaps:
    def test_a_chain_with_copies_collapses_once(self):
        texts = ["甲", "甲乙", "甲乙丙", "甲", "甲乙丙"]
        found = merged(*(delivery(f"T{n}", text, n) for n, text in enumerate(texts))).plain()
        assert found["kept"] == ["T4"]
        assert found["deduped_from"] == ["T0", "T1", "T2", "T3"]
        assert found["overlaps"] == [
            {"tasks": ["T0", "T1", "T3", "T4"], "type": "overlap", "kept": "T4"},
            {"tasks": ["T2", "T4"], "type": "identical", "kept": "T4"},
        ]

    def test_a_confirmed_short_one_is_not_replaced_by_an_unverified_long_one(self):
        found = merged(delivery("T1", "短"), delivery("T2", "短，外加推测", 1), verdict("T1", "confirmed")).plain()
        assert found["kept"] == ["T1", "T2"]
        assert found["overlaps"] == [{"tasks": ["T1", "T2"], "type": "overlap", "kept": "T1", "also_kept": ["T2"]}]

    def test_but_by_a_confirmed_one(self):
        both = (verdict("T1", "confirmed"), verdict("T2", "confirmed"))
        found = merged(delivery("T1", "短"), delivery("T2", "短，已证实", 1), *both).plain()
        assert found["kept"] == ["T2"]

    def test_tries_at_one_question_are_a_conflict_though_one_contains_the_other(self):
        found = merged(delivery("T_a", "未通过"), delivery("T_b", "通过", 1)).plain()
        assert found["conflicts"] == [{"tasks": ["T_a", "T_b"], "kept": "T_b"}]
        assert found["overlaps"] == []

    def test_who_lost_a_conflict_takes_nothing_along(self):
        found = merged(delivery("T1_a", "甲"), delivery("T1_b", "乙", 1), delivery("T2", "甲", 2)).plain()
        assert found["kept"] == ["T1_b", "T2"]
        assert found["deduped_from"] == []


class TestObstacles:
    STANDING = (
        ("T2", "blocked", "磁盘已满"), ("T10", "processing", ""), ("T3", "cancelled", "不要了"), ("V1", "pending", ""),
        ("V2", "lost", "its agent is lost"), ("T4", "pending", ""),
    )  # fmt: skip

    def inputs(self, **more):
        values = {"standing": self.STANDING, "verifiers": frozenset({"V1", "V2"}), **more}
        return MergeInputs((delivery("T1", "甲"),), **values)

    def test_all_of_them_are_named(self):
        expected = (
            ("T2", "blocked: 磁盘已满"), ("T4", "pending"), ("T10", "processing"), ("V2", "lost: its agent is lost"),
        )  # fmt: skip
        assert obstacles(self.inputs()) == expected
        with pytest.raises(MergeRefused, match="'T2' is blocked: 磁盘已满") as refused:
            merge(self.inputs())
        assert refused.value.obstacles == expected

    def test_in_plan_order_where_there_is_a_plan(self):
        found = obstacles(self.inputs(plan_order=("T1", "T10", "T4", "T2", "V2")))
        assert [task for task, _ in found] == ["T10", "T4", "T2", "V2"]

    def test_force_merges_what_is_there_and_says_what_is_missing(self):
        found = merge(self.inputs(), force=True)
        assert found.status == "partial"
        assert [row["task"] for row in found.detail["missing"]] == ["T2", "T4", "T10", "V2"]
        assert found.detail["not_delivered"] == [
            {"task": "T2", "reason": "blocked: 磁盘已满"}, {"task": "T3", "reason": "cancelled: 不要了"},
            {"task": "T4", "reason": "pending"}, {"task": "T10", "reason": "processing"},
        ]  # fmt: skip

    def test_force_without_obstacles_changes_nothing(self):
        whole = MergeInputs((delivery("T1", "甲"),))
        assert merge(whole, force=True).detail == merge(whole).detail
        assert merge(whole).status == "delivered"

    def test_a_cancelled_task_leaves_a_partial_result_unless_another_try_answered(self):
        assert merged(delivery("T1", "甲"), standing=(("T2", "cancelled", ""),)).status == "partial"
        other = merged(delivery("T1", "甲"), standing=(("T9", "cancelled", ""),), prefixes={"T9": "T1"})
        assert other.status == "delivered"
        assert other.detail["not_delivered"] == [{"task": "T9", "reason": "cancelled"}]

    def test_what_the_flow_says_is_missing_is_missing(self):
        missing = (("T2", "not run, cause T0"), ("T1", "delivered after all"))
        found = merged(delivery("T1", "甲"), finish_status="partial", missing=missing)
        assert found.detail["missing"] == [{"task": "T2", "reason": "not run, cause T0"}]
        assert found.detail["not_delivered"] == found.detail["missing"]
        assert found.status == "partial"


class TestRecord:
    def test_plan_order_else_server_order(self):
        parts = (delivery("end", "丙", 0), delivery("start", "甲", 2), delivery("extra", "丁", 1))
        assert merged(*parts).merge_order == ("end", "extra", "start")
        assert merged(*parts, plan_order=("start", "end")).merge_order == ("start", "end", "extra")
        indexed = (delivery("end", "丙", 0, plan_index=1), delivery("start", "甲", 2, plan_index=0))
        assert merged(*indexed).merge_order == ("start", "end")

    def test_the_id_follows_the_inputs_and_no_clock(self):
        base = MergeInputs((delivery("T1", "甲"), delivery("T2", "乙", 1)), (verdict("T1", "partial"),))
        later = MergeInputs((delivery("T2", "乙", 1, time=5), delivery("T1", "甲", time=9)), base.verdicts)
        assert merge_id(base) == merge_id(later)
        assert merge_id(base).startswith("MERGE_")
        news = [
            MergeInputs((delivery("T1", "甲"), delivery("T2", "丙", 1)), base.verdicts),
            MergeInputs(base.deliveries, (verdict("T1", "confirmed"),)),
            MergeInputs(base.deliveries, (*base.verdicts, verdict("T2", "confirmed"))),
            MergeInputs(base.deliveries, base.verdicts, policy={"disagreement": "newest"}),
            MergeInputs(base.deliveries, base.verdicts, standing=(("T3", "cancelled", ""),)),
            MergeInputs((delivery("T1", "甲", 2), delivery("T2", "乙", 1)), base.verdicts),
        ]
        assert len({merge_id(one) for one in (base, *news)}) == 7

    def test_a_verdict_that_says_the_same_again_is_no_news(self):
        once = MergeInputs((delivery("T1", "甲"),), (verdict("T1", "partial", order=3),))
        twice = MergeInputs(once.deliveries, (*once.verdicts, verdict("T1", "partial", order=7)))
        assert merge_id(once) == merge_id(twice)

    def test_long_lists_are_cut_in_the_record_and_whole_in_the_artifact(self):
        many = [delivery(f"T{n}", "甲" if n % 2 else f"第{n}份", n) for n in range(500)]
        found = merged(*many, *(verdict(f"T{n}", "rejected", reasons=("长" * 2_000,)) for n in range(0, 400, 2)))
        assert len(found.detail["source_tasks"]) == 100
        assert found.detail["counts"]["source_tasks"] == 500
        assert found.detail["counts"]["not_delivered"] == 200
        assert found.detail["overlaps"][0]["tasks_count"] == 250
        assert len(found.detail["not_delivered"][0]["reason"]) == 300
        assert len(canonical(found.detail)) < DETAIL_MAX_BYTES
        assert len(found.artifact["source_tasks"]) == 500
        assert len(found.artifact["overlaps"][0]["tasks"]) == 250
        assert len(found.artifact["not_delivered"][0]["reason"]) > 2_000

    def test_the_longest_ids_fit_into_a_record_too(self):
        many = [delivery(f"T{n:04}{'x' * 195}", "甲" if n % 3 else f"第{n}份。甲", n) for n in range(2_000)]
        assert len(canonical(merged(*many).detail)) < DETAIL_MAX_BYTES

    def test_each_decision_says_why(self):
        found = merged(
            delivery("T1_a", "甲"), delivery("T1_b", "乙", 1), delivery("T2", "丙", 2), delivery("T3", "丙丁", 3),
            delivery("T4", "戊", 4), verdict("T1_a", "confirmed"), verdict("T4", "rejected"),
        )  # fmt: skip
        assert [(row["kind"], row["kept"], row["why"]) for row in found.decisions] == [
            ("rejected", None, "rejected by verifier_01"),
            ("conflict", "T1_a", "confirmed"),
            ("overlap", "T3", "the more complete one"),
        ]
