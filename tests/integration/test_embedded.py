"""The embedded server: found or started, never twice on the same data, and what is said when it can't be."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from protocol.errors import ConfigError, StoreError, StoreFull
from protocol.kit import embedded, server
from protocol.kit.embedded import ensure_server, find_binary, find_running, start_server, stop
from tests.support import wait_until_sync

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory with a space and Chinese in its name; whatever server runs there is ended after the test."""
    folder = tmp_path / "数据 dir"
    yield folder
    running = find_running(folder)
    if running is not None:
        stop(running)


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True)


def test_it_starts_with_what_was_promised_and_keeps_its_data(data):
    first = ensure_server(data)
    assert first.started_here
    assert first.directory == data / "server"
    with client(first.url) as connection:
        config = connection.config_get("*")
        assert (config["appendonly"], config["appendfsync"], config["save"]) == ("yes", "everysec", "")
        assert (config["maxmemory-policy"], config["bind"]) == ("noeviction", "127.0.0.1")
        connection.set("键", "值")
    stop(first)
    stop(first)
    assert find_running(data) is None
    second = ensure_server(data)
    with client(second.url) as connection:
        assert connection.get("键") == "值"
    assert second.url != first.url
    stop(second)


def test_the_password_is_needed_and_is_in_no_command_line_and_no_open_file(data):
    running = ensure_server(data)
    password = running.url.split(":")[2].split("@")[0]
    with pytest.raises(redis.AuthenticationError), client(running.url.replace(password, "guess")) as connection:
        connection.ping()
    assert password not in Path(f"/proc/{running.pid}/cmdline").read_text()
    assert password not in repr(running)
    for name in ("server.conf", "state.json"):
        assert stat.S_IMODE((running.directory / name).stat().st_mode) == 0o600
    stop(running)


def test_a_second_process_finds_the_first_ones_server(data):
    running = ensure_server(data)
    code = (
        "import sys; from pathlib import Path; from protocol.kit.embedded import ensure_server;"
        "found = ensure_server(Path(sys.argv[1])); print(found.pid, found.started_here)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(data)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert said.split() == [str(running.pid), "False"]
    stop(running)


def _ensure(data: Path, results: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    found = ensure_server(data)
    results.put((found.pid, found.started_here))


def test_processes_that_ask_at_once_get_the_same_server(data):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_ensure, args=(data, results)) for _ in range(4)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    results.close()
    results.join_thread()
    assert len({pid for pid, _ in found}) == 1
    assert sorted(started for _, started in found) == [False, False, False, True]


def test_a_server_outlives_the_process_that_started_it_and_is_stopped_by_another(data):
    code = (
        "import sys; from pathlib import Path; from protocol.kit.embedded import ensure_server;"
        "print(ensure_server(Path(sys.argv[1])).pid)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(data)]
    pid = int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    running = find_running(data)
    assert running is not None
    assert (running.pid, running.started_here) == (pid, False)
    stop(running)
    stop(running)
    assert find_running(data) is None
    assert not (running.directory / "state.json").exists()


def test_a_stale_state_file_is_replaced(data):
    running = ensure_server(data)
    os.kill(running.pid, signal.SIGKILL)
    assert running.server is not None
    running.server.process.wait()
    assert (running.directory / "state.json").exists()
    assert find_running(data) is None
    again = ensure_server(data)
    assert again.started_here
    assert again.pid != running.pid
    stop(again)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"url": 3, "pid": 1}', '{"url": "redis://:pw@127.0.0.1:1/0", "pid": 1}']
)
def test_a_torn_or_foreign_state_file_is_replaced(data, text):
    (data / "server").mkdir(parents=True)
    (data / "server" / "state.json").write_text(text)
    running = ensure_server(data)
    assert running.started_here
    stop(running)


def test_another_server_on_the_remembered_port_is_not_taken_for_ours(data, server_url):
    (data / "server").mkdir(parents=True)
    foreign = server_url.split("@")[1]
    (data / "server" / "state.json").write_text(f'{{"url": "redis://:other@{foreign}", "pid": 1}}')
    assert find_running(data) is None


def test_never_two_servers_on_the_same_data(data):
    running = ensure_server(data)
    (running.directory / "state.json").unlink()
    with pytest.raises(StoreError, match="still uses"):
        ensure_server(data)
    stop(running)
    stop(ensure_server(data))


def test_a_stopped_server_is_named_not_doubled(data, monkeypatch):
    running = ensure_server(data)
    os.kill(running.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreError, match=f"pid {running.pid}.*does not answer.*kill {running.pid}"):
            ensure_server(data)
    finally:
        os.kill(running.pid, signal.SIGCONT)
    wait_until_sync(lambda: find_running(data), "the server answers again")
    stop(running)


def test_a_damaged_append_only_file_is_named_with_the_mend(data):
    running = ensure_server(data)
    stop(running)
    (damaged,) = running.directory.glob("appendonlydir/*.incr.aof")
    damaged.write_bytes(b"*3\r\n$3\r\nSET\r\nnonsense\r\n" * 20)
    with pytest.raises(StoreError) as caught:
        ensure_server(data)
    message = str(caught.value)
    assert repr(str(damaged)) in message
    assert "-check-aof --fix" in message
    assert not caught.value.retryable
    assert find_running(data) is None


def test_a_torn_tail_of_the_append_only_file_is_no_damage(data):
    running = ensure_server(data)
    with client(running.url) as connection:
        connection.set("a", "1")
        connection.set("b", "2")
    stop(running)
    (cut,) = running.directory.glob("appendonlydir/*.incr.aof")
    cut.write_bytes(cut.read_bytes()[:-5])
    again = ensure_server(data)
    with client(again.url) as connection:
        assert connection.get("a") == "1"
    stop(again)


def test_a_directory_that_can_not_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be used.*ROLECALL_DATA"):
        ensure_server(tmp_path / "file" / "data")


def test_a_full_disk_is_named_when_our_own_files_do_not_fit(data, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("protocol.kit.server.os.fsync", full)
    with pytest.raises(StoreFull, match="no space left.*ROLECALL_DATA"):
        ensure_server(data)
    monkeypatch.undo()
    assert list((data / "server").glob(".*.new")) == []
    stop(ensure_server(data))


def test_a_state_file_that_can_not_be_written_leaves_no_server_behind(data, monkeypatch):
    pids = []

    def full(path: Path, text: str) -> None:
        pids.append(text)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(embedded, "write_private", full)
    with pytest.raises(StoreFull):
        ensure_server(data)
    monkeypatch.undo()
    assert len(pids) == 1
    stop(ensure_server(data))  # the lock that a server on this data would hold is free


def fake(folder: Path, body: str, version: str = "Redis server v=7.0.1 sha=0") -> Path:
    folder.mkdir(exist_ok=True)
    binary = folder / "redis-server"
    binary.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; exit 0; fi\n{body}\n')
    binary.chmod(0o755)
    return binary


def test_a_server_that_dies_at_its_start_is_quoted(tmp_path):
    binary = fake(tmp_path / "bin", 'echo "1:M # 坏了: bad directive"; exit 1')
    with pytest.raises(StoreError, match="its last words: .*坏了: bad directive"):
        start_server(binary, tmp_path / "d", aof=True, password="p")


def test_a_server_that_finds_the_disk_full_is_understood(tmp_path):
    binary = fake(tmp_path / "bin", 'echo "Can\'t open the append-only file: No space left on device"; exit 1')
    with pytest.raises(StoreFull, match="no space left in"):
        start_server(binary, tmp_path / "d", aof=True, password="p")


def test_the_one_on_the_path_goes_first_unless_it_is_unfit(tmp_path):
    fit = fake(tmp_path / "fit", "exit 1")
    assert find_binary(str(tmp_path / "fit")) == fit
    fake(tmp_path / "old", "exit 1", version="Redis server v=5.0.3 sha=0")
    assert find_binary(str(tmp_path / "old")).parent != tmp_path / "old"


def test_no_server_at_all_says_what_to_install(tmp_path, monkeypatch):
    fake(tmp_path / "old", "exit 1", version="Redis server v=5.0.3 sha=0")
    monkeypatch.setattr(server, "_wheel_binary", list)
    with pytest.raises(ConfigError, match=r"is version 5\.0, older than 6\.2.*install one.*REDIS_URL"):
        find_binary(str(tmp_path / "old"))
    with pytest.raises(ConfigError, match="no valkey-server or redis-server"):
        find_binary(str(tmp_path / "empty"))


def test_a_port_that_is_taken_in_between_is_tried_anew(tmp_path, monkeypatch):
    real = server._free_port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        offered = [taken.getsockname()[1], taken.getsockname()[1]]
        monkeypatch.setattr(server, "_free_port", lambda: offered.pop() if offered else real())
        started = start_server(find_binary(), tmp_path / "d", aof=False, password="p")
        assert offered == []
        assert started.port != taken.getsockname()[1]
        started.stop()
        started.stop()
