"""The beating process of one worker: small, and apart from everything that the worker does.

Guarantees: it beats while its parent runs, tells the age of the parent's event loop, stops with the parent (gone or
stopped), and never beats for a buried start. It imports nothing of ours, so that it stays small.

The two processes share one page of memory (a deleted temporary file), all numbers on the machine's monotonic clock:
``loop_turn`` and ``in_hand`` are the worker's, ``confirmed`` and ``buried`` the beat's.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
from typing import Final

import orjson

SIZE: Final = 64
_LOOP, _IN_HAND, _CONFIRMED, _BURIED = 0, 8, 16, 24
_D: Final = struct.Struct("<d")


class Page:
    """The shared page: four numbers."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, SIZE)

    @classmethod
    def make(cls) -> Page:
        with tempfile.TemporaryFile() as file:
            file.truncate(SIZE)
            fd = os.dup(file.fileno())
        return cls(fd)

    def _get(self, at: int) -> float:
        return float(_D.unpack_from(self._map, at)[0])

    def _set(self, at: int, value: float) -> None:
        _D.pack_into(self._map, at, value)

    loop_turn = property(lambda self: self._get(_LOOP), lambda self, v: self._set(_LOOP, v))
    in_hand = property(lambda self: self._get(_IN_HAND), lambda self, v: self._set(_IN_HAND, v))
    confirmed = property(lambda self: self._get(_CONFIRMED), lambda self, v: self._set(_CONFIRMED, v))
    buried = property(lambda self: self._get(_BURIED), lambda self, v: self._set(_BURIED, v))

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)


def _stopped(pid: int) -> bool:
    """True where the process ``pid`` is stopped (SIGSTOP) or gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t", b"Z", b"X")
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return True
    import psutil  # no /proc here: slower, and right

    try:
        return bool(psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.NoSuchProcess:
        return True


def die_with_parent() -> None:
    """Ask the kernel (Linux) to end this process with its parent; elsewhere the loop's own check does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main() -> None:
    """The beating process: reads its configuration from stdin, beats until its parent is gone or it is buried."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = orjson.loads(sys.stdin.buffer.read())
    page, parent, start, beat_s = Page(config["fd"]), config["parent"], config["start"], config["beat_s"]
    import redis  # and nothing of ours: the process stays small

    client = redis.Redis.from_url(
        config["url"],
        socket_timeout=max(1.0, beat_s),
        socket_connect_timeout=max(1.0, beat_s),
        single_connection_client=True,
    )
    due = 0.0
    while os.getppid() == parent:
        now = time.monotonic()
        if now >= due and not _stopped(parent):
            due = now + beat_s
            info = {
                **config["info"],
                "loop_age_s": round(max(0.0, now - page.loop_turn), 2),
                "in_hand": int(page.in_hand),
            }
            try:
                try:
                    answer = client.evalsha(config["sha"], 3, *config["keys"], start, orjson.dumps(info).decode())
                except redis.exceptions.NoScriptError:
                    client.script_load(config["source"])
                    answer = client.evalsha(config["sha"], 3, *config["keys"], start, orjson.dumps(info).decode())
            except (redis.exceptions.RedisError, OSError):
                due = now + min(beat_s, 1.0)  # the store is away: the worker sees that nothing is confirmed
            else:
                if answer[0] == b"buried":  # type: ignore[index]  # a script's list
                    page.buried = 1.0
                    return
                page.confirmed = now
        time.sleep(max(0.01, min(due - time.monotonic(), 0.5)))


if __name__ == "__main__":
    main()
