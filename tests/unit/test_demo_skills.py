"""The example's skills as functions: real analysers on small files, and the verifier's second run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from review import analysers
from review.analysers import BUGS, SECURITY, NotHereError, ToolError, bandit, ruff, severity
from review.verify import verify

SKILLS = Path(__file__).resolve().parents[2] / "examples" / "code-review" / "skills"
CODE = """\
import subprocess

import requests


def fetch(url, seen=[]):
    seen.append(url)
    try:
        return requests.get(url)
    except Exception:
        pass


def __del__(self):
    try:
        subprocess.run("ls " + self.名字,
                       shell=True)
    except ValueError as e:
        raise KeyError("x")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "包").mkdir()
    (tmp_path / "包" / "mod.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "-odd.py").write_text("assert 1\n", encoding="utf-8")
    return tmp_path


def keys(scan: analysers.Scan) -> set[tuple[str, int, str]]:
    return {(item["file"], item["line"], item["rule"]) for item in scan["items"]}


def test_both_tools_name_a_place_the_same_way(root: Path) -> None:
    files = ["包/mod.py", "-odd.py"]
    first, second = bandit(str(root), files), ruff(str(root), files, SECURITY)
    both = keys(first) & keys(second)
    assert both >= {
        ("包/mod.py", 9, "S113"), ("包/mod.py", 10, "S110"), ("包/mod.py", 16, "S602"), ("-odd.py", 1, "S101"),
    }  # fmt: skip
    assert {item["tool"] for item in first["items"]} == {"bandit"}
    assert {item["tool_rule"] for item in first["items"] if item["rule"] == "S110"} == {"B110"}
    assert first["scanned"] == second["scanned"] == 2


def test_rufffs_bug_rules_find_what_bandit_does_not(root: Path) -> None:
    found = keys(ruff(str(root), ["包/mod.py"], BUGS))
    assert {("包/mod.py", 6, "B006"), ("包/mod.py", 10, "BLE001"), ("包/mod.py", 19, "B904")} <= found


def test_the_projects_own_configuration_does_not_switch_the_review_off(root: Path) -> None:
    (root / "ruff.toml").write_text('lint.ignore = ["S", "B"]\n', encoding="utf-8")
    (root / ".bandit").write_text("[bandit]\nskips: B110,B113\n", encoding="utf-8")
    assert ("包/mod.py", 9, "S113") in keys(ruff(str(root), ["包/mod.py"], SECURITY))
    assert ("包/mod.py", 9, "S113") in keys(bandit(str(root), ["包/mod.py"]))


def test_a_file_that_is_no_python_is_named_by_both(root: Path) -> None:
    (root / "broken.py").write_text("def f(:\n", encoding="utf-8")
    first, second = bandit(str(root), ["broken.py", "-odd.py"]), ruff(str(root), ["broken.py", "-odd.py"], BUGS)
    assert [row["file"] for row in first["unread"]] == ["broken.py"]
    assert [row["file"] for row in second["unread"]] == ["broken.py"]
    assert any(item["rule"] == "E999" and item["severity"] == "high" for item in second["items"])
    assert ("-odd.py", 1, "S101") in keys(first), "the others are read"


def test_a_file_that_is_gone_is_named_and_is_no_finding(root: Path) -> None:
    for scan in (bandit(str(root), ["gone.py"]), ruff(str(root), ["gone.py"], BUGS)):
        assert scan["items"] == []
        assert [row["file"] for row in scan["unread"]] == ["gone.py"]


@pytest.mark.parametrize("name", ["../out.py", "/etc/hostname", "link/out.py"])
def test_nothing_outside_the_root_is_read(root: Path, name: str) -> None:
    (root / "link").symlink_to(root.parent)
    with pytest.raises(NotHereError, match="not below") as caught:
        bandit(str(root), [name])
    assert caught.value.retryable is False


def test_a_root_that_is_not_on_this_host_is_an_error_and_not_an_empty_result(tmp_path: Path) -> None:
    with pytest.raises(NotHereError, match="no directory"):
        ruff(str(tmp_path / "nowhere"), ["a.py"], BUGS)


def test_more_findings_than_a_scan_may_report_are_counted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "many.py").write_text("assert 1\n" * 20, encoding="utf-8")
    monkeypatch.setattr(analysers, "MOST_ITEMS", 5)
    scan = bandit(str(root), ["many.py"])
    assert (len(scan["items"]), scan["left_out"]) == (5, 15)


def test_a_tool_that_is_not_there_is_a_failure_with_its_mend(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = root / "empty-python"
    empty.write_text('#!/bin/sh\necho "python: No module named bandit" >&2\nexit 1\n', encoding="utf-8")
    empty.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(empty))
    with pytest.raises(ToolError, match="pip install bandit") as caught:
        bandit(str(root), ["-odd.py"])
    assert caught.value.retryable is False


def test_a_tool_that_takes_too_long_is_ended(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = root / "slow-python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    slow.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(slow))
    monkeypatch.setattr(analysers, "TIMEOUT_S", 0.2)
    with pytest.raises(ToolError, match="took more than") as caught:
        bandit(str(root), ["-odd.py"])
    assert caught.value.retryable


def test_ruff_is_rated_as_bandit_rates(root: Path) -> None:
    rated = {item["rule"]: item["severity"] for item in bandit(str(root), ["包/mod.py", "-odd.py"])["items"]}
    assert len(rated) >= 4
    assert {rule: severity(rule) for rule in rated} == rated
    assert (severity("B006"), severity("B904"), severity("PERF401"), severity("F821")) == (
        "medium", "low", "low", "high",
    )  # fmt: skip


def test_the_verifier_runs_each_rule_again_and_judges(root: Path) -> None:
    scan = bandit(str(root), ["包/mod.py"])
    made = verify(str(root), scan["items"])
    by_rule = {item["rule"]: item for item in made["items"]}
    assert len(made["items"]) == len(scan["items"])
    assert by_rule["S113"]["verdict"] == "confirmed"
    assert by_rule["S404"]["verdict"] == "rejected"
    assert made["verdict"] == "partial"
    assert all(item["reasons"] for item in made["items"])


def test_a_finding_that_is_made_up_is_rejected_and_so_is_a_scan_of_such(root: Path) -> None:
    lie = {
        "file": "包/mod.py", "line": 1, "rule": "S113", "message": "", "severity": "low", "tool": "ruff",
        "tool_rule": "S113",
    }  # fmt: skip
    made = verify(str(root), [lie])
    assert made["items"][0]["verdict"] == "rejected"
    assert "does not report it again" in made["items"][0]["reasons"][0]
    assert made["verdict"] == "rejected"


def test_what_can_not_be_checked_is_not_rejected(root: Path) -> None:
    item = {"file": "gone.py", "line": 1, "rule": "S113", "tool": "ruff", "tool_rule": "S113"}
    made = verify(str(root), [item])
    assert made["items"][0]["verdict"] == "partial"
    assert "could not be checked" in made["items"][0]["reasons"][0]


def test_both_verdicts_occur_on_the_default_target() -> None:
    from review.target import cut, default_root, look

    part = next(part for part in cut(look(default_root())) if any(file.name == "ocsp.py" for file in part.files))
    files = [file.name for file in part.files]
    made = verify(str(default_root()), ruff(str(default_root()), files, SECURITY)["items"])
    assert {"confirmed", "rejected"} <= {item["verdict"] for item in made["items"]}


@pytest.mark.parametrize("key", ["bandit-scan", "ruff-scan", "verify-finding", "digest-findings"])
def test_the_entry_point_takes_what_its_schema_says(key: str, root: Path) -> None:
    manifest: dict[str, Any] = json.loads((SKILLS / key / "skill.json").read_text(encoding="utf-8"))
    file, _, name = manifest["entry_point"].partition(":")
    spec = importlib.util.spec_from_file_location(f"skill_{key.replace('-', '_')}", SKILLS / key / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given: dict[str, dict[str, Any]] = {
        "bandit-scan": {"root": str(root), "files": ["-odd.py"]},
        "ruff-scan": {"root": str(root), "files": ["-odd.py"], "rules": "security"},
        "verify-finding": {"verifies": "t", "input": {"root": str(root)}, "delivery": {"items": []}},
        "digest-findings": {"root": str(root), "scans": [], "verdicts": []},
    }
    assert set(manifest["input_schema"]["required"]) <= set(given[key]) <= set(manifest["input_schema"]["properties"])
    out = getattr(module, name)(**given[key])
    assert set(manifest["output_schema"]["required"]) <= set(out)
