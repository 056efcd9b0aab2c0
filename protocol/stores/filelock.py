"""The lock of a state file: an advisory ``flock`` on a side file.

Guarantees: one holder at a time; the kernel frees it when its holder dies, however it dies; it is never broken, because
a holder that was only stopped would go on writing when it wakes. Who waits longer than its limit is told who holds it,
and nothing was written. The pid and the time in the side file are for people: they decide nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.errors import StoreError, StoreUnreachable
from protocol.ports import Clock

WAIT_S: Final = 30.0
OLD_S: Final = 300.0
"""A side file older than this is worth a person's look."""
FIRST_PAUSE_S: Final = 0.002
MOST_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Holder:
    """What a side file says: who took the lock and when (Unix seconds). ``held``: somebody holds it now."""

    pid: int
    since_s: float
    held: bool


def side_file(state: Path) -> Path:
    """``NAME.json`` -> ``NAME.json.lock``."""
    return state.with_name(state.name + ".lock")


@asynccontextmanager
async def locked(state: Path, *, wait_s: float = WAIT_S, clock: Clock = time.time) -> AsyncIterator[None]:
    """Hold the lock of ``state``. Raises StoreUnreachable after ``wait_s``, StoreError where no side file can be."""
    path = side_file(state)
    deadline, pause = time.monotonic() + wait_s, FIRST_PAUSE_S
    fd = _take(path)
    while fd is None:
        if time.monotonic() >= deadline:
            raise _held_too_long(state, wait_s)
        await asyncio.sleep(pause * (0.5 + random.random()))
        pause = min(pause * 2, MOST_PAUSE_S)
        fd = _take(path)
    try:
        _write(fd, f"{os.getpid()} {clock():.3f}\n")
        yield
    finally:
        with contextlib.suppress(OSError):
            _write(fd, "")
        os.close(fd)


def holder(state: Path) -> Holder | None:
    """Who holds the lock of ``state``, or died holding it; None where nobody does."""
    path = side_file(state)
    try:
        pid, since = path.read_text("ascii").split()
        found = int(pid), float(since)
    except (OSError, ValueError):
        return None
    try:
        fd = _take(path)
    except StoreError:
        return Holder(*found, held=True)
    if fd is None:
        return Holder(*found, held=True)
    os.close(fd)
    return Holder(*found, held=False)


def _take(path: Path) -> int | None:
    """The side file's descriptor, locked; None where somebody else holds it."""
    with _named(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine, there = os.fstat(fd), os.stat(path)
        if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass  # held; or somebody removed the side file, and the next one has another lock
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _write(fd: int, text: str) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, text.encode(), 0)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the lock file {str(path)!r} can't be opened: {error.strerror}", op="lock", retryable=False,
            mend="the folder must exist and be writable",
        ) from error  # fmt: skip


def _held_too_long(state: Path, wait_s: float) -> StoreUnreachable:
    found = holder(state)
    who = f"process {found.pid} since {_ago(found.since_s)}" if found else "another process"
    mend = f"is it stopped? `kill -CONT {found.pid}`, or end it: the kernel frees the lock" if found else "try again"
    return StoreUnreachable(f"{str(state)!r} is held by {who}; waited {wait_s:g} s", op="lock", mend=mend)


def _ago(since_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since_s))
