"""Fixtures of every test: one real server per test process, a key prefix per test, a check for leaks after it.

Guarantees: no test sees the developer's own settings or servers; a model endpoint beyond this machine is an error; unit
tests open no socket; with ``ROLECALL_TEST_NO_SKIPS=1`` a skip is a failure. Never sleeps.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import redis

from protocol.kit.embedded import find_binary, start_server
from protocol.kit.settings import Settings
from tests.support import clean_environment, leaks

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

NO_SKIPS = "ROLECALL_TEST_NO_SKIPS"
UNIT = Path(__file__).parent / "unit"

_steering = [name for name in os.environ if name.startswith(("ROLECALL_", "REDIS_", "OPENAI_")) and name != NO_SKIPS]
for _name in _steering:
    del os.environ[_name]
os.environ["ROLECALL_NO_MODEL"] = "1"


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One real server for this test process, on loopback, gone with it. Use `redis_url`."""
    server = start_server(
        find_binary(),
        tmp_path_factory.mktemp("server"),
        aof=False,
        password=secrets.token_urlsafe(16),
        die_with_parent=True,
    )
    yield server.url
    server.stop()


@pytest.fixture
def redis_url(server_url: str, prefix: str) -> str:
    """The address of the test server. Brings `prefix` along: after the test its keys are checked and removed."""
    return server_url


@pytest.fixture
def prefix(server_url: str) -> Iterator[str]:
    """A prefix of this test's own. After the test each of its keys must have a lifetime or stand on the list."""
    mine = f"rct{secrets.token_hex(4)}:"
    yield mine
    client = redis.Redis.from_url(server_url, decode_responses=True)
    try:
        keys: list[str] = list(client.scan_iter(count=1000))
        pipeline = client.pipeline(transaction=False)
        for key in keys:
            pipeline.pttl(key)
        lifetimes = {key: ttl for key, ttl in zip(keys, pipeline.execute(), strict=True) if ttl != -2}
        client.flushall()
    finally:
        client.close()
    left = leaks(lifetimes, mine)
    assert not left, f"keys without a lifetime, or outside the prefix {mine!r}: {left[:20]!r}"


@pytest.fixture
def settings(redis_url: str, prefix: str, tmp_path: Path) -> Settings:
    """Settings for a fleet in a hurry, on the test server and under the test's prefix."""
    return Settings.load(fast_environment(redis_url, prefix, tmp_path), tmp_path)


@pytest.fixture
def fleet_env(redis_url: str, prefix: str, tmp_path: Path) -> dict[str, str]:
    """The same settings as `settings`, as the environment of child processes."""
    return clean_environment(os.environ, fast_environment(redis_url, prefix, tmp_path).items())


def fast_environment(redis_url: str, prefix: str, folder: Path) -> dict[str, str]:
    """Short intervals, long enough that a busy machine does not look dead."""
    return {
        "REDIS_URL": redis_url,
        "ROLECALL_PREFIX": prefix,
        "ROLECALL_DATA": str(folder / "data"),
        "ROLECALL_BEAT_S": "0.2",
        "ROLECALL_DEAD_S": "1.5",
        "ROLECALL_SWEEP_S": "0.1",
        "ROLECALL_HEARTBEAT_S": "1",
        "ROLECALL_LOST_S": "3",
        "ROLECALL_STALLED_S": "1",
        "ROLECALL_RETRY_DELAYS_S": "0.1,0.2",
        "ROLECALL_GRACE_S": "3",
        "ROLECALL_NO_MODEL": "1",
    }


@pytest.fixture(autouse=True)
def _no_sockets_in_unit_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.path.is_relative_to(UNIT):
        return

    def refuse(self: socket.socket, address: object, *rest: object) -> None:
        self.close()
        raise AssertionError(f"a unit test opens no socket, this one reached for {address!r}: move it to integration/")

    for name in ("connect", "connect_ex", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return _forbid_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    return _forbid_skip(report)


def _forbid_skip(report: Report) -> Report:
    """With the switch on, a skip is a failure that says why. An expected failure is none."""
    if os.environ.get(NO_SKIPS) and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and {NO_SKIPS} allows no skips: {report.longrepr!r}"
    return report
