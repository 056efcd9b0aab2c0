"""A state file and real processes: eight append at once, one dies with the lock, one is stopped with it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.stores import filelock
from protocol.stores.jsonfile import JsonFile
from tests.support import wait_until, wait_until_sync

ROOT = Path(__file__).resolve().parents[2]
EACH = 15


class Crowd:
    """Children at one state file; what they say is in a file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "S.json"
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, mode: str, name: str, *rest: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out").open("wb") as out:
            child = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.jsonfile_child", mode, str(self.path), name, *rest],
                stdin=subprocess.PIPE, stdout=out, cwd=ROOT,
            )  # fmt: skip
        self.children.append(child)
        return child

    def said(self, name: str) -> list[str]:
        return (self.folder / f"{name}.out").read_text("utf-8").splitlines()

    def end(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()
            if child.stdin:
                child.stdin.close()


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    made = Crowd(tmp_path)
    asyncio.run(JsonFile(made.path).create("S", meta={"kind": "hand"}))
    yield made
    made.end()


def kept(crowd: Crowd) -> Counter[str]:
    async def read() -> list[str]:
        return [record.id for _, record in await JsonFile(crowd.path).tail("S", count=100_000)]

    return Counter(asyncio.run(read()))


def expected(names: list[str]) -> Counter[str]:
    return Counter(f"INFO_{name}_{n}" for name in names for n in range(EACH))


def no_litter(crowd: Crowd) -> None:
    left = {p.name for p in crowd.folder.iterdir() if not p.name.endswith(".out")}
    assert left == {"S.json", "S.json.lock"}
    assert filelock.side_file(crowd.path).read_text() == "", "a free lock names nobody"


def test_eight_processes_append_at_once_and_nothing_is_lost_or_doubled(crowd: Crowd) -> None:
    names = [f"p{n}" for n in range(8)]
    for name in names:
        crowd.start("append", name, str(EACH))
    for child in crowd.children:
        assert child.wait(100) == 0
    assert kept(crowd) == expected(names)
    entries = [line.split()[1] for name in names for line in crowd.said(name) if line.startswith("added")]
    assert len(set(entries)) == len(entries) == 8 * EACH, "each was told the entry that is its own"
    no_litter(crowd)


@pytest.mark.slow
def test_the_same_record_by_eight_processes_is_one_record(crowd: Crowd) -> None:
    said = [crowd.folder / f"same{n}.out" for n in range(8)]
    for path in said:
        with path.open("wb") as out:
            crowd.children.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.integration.jsonfile_child", "append", str(crowd.path), "one", "5"],
                    stdin=subprocess.PIPE, stdout=out, cwd=ROOT,
                )
            )  # fmt: skip
    for child in crowd.children:
        assert child.wait(100) == 0
    assert kept(crowd) == Counter(f"INFO_one_{n}" for n in range(5))
    words = Counter(line.split()[0] for path in said for line in path.read_text().splitlines())
    assert words["added"] == 5 and words["already"] == 35


def test_a_process_that_dies_with_the_lock_leaves_the_file_whole_and_the_lock_free(crowd: Crowd) -> None:
    holder = crowd.start("hold", "dying")
    wait_until_sync(lambda: "held" in crowd.said("dying"), "the lock is held")
    names = [f"p{n}" for n in range(7)]
    for name in names:
        crowd.start("append", name, str(EACH))
    held = filelock.holder(crowd.path)
    assert held is not None and (held.pid, held.held) == (holder.pid, True)
    holder.kill()
    holder.wait()
    for child in crowd.children[1:]:
        assert child.wait(100) == 0
    assert kept(crowd) == expected(names), "and nothing of the append that was cut off"
    no_litter(crowd)


def test_a_dead_holders_name_stays_to_be_seen_until_the_next_takes_the_lock(crowd: Crowd) -> None:
    holder = crowd.start("hold", "dying")
    wait_until_sync(lambda: "held" in crowd.said("dying"), "the lock is held")
    holder.kill()
    holder.wait()
    held = filelock.holder(crowd.path)
    assert held is not None and (held.pid, held.held) == (holder.pid, False)


def test_a_process_that_is_stopped_with_the_lock_makes_the_others_wait_and_costs_nothing(crowd: Crowd) -> None:
    """Longer than any limit: the others are told who holds the file; when it wakes, its write and theirs all count."""
    holder = crowd.start("hold-write", "stopped")
    wait_until_sync(lambda: "held" in crowd.said("stopped"), "the lock is held")
    os.kill(holder.pid, signal.SIGSTOP)
    assert holder.stdin is not None
    holder.stdin.write(b"go on\n")  # as soon as it may
    holder.stdin.flush()
    names = [f"p{n}" for n in range(7)]
    for name in names:
        crowd.start("append", name, str(EACH))
    for name in names:
        wait_until_sync(
            lambda name=name: sum(line.startswith("waited") for line in crowd.said(name)) >= 2,  # type: ignore[misc]
            f"{name} has waited in vain twice",
            timeout=60,
        )
        assert f"held by process {holder.pid} since" in crowd.said(name)[0]
    assert not kept(crowd), "nobody wrote past the holder"
    os.kill(holder.pid, signal.SIGCONT)
    for child in crowd.children:
        assert child.wait(100) == 0
    assert kept(crowd) == expected(names) + Counter({"INFO_stopped": 1})
    no_litter(crowd)


def test_a_stopped_process_that_wakes_does_not_write_over_what_was_put_there_meanwhile(crowd: Crowd) -> None:
    """Somebody replaced the file without the lock (an editor): the holder sees another file and decides again on it."""
    holder = crowd.start("hold-write", "stopped")
    wait_until_sync(lambda: "held" in crowd.said("stopped"), "the lock is held")
    os.kill(holder.pid, signal.SIGSTOP)
    text = crowd.path.read_text("utf-8")
    edited = crowd.folder / "edited"
    edited.write_text(text.replace('"kind": "hand"', '"kind": "hand", "title": "改过"'), encoding="utf-8")
    edited.replace(crowd.path)
    assert holder.stdin is not None
    holder.stdin.write(b"go on\nagain\n")
    holder.stdin.flush()
    os.kill(holder.pid, signal.SIGCONT)
    assert holder.wait(30) == 0
    assert crowd.said("stopped") == ["held", "held", "done"], "it read and judged anew"
    assert kept(crowd) == Counter({"INFO_stopped": 1})
    assert asyncio.run(JsonFile(crowd.path).meta("S"))["title"] == "改过"


async def test_two_writers_in_one_process_take_turns(tmp_path: Path) -> None:
    from tests.integration.jsonfile_child import info

    path = tmp_path / "S.json"
    one, other = JsonFile(path), JsonFile(path)
    await one.create("S", meta={"kind": "hand"})
    done: list[str] = []

    async def write(log: JsonFile, name: str) -> None:
        for n in range(20):
            done.extend(o.outcome for o in await log.append("S", [info(f"INFO_{name}{n}")]))

    await asyncio.gather(write(one, "a"), write(other, "b"))
    await wait_until(lambda: len(done) == 40, "all are written")
    assert int((await one.meta("S"))["n"]) == 40
