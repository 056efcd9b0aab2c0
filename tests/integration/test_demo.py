"""The main job, run as a user runs it: a process of its own, with its own server, fleet and report."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import dies_with_test

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "code-review" / "demo.py"
WAIT_S = 110.0
DEAD_PROXY = "http://127.0.0.1:9"


@dataclass
class Run:
    """A run of the demo: its lines as they come."""

    process: subprocess.Popen[str]
    out: Path
    lines: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, pattern: str) -> str:
        """The first line that matches. Fails where none comes."""

        def found() -> str | None:
            return next((line for line in self.lines if re.search(pattern, line)), None)

        with self._news:
            self._news.wait_for(lambda: found() is not None or self.process.poll() is not None, WAIT_S)
            line = found()
        assert line is not None, f"no line like {pattern!r} in:\n{self.text}"
        return line

    def end(self) -> int:
        return self.process.wait(WAIT_S)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def report(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.out / "report.json").read_text(encoding="utf-8"))
        return loaded

    def fleet(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def running(tmp_path: Path, *arguments: str, **env: str) -> Iterator[Run]:
    out = tmp_path / "out"
    kept = {name: value for name, value in os.environ.items() if name != "ROLECALL_NO_MODEL"}
    process = subprocess.Popen(
        [sys.executable, str(DEMO), "--out", str(out), *arguments], cwd=tmp_path, env={**kept, **env}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", preexec_fn=dies_with_test(),
    )  # fmt: skip
    run = Run(process, out)
    reader = threading.Thread(target=run.read)
    reader.start()
    fleet: list[psutil.Process] = []
    try:
        yield run
        fleet = run.fleet() if process.poll() is None else []
    finally:
        if process.poll() is None:
            fleet = run.fleet()
            process.kill()
            process.wait()
            for left in fleet:
                left.kill() if left.is_running() else None
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Some code with faults of each kind, enough for the verifiers to be busy for a moment."""
    root = tmp_path / "代码"
    for name in ("alpha", "beta", "gamma"):
        package = root / name
        package.mkdir(parents=True)
        for number in range(4):
            (package / f"mod{number}.py").write_text(FAULTY * 12, encoding="utf-8")
    (root / "alpha" / "tests").mkdir()
    (root / "alpha" / "tests" / "test_it.py").write_text("def test_it():\n" + "    assert 1\n" * 30, encoding="utf-8")
    return root


FAULTY = """

def fetch(url, seen=[]):
    import requests

    seen.append(url)
    try:
        return requests.get(url)
    except Exception:
        pass


def backoff(n):
    import random

    return random.uniform(0, n)


def pairs(a, b):
    assert a is not None
    return dict(zip(a, b))
"""


def mine(out: Path) -> list[psutil.Process]:
    """Processes that still work for this run: its store's directory is in their command or environment."""
    left = []
    for process in psutil.process_iter():
        try:
            if str(out) in " ".join(process.cmdline()) or process.environ().get("ROLECALL_DATA", "").startswith(
                str(out)
            ):
                left.append(process)
        except psutil.Error:
            continue
    return left


def shown_in_readme() -> list[str]:
    """The README's block of demo output."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- demo:begin -->\n```text\n(.*?)```\n<!-- demo:end -->", text, re.DOTALL)
    assert found, "the README shows no run: paste one between its markers"
    return found[1].splitlines()


def as_typed(run: Run) -> list[str]:
    """The lines of a run as they are where ``make demo`` is typed."""
    places = {f"{run.out.name}/": "runs/review-0/", f"{ROOT}/": "", f"{Path(sys.executable).parent}/": ".venv/bin/"}
    lines = []
    for line in run.lines:
        for place, typed in places.items():
            line = line.replace(place, typed)
        lines.append(line)
    return lines


def told(lines: list[str]) -> set[str]:
    """What is told, up to numbers, names of processes, which tasks were hit, and the order of arrival."""
    out = set()
    for line in lines:
        if line.endswith(" too"):  # how many tasks the killed worker held is chance
            continue
        line = re.sub(r"\S+@\S+?:\d+:\w+", "WORKER", line)
        line = re.sub(r"\b(bandit|security|bugs)-\d+\.verify", "TASK", line)
        line = re.sub(r", \d+\.\d s after the kill", "", line)
        out.add(re.sub(r"\d+(-\d+)*", "N", line))
    return out


@pytest.mark.slow
@pytest.mark.chaos
def test_the_default_run_kills_a_worker_and_delivers_a_whole_report(tmp_path: Path) -> None:
    proxies = dict.fromkeys(
        ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), DEAD_PROXY
    )
    with running(tmp_path, **proxies) as run:
        code = run.end()
        assert code == 0, run.text
        report = run.report
    assert set(report) == {
        "session", "status", "target", "findings", "deduplicated", "rejected", "missing", "model",
    }  # fmt: skip
    assert (report["status"], report["missing"]) == ("delivered", [])
    assert len(report["findings"]) > 80
    assert {"confirmed", "partial"} <= {one["verdict"] for one in report["findings"]}
    assert {one["verdict"] for one in report["rejected"]} == {"rejected"}
    both = [one for one in report["findings"] + report["rejected"] if one["found_by"] == ["bandit", "ruff"]]
    assert len(both) == report["deduplicated"] >= 25
    bugs = [one for one in report["findings"] + report["rejected"] if not one["rule"].startswith("S")]
    assert len(bugs) > 100
    keys = [(one["file"], one["line"], one["rule"]) for one in report["findings"] + report["rejected"]]
    assert len(keys) == len(set(keys))
    assert report["model"]["offline"] is True

    markdown = (run.out / "report.md").read_text(encoding="utf-8")
    assert "offline model" in markdown
    assert "not two opinions" in markdown

    killed = next(line for line in run.lines if "kill -9" in line)
    assert re.search(r"finding-verifier@\S+ \(last beat \d+ s ago\), busy with \S+\.verify$", killed)
    taken = next(line for line in run.lines if "reassigned to" in line)
    assert re.search(r"finding-verifier@\S+ \(attempt 2\), \d+\.\d s after the kill$", taken)
    assert re.search(r"(\S+\.verify)", killed)[1] == re.search(r"(\S+\.verify)", taken)[1]  # type: ignore[index]
    assert told(shown_in_readme()) == told(as_typed(run))
    for words in ("The worst:", "Both tools found", "Rejected", "Next:", "report.md", "--since", "TARGET=", "arq"):
        assert words in run.text, words
    assert "\x1b" not in run.text
    assert "Traceback" not in run.text
    assert not mine(run.out)


@pytest.mark.slow
@pytest.mark.chaos
def test_the_death_of_leader_manager_and_two_workers_at_once_ends_in_a_whole_report(tmp_path: Path, code: Path) -> None:
    with running(tmp_path, str(code), "--no-kill") as run:
        run.wait_for(r"findings")
        fleet: dict[int, str] = {}
        for process in run.fleet():
            with suppress(psutil.NoSuchProcess):  # a skill's process that has just ended
                fleet[process.pid] = " ".join(process.cmdline())
        victims = [pid for pid, command in fleet.items() if re.search(r"coordinator\.cli (leader|manager)$", command)]
        victims += [
            pid
            for pid, command in fleet.items()
            if re.search(r"arq workers\.roles\.(finding_verifier|bug_finder)$", command)
        ][:2]
        assert len(victims) == 4, fleet
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        assert run.end() == 0, run.text
        report = run.report
    assert (report["status"], report["missing"]) == ("delivered", [])
    assert report["target"] == str(code)
    found = {one["file"] for one in report["findings"]}
    assert found == {f"{name}/mod{number}.py" for name in ("alpha", "beta", "gamma") for number in range(4)}
    assert any("test file" in reason for one in report["rejected"] for reason in one["reasons"])
    assert not mine(run.out)


@pytest.mark.slow
def test_an_interrupted_review_is_cancelled_and_leaves_nothing_running(tmp_path: Path, code: Path) -> None:
    with running(tmp_path, str(code), "--no-kill") as run:
        run.wait_for(r"findings")
        os.kill(run.process.pid, signal.SIGINT)
        assert run.end() == 130, run.text
    assert "interrupted" in run.text
    assert not (run.out / "report.json").exists()
    assert "Traceback" not in run.text
    assert not mine(run.out)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path / "nowhere", "there is no directory"),
        (lambda path: (path / "x.py", (path / "x.py").write_text("x = 1\n"))[0], "is a file"),
        (lambda path: path, "no readable Python files"),
    ],
    ids=["nowhere", "a file", "no python"],
)
def test_a_bad_target_is_one_message_and_exit_code_2(tmp_path: Path, make: Any, words: str) -> None:
    target = make(tmp_path)
    with running(tmp_path, str(target)) as run:
        assert run.end() == 2
    assert len(run.lines) == 1
    assert words in run.text
    assert not run.out.exists()


def test_an_unreachable_store_is_one_message_and_exit_code_3(tmp_path: Path, code: Path) -> None:
    with running(tmp_path, str(code), REDIS_URL="redis://127.0.0.1:9/0") as run:
        assert run.end() == 3, run.text
    assert "127.0.0.1:9" in run.text
    assert "Traceback" not in run.text
