"""Claims and alarms: the compare-and-set steps of a task's life, and what in a space waits for the manager.

Guarantees: a claim succeeds only for exactly the attempt that was assigned; an alarm fires once, at its time by the
server's clock; both are one atomic step. A refused claim writes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from protocol.errors import StoreError
from protocol.keys import Keys
from protocol.ports import Dispatch
from protocol.record import Record, sameness, word
from protocol.stores.client import Client, error_of, guard
from protocol.stores.redis_dispatch import Ref
from protocol.stores.scripts import Arg, Scripts
from protocol.stores.wire import join, json_text, loads, space_keys
from protocol.tasks import TaskState, unpack


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """A claim that did not succeed: the task's state now. Its entry is acknowledged, nothing is written; but not where
    the store failed (``error``): somebody damaged that space, and only its own work waits."""

    ref: Ref
    state: str
    attempt: int
    error: StoreError | None = None


@dataclass(frozen=True, slots=True)
class Fired:
    """What an alarm did: ``fired`` (enqueue ``ref``), ``early`` (``remaining_ms`` left) or ``no`` (settled)."""

    outcome: str
    ref: Ref | None = None
    remaining_ms: int = 0


@dataclass(frozen=True, slots=True)
class SpaceLook:
    """What in one space waits for the manager, by the server's clock."""

    space: str
    now_ms: int
    kind: str
    policy: str
    finish: str
    judged: str
    matter: str
    lease_until_ms: int
    merged: str
    records: int
    outbox: tuple[tuple[str, TaskState], ...]
    overdue: tuple[tuple[str, TaskState], ...]
    held: dict[str, str]
    silent: dict[str, int]
    waiting: tuple[int, int, int, int]
    """Sizes of outbox, due, held, beats: all zero and nothing to judge means that the space is idle."""


class Claims:
    """Claims for one start, and alarms."""

    def __init__(self, client: Client, keys: Keys, scripts: Scripts | None = None) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts or Scripts(client)

    async def claim(
        self, refs: Sequence[Ref], owner: str, *, now_s: int, detail: dict[str, Any] | None = None
    ) -> list[Dispatch | NotClaimed]:
        """Claim many references, one script a space, all in one round trip; answers in the order of ``refs``.
        ``detail`` is added to each ``task_processing`` (the role file's digest, for instance)."""
        by_space: dict[str, list[int]] = defaultdict(list)
        for at, ref in enumerate(refs):
            by_space[ref.space].append(at)
        calls: list[tuple[list[str], list[Arg]]] = []
        for space, ats in by_space.items():
            args: list[Arg] = [owner, now_s, *(_claim_arg(refs[at], owner, detail or {}) for at in ats)]
            calls.append((space_keys(self._keys.space(space)), args))
        answers = await self._scripts.run_many("claim", calls, each=True)
        out: list[Dispatch | NotClaimed | None] = [None] * len(refs)
        for ats, answer in zip(by_space.values(), answers, strict=True):
            if isinstance(answer, Exception):
                error = error_of("claim", answer)
                if error.retryable:
                    raise error
                for at in ats:
                    out[at] = NotClaimed(refs[at], "unreadable", 0, error)
                continue
            for n, at in enumerate(ats):
                row = None if answer == b"NOSPACE" else answer[n]
                out[at] = _claimed(refs[at], owner, row)
        return [o for o in out if o is not None]

    async def fire(self, space: str, task: str, attempt: int, *, who: str, by: dict[str, Any]) -> Fired:
        """Fire a delayed retry: writes its ``task_assigned`` if it is due by the server's clock."""
        keys = space_keys(self._keys.space(space))
        answer = await self._scripts.run("fire", keys, [task, attempt, who, "", "", "", ""])
        if answer[0] != b"detail":
            return _fired(answer, space, task, attempt)
        detail = {**loads(answer[1]), "attempt": attempt, "by": by}
        record = Record(
            id=task,
            who=who,
            time=0,
            event="task_assigned",
            what="-",
            detail=detail,
            trace={"parent_id": None, "session_id": "-"},  # type: ignore[arg-type]  # only the digest is taken from it
        )
        named = (word(detail.get("role")), word(detail.get("agent")))
        answer = await self._scripts.run(
            "fire", keys, [task, attempt, who, json_text(detail), sameness(record), *named]
        )
        return _fired(answer, space, task, attempt)

    async def look(
        self, spaces: Sequence[str], *, outbox_ms: int, overdue_ms: int, silent_ms: int, most: int = 500,
        bad: dict[str, StoreError] | None = None,
    ) -> list[SpaceLook]:  # fmt: skip
        """Look at many spaces in one round trip. A space that can't be looked at (somebody wrote there) goes into
        ``bad``, where that is given, and is left out."""
        calls: list[tuple[list[str], list[Arg]]] = []
        for space in spaces:
            k = self._keys.space(space)
            calls.append(
                ([k.meta, k.tasks, k.outbox, k.due, k.held, k.beats], [outbox_ms, overdue_ms, silent_ms, most])
            )
        answers = await self._scripts.run_many("look", calls, each=True)
        out: list[SpaceLook] = []
        for space, answer in zip(spaces, answers, strict=True):
            try:
                if isinstance(answer, Exception):
                    with guard("look"):
                        raise answer
                out.append(_look(space, answer))
            except StoreError as error:
                if bad is None or error.retryable:
                    raise
                bad[space] = error
            except ValueError as error:  # a state or a score that nobody of ours wrote
                if bad is None:
                    raise
                bad[space] = StoreError(f"space {space!r} can't be read: {error}", op="look", retryable=False)
        return out


def _claim_arg(ref: Ref, owner: str, extra: dict[str, Any]) -> bytes:
    detail = {"attempt": ref.attempt, "worker": owner, **extra}
    record = Record.model_construct(id=ref.task, event="task_processing", detail=detail)
    return join((ref.task, ref.attempt, orjson.dumps(detail), sameness(record)))


def _claimed(ref: Ref, owner: str, row: list[bytes] | None) -> Dispatch | NotClaimed:
    if row is None or row[0] == b"-":
        return NotClaimed(ref, row[1].decode() if row else "no such space", int(row[2]) if row else 0)
    trace = orjson.loads(row[4])
    detail = loads(row[3])
    return Dispatch(
        space=ref.space,
        task=ref.task,
        attempt=ref.attempt,
        role=ref.role,
        agent=row[1].decode(),
        session=trace["session_id"],
        owner=owner,
        tries=int(row[2]),
        detail=detail,
        parent=trace.get("parent_id"),
        traceparent=trace.get("traceparent"),
    )


def _fired(answer: list[bytes], space: str, task: str, attempt: int) -> Fired:
    if answer[0] == b"fired":
        return Fired("fired", Ref(answer[1].decode(), space, task, attempt))
    if answer[0] == b"early":
        return Fired("early", remaining_ms=int(float(answer[1])))
    return Fired("no")


def _pairs(flat: list[bytes]) -> tuple[tuple[str, TaskState], ...]:
    return tuple((t.decode(), unpack(s)) for t, s in zip(flat[::2], flat[1::2], strict=True) if s)


def _look(space: str, answer: list[Any]) -> SpaceLook:
    now, meta, outbox, due, held, silent, sizes = answer
    kind, policy, finish, judged, matter, lease, merged, n = (m.decode() for m in meta)
    return SpaceLook(
        space=space,
        now_ms=int(now),
        kind=kind,
        policy=policy,
        finish=finish,
        judged=judged,
        matter=matter,
        lease_until_ms=int(lease or 0),
        merged=merged,
        records=int(n or 0),
        outbox=_pairs(outbox),
        overdue=_pairs(due),
        held={t.decode(): o.decode() for t, o in zip(held[::2], held[1::2], strict=True)},
        silent={a.decode(): int(float(s)) for a, s in zip(silent[::2], silent[1::2], strict=True)},
        waiting=tuple(map(int, sizes)),  # type: ignore[arg-type]  # four of them
    )
