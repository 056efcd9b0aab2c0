"""What holds of every merge, whatever is merged."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.deliveries import comparable
from coordinator.merge import MergeInputs, merge
from protocol.record import canonical
from tests.unit.mergekit import inputs

MANY = settings(deadline=None, max_examples=150)


@MANY
@given(inputs(), st.randoms())
def test_the_order_of_the_input_does_not_matter(given_: MergeInputs, rng: random.Random):
    shuffled = replace(
        given_,
        deliveries=tuple(rng.sample(given_.deliveries, len(given_.deliveries))),
        verdicts=tuple(rng.sample(given_.verdicts, len(given_.verdicts))),
        standing=tuple(rng.sample(given_.standing, len(given_.standing))),
    )
    one, two = merge(given_), merge(shuffled)
    assert one.merge_id == two.merge_id
    assert (one.detail, one.plain(), one.markdown) == (two.detail, two.plain(), two.markdown)
    assert canonical(one.artifact) == canonical(two.artifact)


@MANY
@given(inputs())
def test_merging_twice_is_merging_once(given_: MergeInputs):
    assert merge(given_).merge_id == merge(given_).merge_id
    assert merge(given_, force=True).detail == merge(given_).detail
    kept = merge(given_)
    only = replace(given_, deliveries=tuple(d for d in given_.deliveries if d.task in kept.decided.kept), standing=())
    again = merge(only)
    assert again.decided.kept == kept.decided.kept, "what is kept has nothing left to resolve"
    assert not again.decided.conflicts
    assert not again.decided.deduped


@MANY
@given(inputs())
def test_no_task_disappears_unlisted(given_: MergeInputs):
    found = merge(given_).plain()
    listed = {*found["kept"], *found["deduped_from"], *found["empty"], *(r["task"] for r in found["not_delivered"])}
    in_conflicts = {task for entry in found["conflicts"] for task in entry["tasks"]}
    everyone = {d.task for d in given_.deliveries} | {task for task, _, _ in given_.standing}
    assert everyone == listed | in_conflicts
    tasks = [entry["task"] for entry in merge(given_).artifact["tasks"]]
    assert sorted(tasks) == sorted(d.task for d in given_.deliveries)
    for task in everyone:
        assert f"## {task}\n" in merge(given_).markdown
    in_overlaps = {task for entry in found["overlaps"] for task in entry["tasks"]}
    assert set(found["deduped_from"]) <= in_overlaps


@MANY
@given(inputs())
def test_nothing_rejected_is_delivered(given_: MergeInputs):
    found = merge(given_)
    rejected = {task for task, status in found.decided.status.items() if status == "rejected"}
    assert not rejected & set(found.decided.kept)
    assert rejected <= {row["task"] for row in found.plain()["not_delivered"]}
    assert all(item["verdict"] != "rejected" for item in found.artifact["items"])
    for entry in found.artifact["tasks"]:
        assert ("result" in entry) == (entry["task"] in found.decided.kept)


@MANY
@given(inputs())
def test_one_answer_a_question_and_every_pointer_leads_to_what_is_kept(given_: MergeInputs):
    found = merge(given_).decided
    for kept in found.deduped.values():
        assert kept in found.kept
    questions = [found.deliveries[task].question for task in found.kept]
    assert len(questions) == len(set(questions))
    texts = [comparable(found.deliveries[task].result) for task in found.kept]
    assert len(texts) == len(set(texts))
    for entry in found.overlaps:
        assert entry.kept in found.kept
        assert entry.kept in entry.tasks


@MANY
@given(inputs())
def test_every_item_of_every_list_is_told_once(given_: MergeInputs):
    found = merge(given_)
    parts = found.items
    told = [*parts.items, *parts.rejected, *parts.set_aside]
    assert len({item.key for item in told}) == len(told)
    findings = sum(len(item.findings) for item in told)
    assert findings == sum(parts.counts.values())
