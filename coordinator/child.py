"""One child process of a fleet: what it is, how it is started, how its end reads.

Guarantees: a child's start id ends in its pid and a random token that the supervisor chose, so that its death can be
reported under the right name; on Linux it gets SIGTERM when the thread that started it ends. Never waits for anything.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Literal

from protocol.errors import ConfigError
from protocol.record import is_name

TOKEN_VARIABLE: Final = "ROLECALL_START_TOKEN"
_PR_SET_PDEATHSIG: Final = 1

Kind = Literal["leader", "manager", "worker"]


@dataclass(slots=True)
class Child:
    """One place in the fleet: who works there now, and how often it was filled again."""

    kind: Kind
    role: str
    number: int
    argv: tuple[str, ...]
    process: asyncio.subprocess.Process | None = field(default=None, repr=False)
    token: str = ""
    began: float = 0.0
    restarts: int = 0

    @property
    def name(self) -> str:
        """``reviewer-1``: the role and the place's number."""
        return f"{self.role}-{self.number}"

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def suffix(self) -> str:
        """The end of its start id: ``:<pid>:<token>``."""
        return f":{self.pid}:{self.token}"


def children(roles: Mapping[str, int], *, leaders: int = 1, managers: int = 1) -> list[Child]:
    """The places of a fleet, leaders and managers first. Raises ConfigError for a count or a name that can't be."""
    places: list[tuple[Kind, str, int, tuple[str, ...]]] = [
        ("leader", "leader", leaders, ("-m", "coordinator.cli", "leader")),
        ("manager", "manager", managers, ("-m", "coordinator.cli", "manager")),
    ]
    for role, count in roles.items():
        if not is_name(role):
            raise ConfigError(f"role {role!r} is no name", mend="use 1 to 64 of A-Z a-z 0-9 _ -")
        places.append(("worker", role, count, ("-m", "arq", f"workers.roles.{role.replace('-', '_')}")))
    out: list[Child] = []
    for kind, role, count, tail in places:
        if not 0 <= count <= 1_000:
            raise ConfigError(f"{count} processes of {role!r}", mend="give a number from 0 to 1000")
        out += [Child(kind, role, number, (sys.executable, *tail)) for number in range(1, count + 1)]
    return out


def describe(code: int) -> str:
    """How a process ended, in words: an exit code, or the name of the signal that killed it."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def send(child: Child, number: signal.Signals) -> None:
    if child.process is not None and child.process.returncode is None:
        try:
            child.process.send_signal(number)
            if number == signal.SIGTERM:
                child.process.send_signal(signal.SIGCONT)  # one that was stopped could not obey
        except ProcessLookupError:
            pass  # it ended just now


def log_file(folder: Path, name: str) -> IO[bytes]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / f"{name}.log").open("ab")
    except OSError as error:
        raise ConfigError(
            f"the log directory {str(folder)!r} can't be used: {error.strerror}", mend="name one that you can write"
        ) from None


def import_path(env: Mapping[str, str]) -> dict[str, str]:
    """In a source tree the children must find the packages wherever they are started."""
    root = Path(__file__).resolve().parent.parent
    if not (root / "pyproject.toml").exists():
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(root), env.get("PYTHONPATH"))))}


def end_with_parent() -> Callable[[], None]:
    """Asks the kernel for SIGTERM when the thread that forks ends: the supervisor was killed."""
    libc, parent = ctypes.CDLL(None), os.getpid()

    def ask_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask_kernel
