"""`run` and `merge-outputs` with a real fleet: leader, manager and a worker as processes that `up` keeps."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import clean_environment, dies_with_test, wait_until_sync

ROOT = Path(__file__).resolve().parents[2]
CLI = (sys.executable, "-m", "coordinator.cli")
ROLE = """---
id: {id}
name: 计算
description: 精确地算
executor: skill
skill: calculator
---
"""
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def env(fleet_env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    roles = tmp_path / "roles"
    roles.mkdir()
    (roles / "calc.md").write_text(ROLE.format(id="calc"), encoding="utf-8")
    return clean_environment(os.environ, (fleet_env | {"ROLECALL_ROLES": str(roles)}).items())


@pytest.fixture
def cli(env: dict[str, str], tmp_path: Path) -> Cli:
    def call(*argv: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*CLI, *argv], cwd=tmp_path, env=env | {"PYTHONPATH": str(ROOT)}, text=True, timeout=90,
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == expect, done
        return done

    return call


@pytest.fixture
def fleet(env: dict[str, str], tmp_path: Path, cli: Cli) -> Iterator[subprocess.Popen[bytes]]:
    """``rolecall up`` with one worker of the role calc."""
    logs = tmp_path / "logs"
    with subprocess.Popen(
        [*CLI, "up", "--roles", "calc=1", "--logs", str(logs)], cwd=ROOT, env=env,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=dies_with_test(),
    ) as process:  # fmt: skip

        def up() -> bool:
            rows = json.loads(cli("workers", "--json").stdout)
            return {"leader", "manager", "calc"} <= {row["role"] for row in rows if row["state"] == "live"}

        try:
            wait_until_sync(up, "the fleet is up", timeout=60, every=0.2)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


@pytest.mark.slow
def test_run_follows_a_session_to_its_end_and_exits_by_its_outcome(
    fleet: subprocess.Popen[bytes], cli: Cli, tmp_path: Path
) -> None:
    good = cli("run", "算一算", "--role", "calc", "--input", '{"expression": "6*7"}', "-o", "结果.md")
    assert "42" in (tmp_path / "结果.md").read_text(encoding="utf-8")
    session = re.search(r"conv_\d{8}_\d{6}_\d{3}", good.stderr)
    assert session is not None
    assert json.loads(cli("check-status", "--json").stdout)["phase"] == "merged"

    bad = cli("run", "算错", "--role", "calc", "--input", '{"expression": "除以零"}', "--json", expect=1)
    assert json.loads(bad.stdout)["status"] == "failed"

    followed = cli("run", "再算", "--role", "calc", "--input", '{"expression": "1+1"}', "--follow", "--json")
    lines = [json.loads(line) for line in followed.stdout.splitlines()]
    assert all(set(line) == {"entry", "record"} for line in lines)
    events = [line["record"]["event"] for line in lines]
    assert events[0] == "task_started"
    assert events.count("task_completed") == 1
    assert events[-1] == "task_merged"

    again = cli("merge-outputs", "--session", session[0])
    assert "42" in again.stdout
    assert "nothing new" in again.stderr
    summary = json.loads(cli("generate-summary", "--session", session[0]).stdout)
    assert summary["space"] == session[0]

    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "goal: 两步\ntasks:\n- {id: a, role: calc, input: {expression: '2+3'}}\n"
        "- {id: b, role: calc, depends_on: [a], input: {expression: '5*5'}}\n",
        encoding="utf-8",
    )
    done = cli("run", "--plan", str(plan), "--json")
    assert json.loads(done.stdout)["status"] == "delivered"


@pytest.mark.slow
def test_ctrl_c_on_run_leaves_the_session_running_and_says_how_to_go_on(
    fleet: subprocess.Popen[bytes], env: dict[str, str], cli: Cli
) -> None:
    fleet.send_signal(signal.SIGSTOP)  # nobody restarts what we stop
    rows = json.loads(cli("workers", "--json").stdout)
    worker = next(row["pid"] for row in rows if row["role"] == "calc")
    os.kill(worker, signal.SIGSTOP)
    try:
        with subprocess.Popen(
            [*CLI, "run", "慢", "--role", "calc", "--input", '{"expression": "1"}', "--follow"],
            cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert "task_started" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        session = re.search(r"conv_\d{8}_\d{6}_\d{3}", err)
        assert session is not None
        assert f"rolecall session log {session[0]} --follow" in err
        assert f"rolecall session cancel {session[0]}" in err
        assert json.loads(cli("session", "show", session[0], "--json").stdout)["phase"] in ("planning", "running")
    finally:
        os.kill(worker, signal.SIGCONT)
        fleet.send_signal(signal.SIGCONT)
