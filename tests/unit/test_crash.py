"""Crash points: they kill the process that is told to, at the pass that is told, and no other."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.kit import crash

ROOT = Path(__file__).resolve().parents[2]

PASSES = """
from protocol.kit.crash import crash_point
for number in range(1, 4):
    crash_point("worker.before_claim")
    crash_point("worker.after_claim")
    print(number, flush=True)
"""


def run(setting: str | None) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin"} | ({"ROLECALL_CRASH_AT": setting} if setting is not None else {})
    return subprocess.run(
        [sys.executable, "-c", PASSES], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("setting", "printed"),
    [("worker.before_claim", ""), ("worker.after_claim#1", ""), ("worker.after_claim#3", "1\n2\n")],
)
def test_the_named_pass_is_the_last(setting, printed):
    ended = run(setting)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == printed


@pytest.mark.parametrize("setting", [None, "", "leader.after_append", "worker.after_claim#4"])
def test_nothing_happens_otherwise(setting):
    ended = run(setting)
    assert (ended.returncode, ended.stdout) == (0, "1\n2\n3\n")


def test_an_unknown_point_is_an_error_not_a_run_without_a_crash():
    ended = run("worker.befor_claim")
    assert ended.returncode == 1
    assert "did you mean 'worker.before_claim'?" in ended.stderr


@pytest.mark.parametrize("value", ["", "x", "worker.before_claim#", "worker.before_claim#-1", "worker.before_claim#²"])
def test_what_is_no_setting(value):
    with pytest.raises(ConfigError) as caught:
        crash.parse(value)
    assert "ROLECALL_CRASH_AT" in str(caught.value)


def test_the_points_in_the_code_are_those_on_the_list():
    used = set()
    for package in ("protocol", "workers", "coordinator"):
        for path in (ROOT / package).rglob("*.py"):
            used |= set(re.findall(r"""crash_point\(\s*["']([^"']+)["']""", path.read_text(encoding="utf-8")))
    assert used == set(crash.POINTS)
