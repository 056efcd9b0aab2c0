"""A whole fleet under ``rolecall up`` whose embedded server is killed, or finds the disk full, in the middle of a run.

Guarantees: real processes from the command line; a full disk is a limit on the size of the server's files (its writes
fail as they do on a full disk, and no mount is needed). The session's end is read from the store.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.kit.embedded import Embedded, find_binary, find_running, stop
from tests.chaos.fleet import ROOT, ChaosFleet, delivered_once, steps, write_files
from tests.conftest import fast_environment
from tests.support import clean_environment, dies_with_test, wait_until

PREFIX = "rcu:"
NAMES = tuple("abcdefgh")


@dataclass
class Up:
    """A running ``rolecall up`` and where it writes."""

    process: subprocess.Popen[bytes]
    folder: Path
    env: dict[str, str]

    def server(self) -> Embedded | None:
        return find_running(self.folder / "data")

    def fleet(self, url: str) -> ChaosFleet:
        """A client's view; it has no processes of its own."""
        return ChaosFleet.view(self.folder, {**self.env, "REDIS_URL": url})

    def said(self) -> str:
        return (self.folder / "up.log").read_text() + "".join(
            path.read_text() for path in sorted((self.folder / "logs").glob("*.log"))
        )

    def events(self) -> list[str]:
        """What `up` told, in order."""
        return [str(json.loads(line)["event"]) for line in (self.folder / "events").read_text().splitlines()]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """``rolecall up`` with one stepper, on an embedded server that outlives a write beyond its limit."""
    write_files(tmp_path)
    path = tmp_path / "bin"
    path.mkdir()
    wrapper = path / "valkey-server"
    wrapper.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec {find_binary()} \"$@\"\n")
    wrapper.chmod(0o755)
    fast = fast_environment("", PREFIX, tmp_path)
    env = clean_environment(os.environ, fast.items()) | {
        "ROLECALL_ROLES": str(tmp_path / "roles"),
        "ROLECALL_SKILLS": str(tmp_path / "skills"),
        "PATH": f"{path}{os.pathsep}{os.environ['PATH']}",
    }
    argv = [
        sys.executable,
        "-m",
        "coordinator.cli",
        "up",
        "--json",
        "--roles",
        "stepper",
        "--logs",
        str(tmp_path / "logs"),
    ]
    with (tmp_path / "events").open("wb") as out, (tmp_path / "up.log").open("wb") as err:
        process = subprocess.Popen(argv, cwd=ROOT, env=env, stdout=out, stderr=err, preexec_fn=dies_with_test())
    made = Up(process, tmp_path, env)
    yield made
    process.terminate()
    process.wait(30)
    left = made.server()
    if left is not None:
        stop(left)


async def test_a_server_that_is_killed_in_a_run_loses_nothing(up: Up) -> None:
    first = await wait_until(up.server, "the server runs", 20)
    assert first is not None
    fleet = up.fleet(first.url)
    ran = up.folder / "ran"
    space = await fleet.run(steps(ran, names=NAMES, sleep=0.5))
    await wait_until(lambda: fleet.runs(ran)["a"], f"it runs\n{up.said()}", 20)
    os.kill(first.pid, signal.SIGKILL)
    await fleet.stop()
    again = await wait_until(lambda: (s := up.server()) and s.pid != first.pid and s, "another server runs", 20)
    assert again
    fleet = up.fleet(again.url)
    try:
        await fleet.until_merged(space, 40, revive=False)
        delivered_once(await fleet.records(space), list(NAMES))
    finally:
        await fleet.stop()
    assert "server" in up.events() and "died" in up.events()
    assert "Traceback" not in up.said(), up.said()


@contextmanager
def full_disk(server: Embedded) -> Iterator[None]:
    """The server's files can't grow meanwhile."""
    used = max(path.stat().st_size for path in (server.directory / "appendonlydir").glob("*.aof"))
    before = resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (used, resource.RLIM_INFINITY))
    yield
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux changes the limits of a running process")
async def test_a_disk_that_is_full_in_a_run_is_said_and_loses_nothing(up: Up) -> None:
    server = await wait_until(up.server, "the server runs", 20)
    assert server is not None
    fleet = up.fleet(server.url)
    ran = up.folder / "ran"
    try:
        space = await fleet.run(steps(ran, names=NAMES, sleep=0.5))
        await wait_until(lambda: fleet.runs(ran)["a"], f"it runs\n{up.said()}", 20)
        with full_disk(server):
            await wait_until(lambda: "free disk or memory of the server" in up.said(), f"it is said\n{up.said()}", 20)
            before = len(await fleet.records(space))
            status = subprocess.run(
                [sys.executable, "-m", "coordinator.cli", "doctor"],
                cwd=ROOT, env={**up.env, "REDIS_URL": server.url}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert status.returncode != 0 and "Traceback" not in status.stderr, status
            await asyncio.sleep(2.0)  # the outage itself, longer than a lease
            assert len(await fleet.records(space)) == before, "what is refused is not half there"
        await fleet.until_merged(space, 40, revive=False)
        delivered_once(await fleet.records(space), list(NAMES))
    finally:
        await fleet.stop()
    words = up.said()
    # The server takes a write now and then while its disk is full: each turn of it may be said, not each try.
    turns = 2 * words.count("store_back") + 2 * words.count("the store is back") + 6
    assert words.count("free disk or memory of the server") <= turns, f"once a process and turn\n{words}"
    assert "Traceback" not in words, words
