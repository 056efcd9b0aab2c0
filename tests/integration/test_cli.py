"""Records by the command line on a real server: spaces, the gates, reading, status, summary, merge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.cli_support import SPACE, Cli, record


def test_a_space_is_made_once_and_listed(cli: Cli) -> None:
    assert cli("create-task-space", SPACE, "--title", "代码审查", "--json").json == {"space": SPACE, "created": True}
    again = cli("create-task-space", SPACE)
    assert "already there" in again.out
    rows = cli("list-tasks", "--json").json["spaces"]
    assert [(row["space"], row["kind"], row["title"]) for row in rows] == [(SPACE, "hand", "代码审查")]
    assert "代码审查" in cli("list-tasks").out


def test_a_name_that_can_be_no_key_is_refused(cli: Cli) -> None:
    assert "空间" in cli("create-task-space", "空间", expect=2).err


def test_a_messy_answer_goes_through_the_gates_and_is_read_back_whole(cli: Cli) -> None:
    cli("create-task-space", SPACE)
    messy = (
        "好的，结果如下：\n```json\n{“who”: “master_docs_01”, “event”: “task_completed”, "
        '"detail": {"result": "三条结论",},}\n```'
    )
    added = cli("add-record", "--space", SPACE, "--json", stdin=messy)
    assert added.json["outcome"] == "added"
    assert "trailing comma" in added.err
    page = cli("read-records", "--space", SPACE).json
    assert page["entries"] == [added.json["entry"]]
    stored = page["records"][0]
    assert set(stored) == {"id", "who", "time", "event", "what", "detail", "trace"}
    assert stored["detail"]["result"] == "三条结论"
    assert stored["trace"] == {"parent_id": None, "session_id": SPACE}
    assert page["more"] is False


def test_the_same_record_twice_is_one_record_and_the_second_says_so(cli: Cli) -> None:
    cli("create-task-space", SPACE)
    first = cli("add-record", "--space", SPACE, stdin=record("task_started"))
    second = cli("add-record", "--space", SPACE, stdin=record("task_started"))
    assert first.out.startswith("added  ")
    assert second.out.startswith("already there  ")
    assert first.out.split()[1] == second.out.split()[2]


def test_a_gate_refusal_names_the_field_and_leaves_a_violation_with_the_raw_text(cli: Cli) -> None:
    cli("create-task-space", SPACE)
    text = '{"who": "master_1", "event": "完成", "detail": {}}'
    said = cli("add-record", "--space", SPACE, "--json", stdin=text, expect=1)
    assert said.json["outcome"] == "refused"
    assert said.json["reason"] == "gate_3"
    assert "event:" in said.err
    page = cli("read-records", "--space", SPACE, "--event", "protocol_violation").json
    assert page["entries"] == [said.json["entry"]]
    assert page["records"][0]["detail"]["raw"] == text
    assert page["records"][0]["detail"]["reason"] == "gate_3"
    cli("add-record", "--space", SPACE, stdin=text, expect=1)
    assert len(cli("read-records", "--space", SPACE).json["records"]) == 1, "the same refusal is one record"


def test_a_refused_record_of_a_list_hides_none_of_the_others(cli: Cli) -> None:
    cli("create-task-space", SPACE)
    some = f'[{record("task_started", "T1")}, {{"who": "x", "event": "nonsense"}}, {record("task_started", "T2")}]'
    said = cli("add-record", "--space", SPACE, "--json", stdin=some, expect=1)
    assert [row["outcome"] for row in said.json] == ["added", "refused", "added"]
    assert [row["id"] for row in said.json][::2] == ["T1", "T2"]


def test_an_illegal_transition_names_both_states(cli: Cli) -> None:
    cli("create-task-space", SPACE)
    cli("add-record", "--space", SPACE, stdin=record("task_completed", result=1))
    said = cli(
        "add-record", "--space", SPACE, "--json", stdin=record("task_processing", attempt=1, worker="w"), expect=1
    )
    assert said.json["reason"] == "illegal_transition"
    assert "'completed'" in said.json["message"]
    assert "'processing'" in said.json["message"]


def test_strict_refuses_what_would_be_changed(cli: Cli) -> None:
    cli("create-task-space", SPACE)
    cli("add-record", "--space", SPACE, "--strict", stdin=record("task_started"), expect=1)


def test_bytes_that_are_no_text_are_refused_and_kept(cli: Cli) -> None:
    cli("create-task-space", SPACE)
    said = cli("add-record", "--space", SPACE, "--json", stdin=b"\xff\xfe\x00{", expect=1)
    assert said.json["reason"] == "gate_1"
    assert len(cli("read-records", "--space", SPACE).json["records"]) == 1


def test_following_the_cursor_never_skips_and_never_repeats(cli: Cli) -> None:
    cli("create-task-space", SPACE)
    tasks = [f"T{n}" for n in range(7)]
    cli("add-record", "--space", SPACE, stdin=f"[{','.join(record('task_started', task) for task in tasks)}]")
    seen: list[str] = []
    cursor, more = "0", True
    while more:
        page = cli("read-records", "--space", SPACE, "--since", cursor, "--limit", "3").json
        seen += [row["id"] for row in page["records"]]
        cursor, more = page["next"], page["more"]
    assert seen == tasks
    cli("add-record", "--space", SPACE, stdin=record("task_started", "T8"))
    page = cli("read-records", "--space", SPACE, "--since", cursor).json
    assert [row["id"] for row in page["records"]] == ["T8"]


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        (["--who", "master_*"], ["A"]),
        (["--who", "verifier_1"], ["B"]),
        (["--event", "task_completed"], ["B"]),
        ([], ["A", "B"]),
    ],
)
def test_filters(filters: list[str], ids: list[str], cli: Cli) -> None:
    cli("create-task-space", SPACE)
    cli("add-record", "--space", SPACE, stdin=record("task_started", "A", "master_1"))
    verdict = {"verdict": "confirmed", "verifies": "A", "reasons": ["复核"], "result": None}
    cli("add-record", "--space", SPACE, stdin=record("task_completed", "B", "verifier_1", **verdict))
    page = cli("read-records", "--space", SPACE, *filters).json
    assert [row["id"] for row in page["records"]] == ids


def test_a_bad_cursor_is_refused_by_name(cli: Cli) -> None:
    cli("create-task-space", SPACE)
    assert "since='yesterday'" in cli("read-records", "--space", SPACE, "--since", "yesterday", expect=1).err


def test_by_time_compares_what_the_writer_said(cli: Cli) -> None:
    cli("create-task-space", SPACE)
    for task, moment in (("A", 100), ("B", 200)):
        value = json.loads(record("task_started", task)) | {"time": moment}
        cli("add-record", "--space", SPACE, stdin=json.dumps(value))
    page = cli("read-records", "--space", SPACE, "--since", "100", "--by-time").json
    assert [row["id"] for row in page["records"]] == ["B"]


def test_a_space_that_is_not_there_is_named_with_the_mend(cli: Cli) -> None:
    said = cli("read-records", "--space", "nowhere", expect=2)
    assert "'nowhere'" in said.err
    assert "list-tasks" in said.err
    assert "init-state" in cli("read-records", "--state", "x.json", expect=2).err


def test_without_a_space_the_last_session_is_meant(cli: Cli) -> None:
    assert "no session yet" in cli("check-status", expect=2).err


@pytest.mark.parametrize(
    ("steps", "phase"),
    [
        ([], "empty"),
        ([record("task_started")], "running"),
        ([record("task_completed", result="好")], "ready_to_merge"),
        (
            [
                record("task_started", "A"),
                record("task_blocked", "A", requires_human_intervention=True, reason="缺密钥"),
                record("task_completed", "B", result=1),
            ],
            "waiting",
        ),
    ],
)
def test_check_status_shows_the_phase(steps: list[str], phase: str, cli: Cli) -> None:
    cli("create-task-space", SPACE)
    for step in steps:
        cli("add-record", "--space", SPACE, stdin=step)
    found = cli("check-status", "--space", SPACE, "--json").json
    assert found["phase"] == phase
    assert phase in cli("check-status", "--space", SPACE).out
    if phase == "waiting":
        assert found["tasks"] == {"blocked": 1, "completed": 1}
        waits = found["waiting_for_person"]
        assert [(row["task"], row["reason"]) for row in waits] == [("A", "缺密钥")]


def two_results_and_a_blocked_task(cli: Cli) -> None:
    cli("create-task-space", SPACE)
    for step in (
        record("task_completed", "A", result="结论：三处问题"),
        record("task_completed", "B", result={"行": 3}),
        record("task_blocked", "C", requires_human_intervention=True, reason="缺密钥"),
    ):
        cli("add-record", "--space", SPACE, stdin=step)


def test_a_merge_refuses_and_lists_what_stands_in_the_way(cli: Cli) -> None:
    two_results_and_a_blocked_task(cli)
    said = cli("merge-outputs", "--space", SPACE, "--json", expect=1)
    assert said.json == {"merged": False, "obstacles": [{"task": "C", "reason": "blocked: 缺密钥"}]}
    assert "C: blocked: 缺密钥" in said.err
    assert cli("check-status", "--space", SPACE, "--json").json["phase"] == "waiting"


def test_a_merge_by_hand_shows_writes_once_and_is_forced_only_on_demand(cli: Cli, tmp_path: Path) -> None:
    two_results_and_a_blocked_task(cli)
    before = cli("read-records", "--space", SPACE).json["next"]
    shown = cli("merge-outputs", "--space", SPACE, "--force", "--dry-run")
    assert "结论：三处问题" in shown.out
    assert cli("read-records", "--space", SPACE, "--since", before).json["records"] == []

    done = cli("merge-outputs", "--space", SPACE, "--force", "--json", "-o", str(tmp_path / "合并.md"))
    assert (done.json["written"], done.json["status"]) == (True, "partial")
    assert "结论：三处问题" in (tmp_path / "合并.md").read_text(encoding="utf-8")
    merges = cli("read-records", "--space", SPACE, "--event", "task_merged").json["records"]
    assert [row["id"] for row in merges] == [done.json["id"]]
    again = cli("merge-outputs", "--space", SPACE, "--force", "--json")
    assert (again.json["written"], again.json["id"]) == (False, done.json["id"])
    assert cli("check-status", "--space", SPACE, "--json").json["phase"] == "merged"


def test_a_summary_counts_what_is_there(cli: Cli, tmp_path: Path) -> None:
    two_results_and_a_blocked_task(cli)
    found = cli("generate-summary", "--space", SPACE, "--json").json
    assert found["space"] == SPACE
    text = json.dumps(found, ensure_ascii=False)
    assert "task_completed" in text
    assert "缺密钥" in text
    cli("generate-summary", "--space", SPACE, "-o", str(tmp_path / "s.json"))
    assert json.loads((tmp_path / "s.json").read_text(encoding="utf-8")) == found
