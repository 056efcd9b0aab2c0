"""The run log: every run of a skill, whole, as one JSON line in a file.

Guarantees: a line is written in one piece, so several workers can share the file; the file never grows past its limit
by more than one line (the older half is kept beside it as ``.1``). A log that can't be written never fails a run.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol

from protocol.kit.logs import get_log
from protocol.ports import Clock
from protocol.record import Json, canonical

_log = get_log(__name__)


class Row(Protocol):
    """What can be logged: a run."""

    def to_json(self) -> dict[str, Json]:
        """The run as plain values."""


class RunLog:
    """Appends to ``path``; call it with a run. ``clock`` gives Unix seconds."""

    def __init__(self, path: Path, *, most_bytes: int = 64 * 1024 * 1024, clock: Clock = time.time) -> None:
        self._path = path
        self._most = most_bytes
        self._clock = clock

    def __call__(self, run: Row) -> None:
        try:
            line = canonical({"time": round(self._clock(), 3), **run.to_json()}) + b"\n"
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, line)
                if os.fstat(descriptor).st_size > self._most:
                    os.replace(self._path, self._path.with_suffix(self._path.suffix + ".1"))
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            _log.warning("run_log_failed", path=str(self._path), error=str(error))
