"""What a person does: settle a task that is blocked, lost or waiting, each time as a record with who did it.

Guarantees: a decision and the assignment that follows from it are one append, all or none, with the attempt minted
here; only then is the task enqueued. Doing the same thing twice is one thing. Never writes as anybody else, never
touches what a fleet worker holds but by the law of transitions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from protocol.errors import AppendRefused, ConfigError, Refused, RoleError
from protocol.kit.crash import crash_point
from protocol.ports import Clock, KnownRoles, Step
from protocol.record import Json, Record, Trace, digest
from protocol.stores.redis_dispatch import Ref
from protocol.tasks import TaskState


@dataclass(frozen=True, slots=True)
class Done:
    """What became of it: the decision's entry, ``added`` or ``already``, and the new attempt where there is one."""

    action: str
    task: str
    outcome: str
    entry: str
    attempt: int | None = None
    role: str = ""

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {
            "action": self.action, "task": self.task, "outcome": self.outcome, "entry": self.entry
        }  # fmt: skip
        if self.attempt is not None:
            out |= {"attempt": self.attempt, "role": self.role}
        return out


@dataclass(frozen=True, slots=True)
class Standing:
    """A task as a person finds it: its state, the space's session, and its last dispatch where there was one."""

    task: str
    state: TaskState
    session: str
    dispatch: Record | None

    @property
    def next_attempt(self) -> int:
        """The attempt that a new assignment gets: the open one where it was never assigned, else the next."""
        unused = self.state.state in ("pending", "retrying")
        unused = unused and self.state.entry_of("task_assigned", self.state.attempt) is None
        return self.state.attempt if unused else self.state.attempt + 1


class PersonsLog(Protocol):
    """What a person's deeds need of a log."""

    async def meta(self, space: str) -> dict[str, str]: ...
    async def get(self, space: str, entry: str) -> Record | None: ...
    async def task_state(self, space: str, task: str) -> TaskState | None: ...
    async def task_states(self, space: str) -> dict[str, TaskState]: ...
    async def open_space(self, space: str) -> None: ...
    async def append_step(self, space: str, records: Sequence[Record]) -> Step: ...


class Enqueues(Protocol):
    """The roles' streams, as far as a person's deed reaches."""

    async def enqueue(self, refs: Sequence[Ref]) -> object: ...


class Rings(Protocol):
    """Who is told that a space has news."""

    async def ring(self, spaces: Sequence[str]) -> object: ...


class NoFleet:
    """On a state file nobody waits for a dispatch: who works there reads the record."""

    async def enqueue(self, refs: Sequence[Ref]) -> None:
        pass

    async def ring(self, spaces: Sequence[str]) -> None:
        pass


class Person:
    """A person at a space. ``who`` goes on record. ``roles`` is None where no fleet publishes any."""

    def __init__(
        self, log: PersonsLog, streams: Enqueues, wake: Rings, roles: KnownRoles | None, *, who: str,
        clock: Clock = time.time,
    ) -> None:  # fmt: skip
        self._log = log
        self._streams = streams
        self._wake = wake
        self._roles = roles
        self._who = who
        self._clock = clock

    async def retry(self, space: str, task: str, why: str = "") -> Done:
        """Try a blocked, lost or failed task again, with the same role."""
        standing = await self._standing(space, task)
        if not standing.state.role and standing.dispatch is None:
            raise Refused(
                f"{task!r} was never given to a role", reason="no_role", mend=f"task reassign {task} --role ROLE"
            )
        return await self._again(space, standing, "retry", "", why)

    async def reassign(self, space: str, task: str, role: str, why: str = "") -> Done:
        """Give a task to another role. Raises RoleError for a role that nobody ever published."""
        known = {role: {}} if self._roles is None else await self._roles.all()
        if role not in known:
            raise RoleError(f"nobody knows the role {role!r}", mend=f"known: {', '.join(sorted(known)) or 'none yet'}")
        return await self._again(space, await self._standing(space, task), "reassign", role, why)

    async def cancel(self, space: str, task: str, why: str = "") -> Done:
        """Cancel a task; what runs of it is stopped."""
        standing = await self._standing(space, task)
        return await self._decide(space, standing, "cancel", {}, why)

    async def accept(self, space: str, task: str, result: Json = None, why: str = "") -> Done:
        """Complete a task by hand, with ``result`` (None: without one)."""
        standing = await self._standing(space, task)
        return await self._decide(space, standing, "accept", {} if result is None else {"result": result}, why)

    async def answer(self, space: str, question: str, text: str) -> Done:
        """Answer the question ``question`` (``ASK_…``); the agent that asked goes on with its next attempt.

        Raises Refused where the question is not open: unknown, or answered already.
        """
        for task, state in (await self._log.task_states(space)).items():
            if state.waiting_for == question:
                standing = await self._standing(space, task)
                extra = {"question": question, "answer": text}
                return await self._again(space, standing, "answer", "", f"answered by {self._who}", extra)
        raise Refused(
            f"question {question!r} is not open in {space!r}",
            reason="illegal_transition",
            mend="`rolecall check-status` lists what waits; the first answer counted",
        )

    async def session(
        self, space: str, action: Literal["cancel", "resume"], why: str = "", guards: Mapping[str, Json] | None = None
    ) -> Done:
        """Cancel a session, or have it led on after its finish, with other ``guards`` where they are given. Raises
        Refused where it stands otherwise."""
        meta = await self._log.meta(space)
        if meta.get("kind") != "session":
            raise Refused(f"{space!r} is no session: no flow runs there", reason="no_session", mend="see session list")
        if action == "resume" and not meta.get("finish"):
            raise Refused(f"{space!r} has not finished: it goes on by itself", reason="illegal_transition")
        standing = await self._standing(space, space)
        # A session may be resumed after each of its finishes: the finish makes the decision's id one of a kind.
        extra: dict[str, Json] = {"after": meta["finish"]} if action == "resume" else {}
        if guards:
            extra["guards"] = dict(guards)
        return await self._decide(space, standing, action, extra, why)

    async def _standing(self, space: str, task: str) -> Standing:
        state = await self._log.task_state(space, task)
        if state is None:
            raise ConfigError(f"there is no task {task!r} in {space!r}", mend="`rolecall check-status` lists the tasks")
        entry = state.last_assignment
        dispatch = await self._log.get(space, entry) if entry is not None else None
        meta = await self._log.meta(space)
        session = dispatch.session if dispatch else meta.get("session") or space
        return Standing(task, state, session, dispatch)

    async def _again(
        self, space: str, at: Standing, action: str, role: str, why: str, extra: Mapping[str, Json] | None = None
    ) -> Done:
        """A decision and the next assignment. A task that was never dispatched and has no role only gets the
        decision: its flow assigns it."""
        more = dict(extra or {})
        if role:
            more["role"] = role
        to = role or at.state.role or _text(at.dispatch.detail.get("role") if at.dispatch else None)
        if at.dispatch is None and at.state.state == "pending":
            return await self._decide(space, at, action, more, why)
        return await self._decide(space, at, action, more, why, assign_to=to)

    async def _decide(
        self, space: str, at: Standing, action: str, extra: Mapping[str, Json], why: str, *, assign_to: str = ""
    ) -> Done:
        decision = self._decision(space, at, action, extra, why)
        records = [decision]
        if assign_to:
            records.append(self._assignment(at, decision, assign_to, extra))
        # A settled space is swept again from now on, whatever happens to us next.
        await self._log.open_space(space)
        step = await self._log.append_step(space, records)
        if not step.ok:
            raise AppendRefused(
                f"{action} of {at.task!r}: {step.message}",
                reason=step.reason,
                mend=f"`rolecall check-status --space {space}` shows how it stands",
            )
        if assign_to:
            crash_point("cli.after_answer")
            await self._streams.enqueue([Ref(assign_to, space, at.task, at.next_attempt)])
        await self._wake.ring([space])
        first = step.outcomes[0]
        attempt = at.next_attempt if assign_to else None
        return Done(action, at.task, first.outcome, first.entry, attempt, assign_to)

    def _decision(self, space: str, at: Standing, action: str, extra: Mapping[str, Json], why: str) -> Record:
        subject = str(extra.get("question") or at.task)
        mark = digest(
            space, action, subject, str(at.state.attempt), _text(extra.get("role")), _text(extra.get("after"))
        )[:16]
        detail: dict[str, Json] = {
            "action": action, "task": at.task, "by": self._who, "why": why or f"{action} by hand", **extra
        }  # fmt: skip
        return Record(
            id=f"DEC_{action}_{mark}", who=self._who, time=int(self._clock()), event="decision",
            what=f"{action} {subject}"[:2000], detail=detail, trace=Trace(parent_id=at.task, session_id=at.session),
        )  # fmt: skip

    def _assignment(self, at: Standing, decision: Record, role: str, extra: Mapping[str, Json]) -> Record:
        before = dict(at.dispatch.detail) if at.dispatch else {}
        detail = before | {
            "role": role,
            "attempt": at.next_attempt,
            # An object: a command, so that two persons who do the same thing at once write one assignment.
            "by": {"person": self._who, "decision": decision.id},
        }
        if at.state.agent and role == at.state.role:
            detail["agent"] = at.state.agent
        elif role != at.state.role:
            detail.pop("agent", None)
        if "answer" in extra:
            detail["answer"] = {"question": extra["question"], "text": extra["answer"], "by": self._who}
        parent = at.dispatch.trace.parent_id if at.dispatch else None
        return Record(
            id=at.task, who=self._who, time=int(self._clock()), event="task_assigned",
            what=f"{at.task} assigned to {role} again, attempt {at.next_attempt}"[:2000], detail=detail,
            trace=Trace(parent_id=parent, session_id=at.session),
        )  # fmt: skip


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
