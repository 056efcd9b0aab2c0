"""Lists merged item by item."""

from __future__ import annotations

from typing import Any

from tests.unit.mergekit import delivery, merged, verdict

KEY = ("file", "line", "rule")


def item(line: int, rule: str = "S113", tool: str = "ruff", **more: Any) -> dict[str, Any]:
    return {"file": "请求.py", "line": line, "rule": rule, "tool": tool, "message": "没有超时", **more}


def scan(task: str, *items: Any, order: int = 0, **more: Any) -> Any:
    return delivery(task, {"items": list(items), "scanned": 3}, order, prefix=task, merge_key=KEY, **more)


def entry(line: int, word: str, *reasons: str, rule: str = "S113") -> dict[str, Any]:
    return {"file": "请求.py", "line": line, "rule": rule, "verdict": word, "reasons": list(reasons)}


def of(found: Any, name: str = "items") -> dict[int, dict[str, Any]]:
    return {one["item"]["line"]: one for one in found.artifact[name]}


def test_equal_keys_are_one_item_with_everyone_who_found_it():
    found = merged(
        scan("bandit", item(3, tool="bandit"), item(9, tool="bandit"), role="bandit-scanner"),
        scan("ruff", item(3), item(5), order=1),
    )
    items = of(found)
    assert sorted(items) == [3, 5, 9]
    assert items[3]["key"] == {"file": "请求.py", "line": 3, "rule": "S113"}
    assert items[3]["found_by"] == [
        {"task": "bandit", "who": "master_bandit", "verdict": "unverified", "role": "bandit-scanner", "tool": "bandit"},
        {"task": "ruff", "who": "master_ruff", "verdict": "unverified", "tool": "ruff"},
    ]
    assert "differences" not in items[3]
    assert found.detail["items"] == {"delivered": 3, "rejected": 0, "set_aside": 0, "found_by_several": 1}


def test_differences_are_listed_with_who_says_what():
    found = merged(scan("A", item(3, severity="high")), scan("B", item(3, severity="low", cwe=78), order=1))
    assert of(found)[3]["differences"] == [
        {"field": "severity", "values": [{"value": "high", "tasks": ["A"]}, {"value": "low", "tasks": ["B"]}]}
    ]


def test_texts_that_are_compared_equal_are_no_difference():
    found = merged(scan("A", item(3, message="cafe\u0301 ")), scan("B", item(3, message="café"), order=1))
    assert "differences" not in of(found)[3]


def test_an_item_has_its_own_verdict_else_that_of_its_task():
    found = merged(
        scan("A", item(1), item(2), item(3)),
        verdict("A", "partial", items=(entry(1, "confirmed", "又见到了"), entry(2, "rejected", "测试文件")),
                reasons=("两条看过",)),
    )  # fmt: skip
    assert {line: (one["verdict"], one["reasons"]) for line, one in of(found).items()} == {
        1: ("confirmed", ["又见到了"]), 3: ("partial", ["两条看过"]),
    }  # fmt: skip
    assert of(found, "rejected_items")[2]["reasons"] == ["测试文件"]
    assert found.detail["items"]["rejected"] == 1


def test_the_best_verdict_of_all_who_found_it_counts_and_the_item_that_has_it_stands():
    found = merged(
        scan("A", item(3, message="一")), scan("B", item(3, message="二"), order=1),
        verdict("A", "partial", items=(entry(3, "rejected", "甲说不是"),)),
        verdict("B", "partial", items=(entry(3, "confirmed", "乙说是"),)),
    )  # fmt: skip
    one = of(found)[3]
    assert (one["verdict"], one["reasons"], one["item"]["message"]) == ("confirmed", ["乙说是"], "二")
    assert [row["verdict"] for row in one["found_by"]] == ["confirmed", "rejected"]
    assert [row["verdict"] for row in one["verdicts"]] == ["confirmed", "rejected"]
    assert found.artifact["rejected_items"] == []


def test_verifiers_that_disagree_about_an_item_make_it_partial():
    both = [verdict("A", "partial", who, items=(entry(3, word, word),)) for who, word in
            (("v1", "confirmed"), ("v2", "rejected"))]  # fmt: skip
    one = of(merged(scan("A", item(3)), *both))[3]
    assert one["verdict"] == "partial"
    assert one["reasons"] == ["confirmed", "rejected"]


def test_a_rejected_list_gives_no_item_whatever_is_said_of_single_ones():
    found = merged(
        scan("A", item(1), item(2)), scan("B", item(2), order=1),
        verdict("A", "rejected", reasons=("没有运行过",), items=(entry(1, "confirmed"),)),
    )  # fmt: skip
    assert sorted(of(found)) == [2]
    assert of(found)[2]["verdict"] == "unverified"
    assert of(found, "rejected_items")[1]["reasons"] == ["rejected by verifier_01: 没有运行过"]


def test_the_losing_try_gives_no_item_but_is_named_as_finder():
    found = merged(
        delivery("A_a", [item(1), item(2)], merge_key=KEY), delivery("A_b", [item(2)], 1, merge_key=KEY),
    )  # fmt: skip
    assert sorted(of(found)) == [2]
    assert [(row["task"], row.get("set_aside")) for row in of(found)[2]["found_by"]] == [("A_b", None), ("A_a", True)]
    assert sorted(of(found, "set_aside_items")) == [1]


def test_the_same_list_twice_keeps_both_finders():
    found = merged(scan("A", item(1, tool="x")), scan("B", item(1, tool="x"), order=1))
    assert found.plain()["deduped_from"] == ["A"]
    assert [row["task"] for row in of(found)[1]["found_by"]] == ["A", "B"]


def test_an_item_without_its_key_stands_for_itself():
    found = merged(scan("A", {"file": "a.py"}, "文字", "文字"), scan("B", {"file": "a.py"}, order=1))
    assert [(one["key"], one["item"], len(one["found_by"])) for one in found.artifact["items"]] == [
        (None, {"file": "a.py"}, 2), (None, "文字", 1),
    ]  # fmt: skip


def test_without_a_merge_key_a_list_is_one_result():
    found = merged(delivery("A", [item(1)]), delivery("B", {"items": [item(1)]}, 1))
    assert found.artifact["items"] == []
    assert "items" not in found.detail
    assert found.artifact["tasks"][0]["result"] == [item(1)]


def test_keys_of_different_kinds_are_different_items():
    found = merged(scan("A", item(1), item("1")), scan("B", item(True), order=1))  # type: ignore[arg-type]
    assert len(found.artifact["items"]) == 3


def test_the_task_keeps_what_is_beside_its_list():
    found = merged(scan("A", item(1), item(2)), verdict("A", "partial", items=(entry(2, "rejected"),)))
    task = found.artifact["tasks"][0]
    assert (task["result"], task["item_count"]) == ({"scanned": 3}, 2)
    assert "items" not in task["result"]


def test_in_the_markdown_each_item_stands_once_under_its_first_finder():
    found = merged(
        scan("A", item(3, tool="bandit"), title="扫描"), scan("B", item(3), item(4, message="# 标题\n- x"), order=1),
        verdict("B", "partial", items=(entry(4, "rejected", "测试文件"),)),
    )  # fmt: skip
    assert found.markdown.count("请求.py:3:S113 没有超时") == 1
    where = [found.markdown.index(text) for text in ("## 扫描 (A)", "found by ruff, bandit", "## B")]
    assert where == sorted(where)
    assert "1 item rejected:" in found.markdown
    assert "- 请求.py:4:S113 # 标题 - x (rejected: 测试文件; found by ruff)" in found.markdown
