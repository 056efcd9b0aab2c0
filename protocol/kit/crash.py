"""Crash points: places between two steps of a task's life where a test may have the process killed.

Guarantees: `crash_point(name)` does nothing unless this very name was armed; then it ends the process with SIGKILL, as
a power cut would: no handler runs, no buffer is written. Never raises in production; never armed by anything but
``ROLECALL_CRASH_AT``.

The setting is ``name`` or ``name#N`` (the N-th pass of this process through the point, counted from 1).
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from difflib import get_close_matches

from protocol.errors import ConfigError

VARIABLE = "ROLECALL_CRASH_AT"

POINTS: dict[str, str] = {
    "worker.before_claim": "an entry was read, nothing is claimed yet",
    "worker.after_claim": "the claim is in the log, the turn has not begun",
    "worker.after_model_call": "the model has answered, its answer is not in the journal yet",
    "worker.before_delivery": "the outcome is known, the delivery is not written",
    "worker.after_delivery": "the delivery is in the log, the entry is not acknowledged",
    "worker.before_alarm": "the retry is in the log, its alarm is not armed",
    "agent.before_model": "permits are held, the intent to call the model is not written",
    "agent.after_model_intent": "the intent to call the model is in the journal, the call is not made",
    "agent.after_model_saved": "the model's answer is in the journal, nothing of it has been acted on",
    "agent.before_tool": "a tool call is about to be made, its intent is not written",
    "agent.after_tool_intent": "the intent of a tool call is in the journal, the call is not made",
    "agent.after_tool": "the tool has returned, its outcome is not in the journal",
    "agent.after_tool_saved": "the tool's outcome is in the journal, the turn has not gone on",
    "leader.after_append": "a step's commands are in the log, nothing is enqueued",
    "leader.after_enqueue": "the dispatch is enqueued, nothing after it has been done",
    "manager.after_grave": "a start is buried, its losses are not recorded",
    "manager.after_loss": "a loss is in the log, the task is not reassigned",
    "manager.after_reassign": "the new assignment is in the log, nothing is enqueued",
    "manager.before_merge": "the merge is computed, not written",
    "manager.after_merge": "the merge is in the log, nothing after it has been done",
    "cli.after_answer": "a person's answer is in the log, its new assignment is not enqueued",
}


@dataclass
class _Armed:
    name: str
    at_pass: int
    passes: int = 0


_armed: _Armed | None = None
_asked_environment = False


def parse(value: str) -> tuple[str, int]:
    """``name`` or ``name#N`` -> ``(name, N)``. An unknown name or a bad N is a `ConfigError` that names the mend."""
    name, mark, number = value.strip().partition("#")
    if name not in POINTS:
        near = get_close_matches(name, POINTS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"{VARIABLE}={value!r} names no crash point",
            mend=f"{hint}`rolecall config --crash-points` lists them",
        )
    if mark and not (number.isascii() and number.isdigit() and int(number) > 0):
        raise ConfigError(f"{VARIABLE}={value!r}: {number!r} is no pass", mend="write name#N with N from 1 on")
    return name, int(number) if mark else 1


def arm(value: str | None) -> None:
    """Arms the point that ``value`` names (see `parse`), or disarms with None. Starts the count of passes anew."""
    global _armed, _asked_environment
    _asked_environment = True
    _armed = _Armed(*parse(value)) if value else None


def crash_point(name: str) -> None:
    """Ends this process with SIGKILL if the point ``name`` is armed; otherwise costs next to nothing.

    The first call asks the environment, so that a process whose composition root knows nothing of crash points obeys
    the setting too.
    """
    if not _asked_environment:
        arm(os.environ.get(VARIABLE))
    if _armed is None or _armed.name != name:
        return
    _armed.passes += 1
    if _armed.passes == _armed.at_pass:
        os.kill(os.getpid(), signal.SIGKILL)
