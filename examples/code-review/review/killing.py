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

ROLE = "finding-verifier"
LEAST_DONE = 0.3
"""Share of the tasks that must be done before: first a person sees the fleet at work."""
LEAST_REPORTS = 3
"""Findings that the verified scan must have: a task that takes a moment."""


@dataclass(frozen=True, slots=True)
class Killed:
    """Who was killed, in the middle of what, and how long before that it had beaten."""

    worker: str
    task: str
    beat_s: float


def victim(story: Story, pids: Collection[int], tried: Collection[tuple[str, int]]) -> tuple[str, str, int] | None:
    """``(task, worker, pid)`` of a busy verifier with something to do, not tried before; None where there is none."""
    if len(story.done) < LEAST_DONE * story.total:
        return None
    for task, holder in story.busy.items():
        pid = pid_of(holder.worker)
        scan = task.removesuffix(".verify")
        if (
            holder.worker.startswith(f"{ROLE}@")
            and pid in pids
            and story.reports[scan] >= LEAST_REPORTS
            and (task, holder.attempt) not in tried
        ):
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
