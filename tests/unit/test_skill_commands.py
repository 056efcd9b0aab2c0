"""`python -m workers.skills`: list, new, check, run; exit codes; what goes to which stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import clean_environment
from tests.unit.skillfolders import skill_folder

ROOT = Path(__file__).resolve().parents[2]


def skills(tmp_path: Path, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    given = {"ROLECALL_DATA": str(tmp_path / "data"), "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        [sys.executable, "-m", "workers.skills", *words],
        cwd=tmp_path, input=stdin, capture_output=True, text=True, check=False, timeout=60,
        env=clean_environment(os.environ, given.items()),
    )  # fmt: skip


def test_list_shows_ours_and_the_users(tmp_path: Path) -> None:
    skill_folder(tmp_path / "mine", "数".encode().hex())
    done = skills(tmp_path, "list", "--json", ROLECALL_SKILLS="mine")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert {"calculator", "read-files", "e695b0"} <= {row["skill"] for row in found["skills"]}
    assert (found["problems"], done.stderr) == ([], "")
    assert skills(tmp_path, "--json").stdout
    assert "calculator" in skills(tmp_path).stdout


def test_list_names_broken_ones_on_stderr(tmp_path: Path) -> None:
    skill_folder(tmp_path / "mine", "bad", version="x")
    done = skills(tmp_path, "list", ROLECALL_SKILLS=str(tmp_path / "mine"))
    assert done.returncode == 2
    assert "version 'x' is no semantic version" in done.stderr
    assert "calculator" in done.stdout


def test_a_new_skill_passes_its_check_and_runs(tmp_path: Path) -> None:
    made = skills(tmp_path, "new", "my-skill")
    assert (made.returncode, made.stdout) == (0, "skills/my-skill\n")
    checked = skills(tmp_path, "check", "skills/my-skill", "--json")
    assert checked.returncode == 0
    assert json.loads(checked.stdout)["problems"] == []
    ran = skills(tmp_path, "run", "my-skill", "--skills", "skills", "--input", '{"text": "好", "times": "3"}')
    assert (ran.returncode, json.loads(ran.stdout)) == (0, {"text": "好好好"})
    again = skills(tmp_path, "new", "my-skill")
    assert again.returncode == 2
    assert "is there already" in again.stderr
    rows = [json.loads(line) for line in (tmp_path / "data/skills/runs.jsonl").read_text().splitlines()]
    assert [(row["skill"], row["status"], row["agent"]) for row in rows] == [("my-skill", "success", "person")]


def test_new_refuses_what_is_no_key(tmp_path: Path) -> None:
    for key in ("../x", "--x", "$(touch pwned)"):
        done = skills(tmp_path, "new", "--", key)
        assert done.returncode == 2, key
    assert os.listdir(tmp_path) == []


def test_check_names_every_fault_and_exits_2(tmp_path: Path) -> None:
    skill_folder(tmp_path / "mine", "bad", timeout_ms=0, category="x")
    done = skills(tmp_path, "check", "mine")
    assert done.returncode == 2
    assert "timeout_ms 0" in done.stderr
    assert "category 'x'" in done.stderr
    assert skills(tmp_path, "check", "nowhere").returncode == 2
    (tmp_path / "empty").mkdir()
    assert "there is no skill" in skills(tmp_path, "check", "empty").stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["run", "calculator", "--input", '{"expression": "1/0"}'], 1, "divides by zero"),
        (["run", "calculator", "--input", "{}"], 1, "expression: is missing"),
        (["run", "calculator", "--input", "{"], 2, "--input is no JSON"),
        (["run", "calculater"], 2, "did you mean 'calculator'?"),
        (["run", "calculator", "--input", "@missing.json"], 2, "--input is no JSON"),
    ],
)
def test_run_says_what_went_wrong_in_a_line(tmp_path: Path, words: list[str], code: int, told: str) -> None:
    done = skills(tmp_path, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_run_reads_stdin_and_files_and_gives_the_whole_run_as_json(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"expression": "６×７"}', encoding="utf-8")
    done = skills(tmp_path, "run", "calculator", "--input", "@in.json", "--json")
    run = json.loads(done.stdout)
    assert (run["status"], run["output"]["result"], run["attempts"]) == ("success", "42", 1)
    assert json.loads(skills(tmp_path, "run", "calculator", "--input", "-", stdin='{"expression": "1"}').stdout)


def test_what_a_skill_prints_goes_to_stderr(tmp_path: Path) -> None:
    skill_folder(tmp_path / "mine", "loud", "def run():\n    print('吵')\n    return 1\n")
    done = skills(tmp_path, "run", "loud", ROLECALL_SKILLS="mine")
    assert (done.stdout, done.stderr) == ("1\n", "吵\n")
