"""The record commands on a state file, in this process: the same words, exit codes and merges as on the server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.integration.cli_support import SPACE, Cli, record
from tests.support import wait_until_sync

ROOT = Path(__file__).resolve().parents[2]
STATE = f"state/{SPACE}.json"
CASES = [
    orjson.loads(line) for line in (ROOT / "tests/unit/data/cases/merge.jsonl").read_text("utf-8").splitlines() if line
]


@pytest.fixture
def at(cli: Cli, store_kind: str) -> tuple[str, ...]:
    """The option of a fresh space, on either store."""
    cli("create-task-space", SPACE, "--store", store_kind)
    return ("--state", STATE) if store_kind == "file" else ("--space", SPACE)


@pytest.fixture(params=["redis", "file"])
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def verdict(of: str, word: str, who: str = "verifier_1") -> str:
    detail = {"verdict": word, "verifies": of, "reasons": ["重现"]}
    return record("task_completed", f"V_{of}_{who}", who, **detail)


def test_a_state_file_is_made_once_and_anew_only_by_force(cli: Cli, tmp_path: Path) -> None:
    cli("init-state", "--task-space", SPACE, "-o", "s.json", "--title", "审查")
    cli("add-record", "--state", "s.json", stdin=record("task_completed", result="好"))
    said = cli("init-state", "--task-space", SPACE, "-o", "s.json", expect=1)
    assert "there already" in said.err and "--force" in said.err
    assert cli("read-records", "--state", "s.json").json["records"]
    (tmp_path / "foreign.json").write_text('{"name": "not ours"}')
    assert "somebody else's" in cli("read-records", "--state", "foreign.json", expect=1).err
    assert "somebody else's" in cli("add-record", "--state", "foreign.json", stdin=record("info"), expect=1).err
    assert (tmp_path / "foreign.json").read_text() == '{"name": "not ours"}'
    cli("init-state", "--task-space", SPACE, "-o", "s.json", "--force")
    assert cli("read-records", "--state", "s.json").json["records"] == []
    assert "can't be part of a key" in cli("init-state", "--task-space", "bad name", "-o", "t.json", expect=2).err
    assert not (tmp_path / "t.json").exists()


def test_spaces_without_a_server_stand_in_the_state_folder(cli: Cli, tmp_path: Path) -> None:
    made = cli("create-task-space", SPACE, "--store", "file", "--title", "审查", "--json").json
    assert made == {"space": SPACE, "created": True, "state": STATE}
    assert not cli("create-task-space", SPACE, "--store", "file", "--json").json["created"]
    (tmp_path / "state/torn.json").write_text("{")
    rows = {row["space"]: row for row in cli("list-tasks", "--store", "file", "--json").json["spaces"]}
    assert rows[SPACE]["title"] == "审查" and rows[SPACE]["records"] == 0
    assert "not JSON" in rows["torn"]["problem"]
    assert "2 more in ./state" in cli("list-tasks").err
    here = {"REDIS_URL": ""}
    assert "--state" in cli("create-task-space", "other", env=here).out
    assert f"--state {STATE}" in cli("read-records", "--space", SPACE, env=here, expect=3).err


def test_shared_knowledge_comes_from_a_folder_or_nothing_is_made(cli: Cli, tmp_path: Path, store_kind: str) -> None:
    folder = tmp_path / "know"
    (folder / "sub").mkdir(parents=True)
    (folder / "规则.md").write_text("规则一", encoding="utf-8")
    (folder / "sub/b.txt").write_text("b")
    (folder / "bad").write_bytes(b"\xff")
    said = cli("create-task-space", SPACE, "--store", store_kind, "--shared", "know", expect=2)
    assert "'bad'" in said.err and "UTF-8" in said.err
    assert cli("list-tasks", "--store", store_kind, "--json").json["spaces"] == []
    (folder / "bad").unlink()
    cli("create-task-space", SPACE, "--store", store_kind, "--shared", "know")
    at = ("--state", STATE) if store_kind == "file" else ("--space", SPACE)
    rows = cli("workspace", "list", "shared", "--as", "master_1", *at, "--json").json
    assert [row["path"] for row in rows] == ["shared/sub/b.txt", "shared/规则.md"]
    assert cli("workspace", "get", "shared/规则.md", "--as", "verifier_1", *at).out == "规则一\n"


def test_the_whole_way_by_commands(cli: Cli, at: tuple[str, ...], tmp_path: Path) -> None:
    for task, result in (("T1_a", "端口 80 开放"), ("T1_b", "端口 80 关闭"), ("T2", "完成")):
        assert (
            cli("add-record", *at, "--json", stdin=record("task_completed", task, result=result)).json["outcome"]
            == "added"
        )
    assert cli("add-record", *at, stdin=record("task_completed", "T2", result="完成")).out.startswith("already there")
    failed = record("task_failed", "T2", error={"kind": "k", "message": "m", "retryable": False})
    refused = cli("add-record", *at, stdin=failed, expect=1)
    assert "'completed'" in refused.err and "'failed'" in refused.err
    cli("add-record", *at, stdin=verdict("T1_a", "confirmed"))
    assert cli("check-status", *at, "--json").json["phase"] == "ready_to_merge"
    assert cli("generate-summary", *at, "--json").json["verdicts"]["confirmed"] == 1
    dry = cli("arbitrate", *at, "--dry-run", "--json").json
    assert dry["decisions"][0]["kept"] == "T1_a" and dry["recorded"] == []
    assert cli("read-records", *at, "--event", "decision").json["records"] == []
    once = cli("arbitrate", *at, "--as", "person_x", "--json").json
    again = cli("arbitrate", *at, "--as", "person_y", "--json").json
    assert [r["outcome"] for r in once["recorded"] + again["recorded"]] == ["added", "already"]
    told = cli("read-records", *at, "--event", "decision").json["records"]
    assert len(told) == 1 and told[0]["who"] == "person_x"
    assert [side["task"] for side in told[0]["detail"]["sides"]] == ["T1_a", "T1_b"] and told[0]["detail"]["why"]
    assert not cli("merge-outputs", *at, "--dry-run", "--json").json["written"]
    merged = cli("merge-outputs", *at, "-o", str(tmp_path / "m.md"), "--json").json
    assert merged["written"] and merged["kept"] == ["T1_a", "T2"]
    assert not cli("merge-outputs", *at, "--json").json["written"]
    assert "端口 80 开放" in (tmp_path / "m.md").read_text("utf-8")
    assert cli("check-status", *at, "--json").json["phase"] == "merged"
    cli("add-record", *at, stdin=record("task_completed", "T3", result="晚"))
    assert cli("check-status", *at, "--json").json["phase"] == "ready_to_merge", "there is news"
    assert cli("merge-outputs", *at, "--json").json["written"]
    newest = cli("read-records", *at, "--event", "task_merged").json["records"][-1]
    assert newest["detail"]["supersedes"] == merged["id"]
    assert cli("rebuild", *at, "--check", "--json").json["equal"]
    found = cli("detect-anomalies", *at, "--json").json
    assert found["counts"] == {"transition_violation": 1}
    assert cli("detect-anomalies", *at, "--fail", expect=1).out.startswith("transition_violation: illegal_transition")


def test_both_stores_give_the_same_merge(cli: Cli) -> None:
    ids, details = set(), []
    for store, at in (("redis", ("--space", SPACE)), ("file", ("--state", STATE))):
        cli("create-task-space", SPACE, "--store", store)
        for task in ("T1_a", "T1_b", "T2"):
            cli("add-record", *at, stdin=record("task_completed", task, f"master_{task}", result=[{"n": 1, "t": task}]))
        cli("add-record", *at, stdin=verdict("T1_b", "rejected"))
        done = cli("merge-outputs", *at, "--json").json
        ids.add(done.pop("id"))
        details.append(done)
    assert len(ids) == 1 and details[0] == details[1]


def test_what_stands_in_a_merges_way_is_settled_by_a_person(cli: Cli, at: tuple[str, ...]) -> None:
    cli("add-record", *at, stdin=record("task_completed", "T1", result="好"))
    blocked = record("task_blocked", "T2", requires_human_intervention=True, reason="没有权限")
    cli("add-record", *at, stdin=blocked)
    said = cli("merge-outputs", *at, "--json", expect=1)
    assert said.json["obstacles"] == [{"task": "T2", "reason": "blocked: 没有权限"}]
    waits = cli("check-status", *at, "--json").json["waiting_for_person"]
    assert waits[0]["task"] == "T2" and waits[0]["reason"] == "没有权限"
    assert "added" in cli("task", "accept", "T2", "--as", "person_x", "--result", "手工结果", *at).out
    assert cli("merge-outputs", *at, "--json").json["kept"] == ["T1", "T2"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_shared_merge_cases_through_the_command(cli: Cli, case: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text(json.dumps(case["input"], ensure_ascii=False))
    plain = cli("merge-outputs", "--deliveries", str(tmp_path / "d.json")).json
    expect = case["expect"]
    if expect.get("scored", True):
        for name in ("kept", "deduped_from", "empty"):
            if name in expect:
                assert plain[name] == expect[name]
        assert not set(expect.get("not_kept", ())) & set(plain["kept"])
        if "kept_exactly_one_of" in expect:
            assert len(plain["kept"]) == 1 and plain["kept"][0] in expect["kept_exactly_one_of"]
    backwards = {name: value[::-1] for name, value in case["input"].items()}
    assert cli("merge-outputs", "--deliveries", "-", stdin=json.dumps(backwards)).json == plain


def test_deliveries_come_alone_and_name_a_wrong_field(cli: Cli) -> None:
    assert (
        "--deliveries needs no" in cli("merge-outputs", "--deliveries", "-", "--space", "x", stdin="{}", expect=2).err
    )
    said = cli("merge-outputs", "--deliveries", "-", stdin='{"deliveries": [{"task": "T1"}]}', expect=1)
    assert "deliveries[0]" in said.err


def test_workspaces_by_command(cli: Cli, at: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "n.md").write_text("笔记\n", encoding="utf-8")
    mine = ("--as", "master_a_01", *at)
    put = cli("workspace", "put", "private/master_a_01/n.md", str(tmp_path / "n.md"), *mine, "--json").json
    assert put["outcome"] == "added"
    assert "like that already" in cli("workspace", "put", "private/master_a_01/n.md", *mine, stdin="笔记\n").out
    assert cli("workspace", "get", "private/master_a_01/n.md", *mine).out == "笔记\n"
    for verb, place, who in (
        ("put", "private/master_b_01/n.md", "master_a_01"), ("put", "private/master_a_01/../x", "master_a_01"),
        ("put", "private/../../etc/x", "../../etc"), ("get", "private/master_a_01/n.md", "manager_01"),
        ("list", "summaries", "master_a_01"),
    ):  # fmt: skip
        said = cli("workspace", verb, place, "--as", who, *at, stdin="x", expect=1)
        assert said.err.startswith("rolecall: ")
    reasons = [r["detail"]["reason"] for r in cli("read-records", *at, "--event", "protocol_violation").json["records"]]
    assert reasons == ["foreign_workspace"] * 5
    assert cli("detect-anomalies", *at, "--json").json["counts"] == {"workspace_violation": 5}


def test_a_bulk_add_is_one_replace_and_refuses_past_the_limit(cli: Cli, tmp_path: Path) -> None:
    cli("create-task-space", SPACE, "--store", "file")
    rows = [json.loads(record("info", f"INFO_{n}", text="批量")) for n in range(3_000)]
    said = cli("add-record", "--state", STATE, "--json", stdin=json.dumps(rows)).json
    assert [one["outcome"] for one in said] == ["added"] * 3_000
    assert cli("read-records", "--state", STATE, "--since", said[-2]["entry"]).json["entries"] == [said[-1]["entry"]]


def test_a_state_file_is_followed(cli: Cli, tmp_path: Path, fleet_env: dict[str, str]) -> None:
    cli("create-task-space", SPACE, "--store", "file")
    cli("add-record", "--state", STATE, stdin=record("info", "INFO_1"))
    with (tmp_path / "out").open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "coordinator.cli", "read-records", "--state", str(tmp_path / STATE), "--follow"],
            stdout=out, cwd=ROOT, env=fleet_env,
        )  # fmt: skip
    try:
        lines = lambda: (tmp_path / "out").read_text("utf-8").splitlines()  # noqa: E731
        wait_until_sync(lambda: len(lines()) == 1, "what is there is shown", timeout=30)
        cli("add-record", "--state", STATE, stdin=record("info", "INFO_2"))
        wait_until_sync(lambda: len(lines()) == 2, "what arrives is shown")
    finally:
        child.terminate()
        child.wait()
    assert [json.loads(line)["record"]["id"] for line in lines()] == ["INFO_1", "INFO_2"]


def test_doctor_tells_of_a_lock_that_is_held_for_long(cli: Cli, tmp_path: Path) -> None:
    from protocol.stores import filelock

    cli("create-task-space", SPACE, "--store", "file")
    path = tmp_path / STATE

    async def held_since(seconds: float) -> dict[str, Any]:
        import time

        async with filelock.locked(path, clock=lambda: time.time() - seconds):
            rows = await asyncio.to_thread(lambda: _doctor(cli))
        return next(row for row in rows if SPACE in row["check"])

    assert asyncio.run(held_since(0))["ok"]
    old = asyncio.run(held_since(301))
    assert not old["ok"] and str(os.getpid()) in old["mend"]
    assert any("state file: self test" in row["check"] and row["ok"] for row in _doctor(cli))


def _doctor(cli: Cli) -> list[dict[str, Any]]:
    """No fleet runs here, so something is always wrong."""
    return list(cli("doctor", "--json", expect=1).json)
