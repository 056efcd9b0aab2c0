"""`up`: real child processes, kept alive, their deaths reported at once, drained on a signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from coordinator.child import Child, children, describe
from coordinator.up import Fleet, FleetEvent
from protocol.errors import ConfigError
from protocol.keys import Keys
from protocol.kit.embedded import find_running
from protocol.kit.settings import Settings
from protocol.stores.client import connect
from protocol.stores.redis_workers import Workers
from tests.support import clean_environment, dies_with_test, wait_until, wait_until_sync

ROOT = Path(__file__).resolve().parents[2]

STUB = """
import asyncio, os, sys
from protocol.keys import Keys
from protocol.stores.client import connect
from protocol.stores.redis_workers import Workers

async def live():
    client = connect(os.environ["REDIS_URL"], pool=2)
    workers = Workers(client, Keys(os.environ["ROLECALL_PREFIX"]))
    start = f"stub@host:{os.getpid()}:{os.environ['ROLECALL_START_TOKEN']}"
    while await workers.beat(start, {"role": "stub", "host": "host", "pid": os.getpid()}):
        await asyncio.sleep(0.05)

try:
    asyncio.run(live())
except Exception as error:
    sys.exit(str(error))
"""
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STUB
BROKEN = "import sys; sys.exit(2)"


class Seen(list[FleetEvent]):
    """The events of a fleet."""

    def kinds(self, child: str) -> list[str]:
        return [event.kind for event in self if event.child == child]

    def first(self, kind: str) -> FleetEvent | None:
        return next((event for event in self if event.kind == kind), None)


def place(number: int, code: str = STUB) -> Child:
    return Child("worker", "stub", number, (sys.executable, "-c", code))


@asynccontextmanager
async def fleet_of(settings: Settings, env: dict[str, str], *places: Child) -> AsyncIterator[tuple[Fleet, Seen]]:
    seen = Seen()
    fleet = Fleet(settings, {}, leaders=0, managers=0, env=env, on_event=seen.append)
    fleet.children = list(places)
    async with fleet:
        yield fleet, seen


async def graves(settings: Settings) -> dict[str, str]:
    assert settings.redis_url is not None
    client = connect(settings.redis_url, pool=2)
    try:
        return {grave.start: grave.reason for grave in await Workers(client, Keys(settings.prefix)).graves()}
    finally:
        await client.aclose()


async def test_a_killed_child_is_reported_at_once_and_started_again(
    settings: Settings, fleet_env: dict[str, str]
) -> None:
    async with fleet_of(settings, fleet_env, place(1), place(2)) as (fleet, seen):
        assert await fleet.ready(30)
        victim = fleet.children[0]
        pid, suffix, began = victim.pid, victim.suffix, time.monotonic()
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: seen.first("reported"), "the death is reported")
        assert time.monotonic() - began < 2
        assert await graves(settings) == {f"stub@host{suffix}": "child was killed by SIGKILL"}
        await wait_until(lambda: victim.pid != pid and victim.alive, "it is started again")
        assert victim.restarts == 1
        assert await fleet.ready(30)
        assert fleet.children[1].restarts == 0
    assert not psutil.pid_exists(victim.pid)
    assert seen[-1].kind == "stopped"


async def test_what_keeps_dying_is_started_with_a_growing_pause(settings: Settings, fleet_env: dict[str, str]) -> None:
    async with fleet_of(settings, fleet_env, place(1, BROKEN)) as (fleet, seen):
        await wait_until(lambda: fleet.children[0].restarts >= 3, "three restarts")
        pauses = [event.text for event in seen if event.kind == "restarting"]
        assert [text.split(" in ")[1] for text in pauses[:3]] == ["0.2 s", "0.4 s", "0.8 s"]
        died = seen.first("died")
        assert died is not None
        assert died.text.endswith("exited with code 2")


async def test_a_child_that_is_stopped_or_deaf_does_not_hold_up_the_end(
    settings: Settings, fleet_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.up.MARGIN_S", 0.2)
    hasty = replace(settings, grace_s=0.3)
    async with fleet_of(hasty, fleet_env, place(1), place(2, DEAF)) as (fleet, seen):
        assert await fleet.ready(30)
        os.kill(fleet.children[0].pid, signal.SIGSTOP)
        pids = [child.pid for child in fleet.children]
    assert "killed" not in seen.kinds("stub-1"), "SIGCONT lets a stopped child obey"
    assert "killed" in seen.kinds("stub-2")
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert "child killed: it did not end within the grace time" in (await graves(settings)).values()


async def test_the_second_signal_kills(settings: Settings, fleet_env: dict[str, str]) -> None:
    patient = replace(settings, grace_s=60)
    began = 0.0
    async with fleet_of(patient, fleet_env, place(1, DEAF)) as (fleet, _):
        assert await fleet.ready(30)
        began = time.monotonic()
        fleet.ask_stop()
        await fleet.wait()
        asyncio.get_running_loop().call_later(0.1, fleet.ask_stop)
    assert time.monotonic() - began < 10


async def test_the_embedded_server_is_started_restarted_and_stopped_last(
    settings: Settings, fleet_env: dict[str, str], tmp_path: Path
) -> None:
    own = replace(settings, redis_url=None, data_dir=tmp_path / "own")
    async with fleet_of(own, fleet_env, place(1)) as (fleet, seen):
        assert await fleet.ready(30)
        assert fleet.embedded is not None
        pid = fleet.embedded.pid
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: getattr(fleet.embedded, "pid", pid) != pid, "another server")
        assert await fleet.ready(30), "the child has found the new server"
        found = find_running(own.data_dir)
        assert found is not None
        assert found.url == fleet.url
    assert find_running(own.data_dir) is None
    assert [event.kind for event in seen[-2:]] == ["server", "stopped"]


async def test_stop_is_legal_twice_and_before_start(settings: Settings) -> None:
    fleet = Fleet(settings, {}, leaders=0, managers=0)
    await fleet.stop()
    await fleet.stop()
    assert fleet.children == []


def test_the_places_of_a_fleet() -> None:
    made = children({"code-reviewer": 2, "reader": 0}, leaders=1, managers=2)
    assert [child.name for child in made] == [
        "leader-1",
        "manager-1",
        "manager-2",
        "code-reviewer-1",
        "code-reviewer-2",
    ]
    assert made[-1].argv[1:] == ("-m", "arq", "workers.roles.code_reviewer")
    assert made[0].argv[1:] == ("-m", "coordinator.cli", "leader")
    with pytest.raises(ConfigError, match="审校"):
        children({"审校": 1})
    with pytest.raises(ConfigError, match="-1 processes"):
        children({"reader": -1})


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exited with code 0"), (-9, "was killed by SIGKILL"), (-250, "was killed by signal 250")]
)
def test_an_end_in_words(code: int, words: str) -> None:
    assert describe(code) == words


@pytest.fixture
def up(fleet_env: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts ``rolecall up`` as a process of its own, on its own embedded server."""
    roles = tmp_path / "roles"
    roles.mkdir()
    (roles / "reader.md").write_text("---\nid: reader\nname: 阅读者\ndescription: 读\n---\n读。\n", encoding="utf-8")
    env = clean_environment(
        os.environ, (fleet_env | {"ROLECALL_ROLES": str(roles), "ROLECALL_LOG": "json"}).items()
    ) | {"REDIS_URL": ""}

    def start(*argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "coordinator.cli", "up", "--json", *argv],
            cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            preexec_fn=dies_with_test(),
        )  # fmt: skip

    return start


def events_of(
    process: subprocess.Popen[str], until: Callable[[list[dict[str, object]]], bool]
) -> list[dict[str, object]]:
    out: list[dict[str, object]] = []
    assert process.stdout is not None
    for line in process.stdout:
        out.append(json.loads(line))
        if until(out):
            return out
    raise AssertionError(f"it ended too early: {out}")


@pytest.mark.slow
def test_ctrl_c_drains_the_fleet_and_leaves_no_process(up: Callable[..., subprocess.Popen[str]]) -> None:
    with up("--roles", "reader=1", "--managers", "0") as process:
        started = events_of(process, lambda seen: sum(event["event"] == "started" for event in seen) == 2)
        pids = [int(str(event["pid"])) for event in started if event["event"] in ("started", "server")]
        process.send_signal(signal.SIGINT)
        last = events_of(process, lambda seen: seen[-1]["event"] == "stopped")
        assert process.wait(30) == 0
    assert "draining" in [event["event"] for event in last]
    wait_until_sync(lambda: not any(psutil.pid_exists(pid) for pid in pids), "every child has gone")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells children of their parent's death on Linux only")
def test_no_orphan_fleet_stays_when_up_is_killed(
    up: Callable[..., subprocess.Popen[str]], fleet_env: dict[str, str]
) -> None:
    server = 0
    with up("--roles", "reader=1", "--managers", "0") as process:
        started = events_of(process, lambda seen: sum(event["event"] == "started" for event in seen) == 2)
        pids = [int(str(event["pid"])) for event in started if event["event"] == "started"]
        server = next(int(str(event["pid"])) for event in started if event["event"] == "server")
        process.kill()
        process.wait(10)
    try:
        wait_until_sync(lambda: not any(psutil.pid_exists(pid) for pid in pids), "the children have gone", timeout=30)
    finally:
        os.kill(server, signal.SIGTERM)


def test_an_unknown_role_and_a_bad_count_end_before_anything_starts(up: Callable[..., subprocess.Popen[str]]) -> None:
    for argv in (["--roles", "nobody=1"], ["--roles", "reader=viele"]):
        with up(*argv) as process:
            assert process.wait(30) == 2
            assert process.stdout is not None
            assert process.stdout.read() == ""
