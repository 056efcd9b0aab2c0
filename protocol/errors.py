"""The whole error tree, drawn at the top.

What is told to the *runtime* is an exception of this tree, with attributes that decide (``retryable``,
``retry_after_s``, ``exit_code``); nothing is ever decided by matching a message. What is told to a *model* is a
value (a tool result marked failed), never an exception.

::

    RolecallError
    ├── ConfigError            wrong usage or configuration                      exit 2
    │   ├── RoleError          a role file, or a role nobody knows
    │   └── SkillError         a skill folder, or a skill nobody knows
    ├── Refused                a reason in the data                              exit 1
    │   ├── GateRefused        a text or record that a gate did not let through
    │   ├── PlanRefused        a plan with a cycle, a missing dependency, …
    │   ├── AppendRefused      the store refused a record (transition, attempt, owner, …)
    │   └── MergeRefused       something stands in a merge's way
    ├── StoreError             the store failed                                  exit 3
    │   ├── StoreUnreachable   no connection, no answer
    │   ├── StoreDenied        wrong password or missing right
    │   └── StoreFull          out of memory or disk, or a stated limit
    └── TaskError              one attempt of a task ended in an error
        ├── ModelError         the model endpoint failed, or its answer is unusable
        ├── SkillFailed        a skill raised, crashed, timed out or broke its schema
        └── FenceLost          this worker no longer owns the attempt
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.gates.report import Report


class RolecallError(Exception):
    """Base of the tree. ``mend`` says what a person can do; ``exit_code`` is the command line's."""

    exit_code: int = 1

    def __init__(self, message: str, *, mend: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.mend = mend

    def __str__(self) -> str:
        return f"{self.message} ({self.mend})" if self.mend else self.message


class ConfigError(RolecallError):
    """Wrong usage or configuration: names the thing and the mend."""

    exit_code = 2


class RoleError(ConfigError):
    """A broken role file (with its line), or a role that nobody knows."""


class SkillError(ConfigError):
    """A broken skill folder, or a skill that nobody knows."""


class Refused(RolecallError):
    """Refused for a reason in the data. ``reason`` is one word, ``path`` the offending field (or ``$``)."""

    exit_code = 1

    def __init__(self, message: str, *, reason: str, path: str = "$", mend: str = "") -> None:
        super().__init__(message, mend=mend)
        self.reason = reason
        self.path = path


class GateRefused(Refused):
    """A gate refused a text or record. ``gate`` is 1 to 4; ``problems`` lists every ``(path, message)``.

    ``reason`` is the word for a `protocol_violation` (``gate_1`` to ``gate_4``, or ``too_large``); ``kind`` is finer,
    one word (``truncated``, ``ambiguous``, ``no_json``, …); ``report`` tells what the gates before this one did.
    """

    def __init__(
        self,
        message: str,
        *,
        gate: int,
        path: str = "$",
        problems: tuple[tuple[str, str], ...] = (),
        mend: str = "",
        kind: str = "",
        reason: str = "",
    ) -> None:
        super().__init__(message, reason=reason or f"gate_{gate}", path=path, mend=mend)
        self.gate = gate
        self.kind = kind
        self.problems = problems or ((path, message),)
        self.report: Report | None = None


class PlanRefused(Refused):
    """A plan that can't be run: ``tasks`` names the tasks that are at fault."""

    def __init__(self, message: str, *, reason: str, tasks: tuple[str, ...] = (), mend: str = "") -> None:
        super().__init__(message, reason=reason, mend=mend)
        self.tasks = tasks


class AppendRefused(Refused):
    """The store refused a record; the message names both states. A ``protocol_violation`` is on record."""


class MergeRefused(Refused):
    """``obstacles`` lists what stands in the merge's way as ``(task, state or reason)``."""

    def __init__(self, message: str, *, obstacles: tuple[tuple[str, str], ...], mend: str = "") -> None:
        super().__init__(message, reason="not_mergeable", mend=mend)
        self.obstacles = obstacles


class StoreError(RolecallError):
    """The store failed. ``op`` names the operation; ``retryable`` says whether trying again can help."""

    exit_code = 3

    def __init__(self, message: str, *, op: str = "", retryable: bool = True, mend: str = "") -> None:
        super().__init__(message, mend=mend)
        self.op = op
        self.retryable = retryable


class StoreUnreachable(StoreError):
    """No connection to the store, or no answer in time."""


class StoreDenied(StoreError):
    """Wrong password, or the user lacks a right."""

    def __init__(self, message: str, *, op: str = "", mend: str = "") -> None:
        super().__init__(message, op=op, retryable=False, mend=mend)


class StoreFull(StoreError):
    """Out of memory or disk, or a stated limit is reached."""


class TaskError(RolecallError):
    """One attempt ended in an error. ``kind`` is one word; ``retryable`` decides between a retry and a block."""

    def __init__(
        self, message: str, *, kind: str, retryable: bool, retry_after_s: float | None = None, mend: str = ""
    ) -> None:
        super().__init__(message, mend=mend)
        self.kind = kind
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class ModelError(TaskError):
    """The model endpoint failed or answered with something unusable."""


class SkillFailed(TaskError):
    """A skill raised, crashed, timed out or broke its schema."""


class FenceLost(TaskError):
    """The attempt was taken over, cancelled or settled: this worker stops its turn and writes nothing more."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="superseded_attempt", retryable=False)
