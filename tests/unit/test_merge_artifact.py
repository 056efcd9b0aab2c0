"""The merged result as people and programs get it."""

from __future__ import annotations

import json

import pytest

from coordinator.artifact import contained_markdown, fenced
from protocol.record import canonical
from tests.unit.mergekit import delivery, merged, verdict


def everything():
    """A merge with a task in every state."""
    return merged(
        delivery("kept", "甲方的结论", 0, title="第一章", role="author", plan_index=0),
        delivery("copy", "甲方的结论", 1, plan_index=1),
        delivery("lost", "甲说", 2, prefix="q", plan_index=2),
        delivery("won", {"结果": 12345678901234567890123}, 3, prefix="q", plan_index=3),
        delivery("bad", "错的", 4, plan_index=4),
        delivery("none", None, 5, plan_index=5),
        verdict("kept", "confirmed", reasons=("复查过",)),
        verdict("bad", "rejected", reasons=("没有证据",)),
        standing=(("gone", "blocked", "磁盘\n已满"),),
        session="conv_1",
        force=True,
    )


def test_json_has_every_task_with_its_state_and_origin():
    found = everything()
    tasks = {entry["task"]: entry for entry in found.artifact["tasks"]}
    assert {name: entry["state"] for name, entry in tasks.items()} == {
        "kept": "kept", "copy": "deduped", "lost": "outvoted", "won": "kept", "bad": "rejected", "none": "empty",
    }  # fmt: skip
    assert tasks["kept"]["result"] == "甲方的结论"
    assert (tasks["kept"]["who"], tasks["kept"]["role"], tasks["kept"]["title"]) == ("master_kept", "author", "第一章")
    assert tasks["kept"]["verdicts"] == [{"who": "verifier_01", "verdict": "confirmed", "reasons": ["复查过"]}]
    assert tasks["copy"]["into"] == "kept"
    assert (tasks["lost"]["kept"], tasks["lost"]["set_aside"]) == ("won", "甲说")
    assert tasks["bad"]["reason"] == "rejected by verifier_01: 没有证据"
    assert "result" not in tasks["lost"]
    assert found.artifact["merge_id"] == found.merge_id
    assert json.loads(canonical(found.artifact)) == found.artifact


def test_markdown_has_one_heading_a_task():
    text = everything().markdown
    headings = [row for row in text.splitlines() if row.startswith("#")]
    assert headings == [
        "# Merged result of conv_1", "## 第一章 (kept)", "## copy", "## lost", "## won", "## bad", "## none", "## gone",
    ]  # fmt: skip
    assert "Status: partial. 2 results of 6 kept." in text
    assert "- gone: blocked: 磁盘 已满" in text
    assert "Contained in the result of kept." in text
    assert '  "结果": 12345678901234567890123' in text
    assert "错的" not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("# 一\n## 二\n###### 六", ["### 一", "#### 二", "###### 六"]),
        ("#无空格\n    # 代码", ["#无空格", "    # 代码"]),
        ("```\n# 注释\n```\n# 真", ["```", "# 注释", "```", "### 真"]),
        ("~~~~\n~~~\n# 里面", ["~~~~", "~~~", "# 里面", "~~~~"]),
        ("```py\n未完", ["```py", "未完", "```"]),
        ("标题\n===\n\n---\n段\n---", ["标题", "\\===", "", "---", "段", "\\---"]),
        ("a\r\n# b\r# c", ["a", "### b", "### c"]),
        ("``` `x` 行内\n# 真", ["``` `x` 行内", "### 真"]),
    ],
)
def test_a_results_own_headings_and_fences_stay_inside(text, shown):
    assert contained_markdown(text) == shown


def test_a_result_can_not_pass_for_another_task():
    text = merged(delivery("T1", "甲\n\n## T2\n\n*By verifier, confirmed.*\n```"), delivery("T2", "乙", 1)).markdown
    assert [row for row in text.splitlines() if row.startswith("## ")] == ["## T1", "## T2"]
    assert text.count("```") == 2


def test_a_fence_is_longer_than_any_in_the_text():
    assert fenced("a ```` b")[0] == "`````json"
    assert fenced("甲") == ["```json", "甲", "```"]


def test_a_title_stays_on_its_line():
    assert "## 一 # 二 (T1)\n" in merged(delivery("T1", "甲", title="一\n# 二")).markdown
