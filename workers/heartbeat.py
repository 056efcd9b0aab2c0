"""Liveness apart from the event loop: the worker's side of its beat.

Guarantees: a worker that blocks its loop or holds the interpreter still beats, and its loop's age is told; a beating
process that was killed is started again. Never touches tasks, never decides anything.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import Final

import orjson

from protocol.keys import Keys
from protocol.stores.scripts import sha, source
from workers.beat import Page

TURN_S: Final = 0.25
"""How often the worker's loop says that it turned: its age is known to a quarter of a second."""


class Heart:
    """The worker's side: starts the beating process, turns the page, knows the last confirmed beat."""

    def __init__(
        self, *, url: str, prefix: str, start: str, info: dict[str, object], beat_s: float, dead_s: float
    ) -> None:
        keys = Keys(prefix)
        self._config = {
            "url": url, "start": start, "info": info, "beat_s": beat_s, "sha": sha("beat"), "source": source("beat"),
            "keys": [keys.workers, keys.workers_info, keys.graves],
        }  # fmt: skip
        self._dead_s = dead_s
        self.page = Page.make()
        self._child: subprocess.Popen[bytes] | None = None
        self._turning: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start beating; returns when the first beat is confirmed or the store is not there (yet)."""
        self.page.loop_turn = time.monotonic()
        self._spawn()
        self._turning = asyncio.get_running_loop().create_task(self._turn())
        until = time.monotonic() + 2.0
        while not self.page.confirmed and not self.buried and time.monotonic() < until:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.005)

    def _spawn(self) -> None:
        os.set_inheritable(self.page.fd, True)
        config = {**self._config, "fd": self.page.fd, "parent": os.getpid()}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "workers.beat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            pass_fds=(self.page.fd,), start_new_session=True,
        )  # fmt: skip
        assert self._child.stdin is not None
        self._child.stdin.write(orjson.dumps(config))  # the url has a password: never in an argument list
        self._child.stdin.close()

    async def _turn(self) -> None:
        while True:
            self.page.loop_turn = time.monotonic()
            if self._child is not None and self._child.poll() is not None and not self.buried:
                self._spawn()  # the beat was killed, the worker was not
            await asyncio.sleep(TURN_S)

    @property
    def buried(self) -> bool:
        """True once the store has refused a beat: this start is dead for ever."""
        return bool(self.page.buried)

    @property
    def confirmed(self) -> bool:
        """True while the last confirmed beat is younger than dead-after: new acts may begin."""
        return bool(time.monotonic() - self.page.confirmed < self._dead_s)

    @property
    def child_pid(self) -> int:
        return self._child.pid if self._child else 0

    async def stop(self) -> None:
        if self._turning is not None:
            self._turning.cancel()
            self._turning = None
        if self._child is not None:
            self._child.terminate()
            await asyncio.to_thread(self._child.wait, 5)
            self._child = None
            self.page.close()
