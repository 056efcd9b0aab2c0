"""The embedded server: one per data directory, found or started, so that there is nothing to install by hand.

Guarantees: data in ``<ROLECALL_DATA>/server``, kept (append-only file, at most a second lost by a power cut); two
processes that ask at once get the same server; two servers never run on the same data. Never stops a server that
still answers to someone else unless told to, never listens beyond loopback, never shows the password.

::

    lock          flock, held while someone looks or starts       (freed by the kernel when the holder dies)
    alive         flock, inherited by the server itself: held as long as it lives, so a stale state file proves nothing
    state.json    url and pid of the running server, 0600
    server.conf   its configuration with the password, 0600
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_urlsafe
from urllib.parse import urlsplit

from protocol.errors import StoreError, StoreUnreachable
from protocol.kit.server import (
    ServerProcess,
    ask,
    disk_error,
    find_binary,
    start_server,
    telling_disk,
    write_private,
)

__all__ = ["Embedded", "ServerProcess", "ensure_server", "find_binary", "find_running", "start_server", "stop"]

FOLDER = "server"
STATE_NAME = "state.json"
_LOCK_WAIT_S = 150.0


@dataclass(slots=True)
class Embedded:
    """A running embedded server. ``url`` carries the password: show it through `settings.hide_password`."""

    url: str = field(repr=False)
    pid: int
    directory: Path
    started_here: bool
    server: ServerProcess | None = field(default=None, repr=False)


def ensure_server(data_dir: Path) -> Embedded:
    """The server of ``data_dir``: the one that runs, else a new one on the same data.

    Blocks until it answers (some 30 ms; longer while it loads). It outlives this process until `stop`.
    Raises `StoreError`, `StoreFull` or `ConfigError`, each with the mend.
    """
    directory = data_dir.resolve() / FOLDER
    with telling_disk(directory):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(directory):
        found = find_running(data_dir)
        if found is not None:
            return found
        alive = _hold_alive(directory)
        try:
            server = start_server(find_binary(), directory, aof=True, password=token_urlsafe(32), inherit=(alive,))
        finally:
            os.close(alive)  # the server holds its own copy of the lock from here on
        try:
            with telling_disk(directory):
                write_private(directory / STATE_NAME, json.dumps({"url": server.url, "pid": server.pid}) + "\n")
        except BaseException:
            server.stop()  # nobody could find it
            raise
        return Embedded(server.url, server.pid, directory, started_here=True, server=server)


def find_running(data_dir: Path) -> Embedded | None:
    """The server of ``data_dir`` if it runs and answers; starts nothing and writes nothing."""
    directory = data_dir.resolve() / FOLDER
    state = _read_state(directory)
    if state is None:
        return None
    url, pid = state
    parts = urlsplit(url)
    try:
        answer = ask(parts.port or 0, parts.password or "", "PING")
    except OSError:
        return None
    # The password is random: whoever accepts it is our server, even if it is still loading.
    return Embedded(url, pid, directory, started_here=False) if answer.startswith(("+PONG", "-LOADING")) else None


def stop(embedded: Embedded, timeout_s: float = 15.0) -> None:
    """Ends the server; its data is written out first. Legal twice, and when it is gone already.

    Raises `StoreUnreachable` if a server that someone else started does not end within ``timeout_s``.
    """
    if embedded.server is not None:
        embedded.server.stop(timeout_s)
    elif _alive(embedded.directory):
        parts = urlsplit(embedded.url)
        try:
            ask(parts.port or 0, parts.password or "", "SHUTDOWN", "NOSAVE", timeout_s=timeout_s)
        except OSError:
            pass  # it hung up, or was going already: the lock below tells
        deadline = time.monotonic() + timeout_s
        while _alive(embedded.directory):
            if time.monotonic() > deadline:
                raise StoreUnreachable(
                    f"the embedded server (pid {embedded.pid}) does not end", op="stop", mend=f"kill {embedded.pid}"
                )
            time.sleep(0.02)
    state = _read_state(embedded.directory)
    if state is not None and state[1] == embedded.pid:
        (embedded.directory / STATE_NAME).unlink(missing_ok=True)


def _read_state(directory: Path) -> tuple[str, int] | None:
    """``(url, pid)``, or None for a file that is missing, torn or foreign."""
    try:
        state = json.loads((directory / STATE_NAME).read_bytes())
        url, pid = state["url"], state["pid"]
        parts = urlsplit(url)
        return (url, pid) if isinstance(pid, int) and parts.port and parts.password else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One process at a time looks and starts. Freed by the kernel if its holder dies."""
    with telling_disk(directory):
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise StoreUnreachable(
                    f"another process has been starting the server in {str(directory)!r} for {_LOCK_WAIT_S:g} s",
                    op="start",
                    mend="end that process, or set ROLECALL_DATA to another directory",
                )
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _hold_alive(directory: Path) -> int:
    """The descriptor of the lock that the server will hold. Refuses if a server on this data still lives."""
    with telling_disk(directory):
        descriptor = os.open(directory / "alive", os.O_RDWR | os.O_CREAT, 0o600)
    if _try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    state = _read_state(directory)
    who = f" (pid {state[1]})" if state else ""
    raise StoreError(
        f"a server{who} still uses {str(directory)!r} but does not answer",
        op="start",
        mend=f"end it{f': kill {state[1]}' if state else ''}, then try again",
    )


def _alive(directory: Path) -> bool:
    try:
        descriptor = os.open(directory / "alive", os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise disk_error(directory, error) from None
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
