"""A server of a test's own that can go away and come back at the same address.

Guarantees: a fixed loopback port, AOF on every write (so that a kill loses nothing and the test sees only the outage);
ended by pid. Never used by more than one test.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import redis

from protocol.kit.embedded import find_binary
from tests.support import dies_with_test, wait_until_sync


class OwnServer:
    """Start, stop, freeze and thaw a real server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [
            str(find_binary()), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes",
            "--appendfsync", "always", "--dir", str(self.folder), "--maxmemory-policy", "noeviction",
        ]  # fmt: skip
        with (self.folder / "server.log").open("ab") as out:
            self._process = subprocess.Popen(argv, stdout=out, stderr=out, preexec_fn=dies_with_test())
        wait_until_sync(self.answers, "the server answers", 10)

    def answers(self) -> bool:
        client = redis.Redis(port=self.port, socket_timeout=1)
        try:
            return bool(client.ping())
        except (redis.RedisError, OSError):
            return False
        finally:
            client.close()

    def kill(self) -> None:
        """SIGKILL, as a crash of the machine's process."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGCONT)
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)
