"""Workspaces by command: put, get, list, each by the table of who may do what.

Guarantees: what an agent may not write or read is refused, leaves a ``protocol_violation`` and changes nothing; what is
written is on record with its digest in the same step. The queue holds no files: reading it shows the space's tasks,
writing to it proposes subtasks. Never decides by itself who may: that is ``protocol.workspaces``.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coordinator.spaceview import SpaceLog
from protocol.errors import AppendRefused, ConfigError, GateRefused, Refused
from protocol.gates import repair
from protocol.ports import Appended, Areas, Clock
from protocol.record import WHO_PATTERN, Json, Record, Trace, canonical, digest, is_identifier
from protocol.workspaces import FILE_MAX_BYTES, REASON, Act, Place, kind_of, parse_place, refusal

STORE: Final = "store"


@dataclass(frozen=True, slots=True)
class Put:
    """What became of a put: ``added`` (with its entry) or ``already`` (the file was like that)."""

    place: str
    outcome: str
    entry: str
    sha256: str
    size: int

    def to_json(self) -> dict[str, Json]:
        return {"path": self.place, "outcome": self.outcome, "entry": self.entry, "sha256": self.sha256,
                "size": self.size}  # fmt: skip


class Workspaces:
    """The workspaces of one space, as one agent sees them."""

    def __init__(
        self, log: SpaceLog, areas: Areas, space: str, who: str, *, clock: Clock = time.time,
        random: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:  # fmt: skip
        self._log = log
        self._areas = areas
        self._space = space
        self._who = who
        self._clock = clock
        self._random = random

    async def put(self, text_place: str, data: bytes) -> Put:
        """Write a file. Raises Refused for a place or an agent that may not be (recorded), and for no text."""
        place = await self._allowed(text_place, "write")
        text = _text(place, data)
        sha, size = hashlib.sha256(data).hexdigest(), len(data)
        detail: dict[str, Json] = {
            "kind": "workspace", "workspace": {"area": place.area, "path": place.inside, "digest": sha}, "size": size,
        }  # fmt: skip
        if place.area == "queue":
            detail |= {"kind": "proposal", "subtasks": _subtasks(data)}
        elif not place.path:
            raise Refused(f"{text_place!r} names no file", reason="no_file", path="workspace", mend="give AREA/PATH")
        elif await self._found(place, text_place, "write") == text:
            return Put(str(place), "already", "", sha, size)
        what = "proposed subtasks" if place.area == "queue" else f"wrote {place}"
        record = Record(
            id=f"INFO_{self._random()}", who=self._who, time=int(self._clock()), event="info",
            what=what[:500], detail=detail, trace=await self._trace(),
        )  # fmt: skip
        try:
            outcome = await self._areas.put(self._space, record, place, text)
        except Refused as refused:  # a link on the way: only the store can see it
            raise await self._recorded(refused, text_place, "write") from None
        if outcome.outcome == "refused":
            raise _refused(outcome)
        return Put(str(place), outcome.outcome, outcome.entry, sha, size)

    async def get(self, text_place: str) -> str:
        """A file's text; of the queue the tasks as JSON. Raises Refused where it may not be read (recorded), or is not
        there."""
        place = await self._allowed(text_place, "read")
        if place.area == "queue":
            return canonical(await self._tasks()).decode() + "\n"
        found = await self._found(place, text_place, "read") if place.path else None
        if found is None:
            raise Refused(
                f"there is no file {str(place)!r} in {self._space!r}", reason="no_file", path="workspace",
                mend="`workspace list` shows what there is",
            )  # fmt: skip
        return found

    async def listing(self, text_place: str) -> list[dict[str, Json]]:
        """What an area (or a folder in it) holds: path and size; of the queue its tasks."""
        place = await self._allowed(text_place, "read")
        if place.area == "queue":
            return await self._tasks()
        if place.area == "private" and not place.agent:
            raise Refused("`private` needs an agent", reason="no_file", path="workspace", mend="private/AGENT")
        found = await self._areas.listing(self._space, place.area, place.agent)
        top = Place(place.area, place.agent)
        below = f"{place.path}/" if place.path else ""
        return [{"path": f"{top}/{path}", "size": size} for path, size in found if path.startswith(below)]

    async def _tasks(self) -> list[dict[str, Json]]:
        states = await self._log.task_states(self._space)
        return [
            {"task": task, "state": s.state, "attempt": s.attempt, "role": s.role, "agent": s.agent}
            for task, s in states.items()
        ]

    async def _allowed(self, text: str, act: Act) -> Place:
        """The place, if this agent may do it there; else a violation is recorded and Refused raised."""
        try:
            _check_who(self._who)
            place = parse_place(text)
            why = refusal(place, self._who, kind_of(self._who), act)
            if why is None:
                return place
            refused = Refused(why, reason=REASON, path="workspace", mend="see the table in docs/howto/by-hand.md")
        except Refused as found:
            refused = found
        raise await self._recorded(refused, text, act)

    async def _found(self, place: Place, text: str, act: Act) -> str | None:
        try:
            return await self._areas.get(self._space, place)
        except Refused as refused:
            raise await self._recorded(refused, text, act) from None

    async def _recorded(self, refused: Refused, text: str, act: Act) -> Refused:
        """The refusal, when it is on record."""
        if refused.reason == REASON:
            await self._log.append(self._space, [await self._violation(text, act, refused.message)])
        return refused

    async def _violation(self, text: str, act: Act, why: str) -> Record:
        shown = text.encode("utf-8", "replace").decode()[:1_000]
        who = self._who.encode("utf-8", "replace").decode()[:200]
        return Record(
            id=f"PV_{digest(REASON, who, act, shown)}", who=STORE, time=int(self._clock()),
            event="protocol_violation", what=f"{REASON}: a {act} was refused",
            detail={"reason": REASON, "message": why[:2_000], "raw": {"agent": who, "act": act, "path": shown}},
            trace=await self._trace(),
        )  # fmt: skip

    async def _trace(self) -> Trace:
        session = (await self._log.meta(self._space)).get("session", "")
        return Trace(parent_id=None, session_id=session if is_identifier(session) else self._space)


def _check_who(who: str) -> None:
    if not re.fullmatch(WHO_PATTERN.removeprefix("^").removesuffix("$"), who) or ".." in who:
        raise Refused(f"--as {who!r} can't be an agent's name", reason=REASON, path="as", mend="use A-Z a-z 0-9 _ -")


def _text(place: Place, data: bytes) -> str:
    if len(data) > FILE_MAX_BYTES:
        raise Refused(
            f"{str(place)!r}: {len(data):,} bytes, at most {FILE_MAX_BYTES:,}", reason="too_large", path="workspace",
            mend="areas hold small files: deliver it as an artifact",
        )  # fmt: skip
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{str(place)!r}: not UTF-8 (byte {error.start})", mend="areas hold text") from None


def _subtasks(data: bytes) -> list[Json]:
    try:
        value, _ = repair(data)
    except GateRefused as refused:
        raise Refused(
            f"queue: {refused.message}",
            reason="gate_1",
            path="queue",
            mend="propose a task, or a list of them, as JSON",
        ) from None
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(isinstance(one, dict) and one for one in listed):
        raise Refused("queue: a proposal is a task, or a list of tasks, as JSON objects", reason="gate_3", path="queue")
    return listed


def _refused(outcome: Appended) -> AppendRefused:
    return AppendRefused(outcome.message, reason=outcome.reason, path="workspace")
