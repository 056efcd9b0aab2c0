"""Kills one busy worker, so that the takeover can be watched.

Guarantees: it hits a worker of our own fleet in the middle of a task: the process is stopped first, its task is looked
up in the store, and only if it still holds it there is it killed; else it goes on unharmed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from dataclasses import dataclass

from review.link import Link
from review.story import Story

VERIFIER = "finding-verifier"
BANDIT = "bandit-scanner"
LEAST_REPORTS = 3
"""Findings that a verified scan must have: a task that takes a moment."""
CLEAN = 10
"""With fewer findings than this, verifiers have next to nothing to do; bandit's scans are then the longest tasks."""


@dataclass(frozen=True, slots=True)
class Killed:
    """Who was killed, in the middle of what, and how long before that it had beaten."""

    worker: str
    task: str
    beat_s: float


def victim(story: Story, pids: Collection[int], tried: Collection[tuple[str, int]]) -> tuple[str, str, int] | None:
    """``(task, worker, pid)`` of a worker that is busy for a moment and was not tried before; None where there is
    none, and before the first slice is scanned (a person is to see the fleet at work first)."""
    if not story.scanned:
        return None
    for task, holder in story.busy.items():
        role, pid = holder.worker.partition("@")[0], pid_of(holder.worker)
        if pid not in pids or (task, holder.attempt) in tried:
            continue
        if role == VERIFIER and story.reports[task.removesuffix(".verify")] >= LEAST_REPORTS:
            return task, holder.worker, pid
        if role == BANDIT and len(story.found) < CLEAN:
            return task, holder.worker, pid
    return None


def pid_of(worker: str) -> int:
    """The process id in ``<role>@<host>:<pid>:<random>``, 0 where there is none."""
    parts = worker.split(":")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else 0


async def kill(link: Link, space: str, task: str, worker: str, pid: int) -> Killed | None:
    """Kill ``worker`` if it is in the middle of ``task``; None (and no harm done) if it is not any more."""
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return None
    done = False
    try:
        state = await link.log.task_state(space, task)
        info = await link.worker(worker)
        if state is not None and state.state == "processing" and state.owner == worker and info is not None:
            os.kill(pid, signal.SIGKILL)
            done = True
            return Killed(worker, task, info.age_s)
        return None
    except ProcessLookupError:
        return None
    finally:
        if not done:
            _go_on(pid)


def _go_on(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass  # it ended while it was stopped
