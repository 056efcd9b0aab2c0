"""What the rooms hand each other: the dispatch a worker gets, the outcome a runner gives, narrow ports.

Guarantees: types only, no behaviour. Every port has three to six methods; adapters live in ``protocol.stores``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from protocol.record import Json, Record
from protocol.workspaces import Area, Place

Clock = Callable[[], float]
"""Unix seconds, as ``time.time`` gives them; passed in, never read by the contract."""
Random = Callable[[], float]
"""A number in [0, 1), as ``random.random`` gives it."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One attempt handed to a worker: the claimed task with its assignment's ``detail``.

    ``detail`` carries at least ``role`` and ``attempt``; a flow adds ``agent`` (the agent's name, which keeps its
    conversation over attempts), ``prompt`` (text), ``input`` (JSON, a skill's arguments), ``goal``, ``prefix``,
    ``output_schema``, ``merge_key``, ``model``, ``results`` (those of its dependencies), ``verifies``.
    """

    space: str
    task: str
    attempt: int
    role: str
    agent: str
    session: str
    owner: str
    """The start that claimed it: every write of the attempt carries it."""
    tries: int
    detail: Mapping[str, Json]
    parent: str | None = None
    traceparent: str | None = None
    """The trace context of its assignment."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The attempt's result: goes into ``task_completed``'s detail beside what else is to be on record."""

    detail: Mapping[str, Json]
    """``result`` (any JSON) or ``artifact`` or ``verdict`` …; ``usage``, ``evidence``, ``subtasks`` where given."""
    what: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt ended in an error. Whether it is tried again is decided by ``protocol.retry``."""

    kind: str
    message: str
    retryable: bool
    retry_after_s: float | None = None
    detail: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parked:
    """The agent waits for an answer to ``question`` (an ``ASK_…`` id) and holds no slot meanwhile."""

    question: str
    text: str
    to: Literal["leader", "person"] = "person"
    detail: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dropped:
    """The attempt is no longer this worker's (taken over, cancelled): nothing more is written."""

    reason: str


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The worker drains: the attempt goes back without costing a try."""

    reason: str
    detail: Mapping[str, Json] = field(default_factory=dict)


Outcome = Delivered | Failed | Parked | Dropped | HandedBack


@dataclass(frozen=True, slots=True)
class Appended:
    """What the store did with one record: ``added`` or ``already`` (with its entry), or ``refused`` (why, and the
    entry of the violation)."""

    outcome: Literal["added", "already", "refused"]
    entry: str = ""
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A read's answer: records oldest first, their entries, the next cursor, and whether there is more now."""

    records: tuple[Record, ...]
    entries: tuple[str, ...]
    next: str
    more: bool
    rewound: bool = False

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {
            "records": [r.to_json() for r in self.records], "entries": list(self.entries), "next": self.next,
            "more": self.more,
        }  # fmt: skip
        if self.rewound:
            out["rewound"] = True
        return out


@dataclass(frozen=True, slots=True)
class Step:
    """What became of a leader's all-or-none append. ``refused_term``: someone else leads. ``refused_at``: the index of
    the record that the law refused; then nothing was written."""

    ok: bool
    refused_term: bool = False
    refused_at: int | None = None
    reason: str = ""
    message: str = ""
    outcomes: tuple[Appended, ...] = ()


class RecordStore(Protocol):
    """A space's log. Both stores (Redis, JSON file) keep it; one contract suite runs on both."""

    async def append(self, space: str, records: Sequence[Record], *, owner: str = "") -> list[Appended]:
        """Append up to 100 records, one outcome each; a refusal leaves a ``protocol_violation``."""

    async def read(
        self,
        space: str,
        *,
        since: str | int = 0,
        who: str = "",
        event: str = "",
        session: str = "",
        limit: int = 20,
        by_time: bool = False,
    ) -> Page:
        """Records after ``since`` (a cursor, or a time), oldest first, at most ``limit`` (1,000)."""

    async def task_states(self, space: str) -> dict[str, object]:
        """The projection: task id -> ``TaskState``."""

    async def create(self, space: str, *, meta: Mapping[str, str]) -> bool:
        """Make a space; False where it is there already."""


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """What a record's ``detail.artifact`` says: the SHA-256 in hex, and the size in bytes."""

    sha256: str
    size: int

    def to_json(self) -> dict[str, Json]:
        return {"sha256": self.sha256, "size": self.size}


class ArtifactStore(Protocol):
    """What is too large for a record, by content. A folder or an object store can take its place."""

    async def put(self, space: str, data: bytes) -> ArtifactRef:
        """Store ``data``. Raises StoreFull past a limit."""

    async def name(self, space: str, ref: ArtifactRef) -> None:
        """Make it stay: a record names it."""

    async def get(self, space: str, sha256: str) -> bytes:
        """The bytes. Raises StoreError where there is no such artifact, or where it is damaged."""


class KnownRoles(Protocol):
    """The roles that a fleet published."""

    async def all(self) -> dict[str, dict[str, Json]]:
        """Role id -> front matter with ``digest``."""


class Areas(Protocol):
    """The workspaces of a space: small text files by area and path."""

    async def put(self, space: str, record: Record, place: Place, text: str) -> Appended:
        """Append ``record`` (its ``detail.workspace`` names the place) and write the file in the same atomic step;
        refused, neither is there but a violation."""

    async def get(self, space: str, place: Place) -> str | None:
        """A file's text; None where there is none."""

    async def listing(self, space: str, area: Area, agent: str = "") -> list[tuple[str, int]]:
        """The paths below an area (of ``private``: below one agent's) with their sizes in bytes, in order."""


class TurnFence(Protocol):
    """What a running turn asks before each act: is this attempt still mine?"""

    async def check(self) -> None:
        """Raises FenceLost where the attempt is superseded, cancelled, or the start buried or unconfirmed."""


Runner = Callable[[Dispatch, TurnFence], Awaitable[Outcome]]
"""One task -> one outcome; no Redis in it, caught broadly at its top."""


@dataclass(frozen=True, slots=True)
class Saved:
    """One entry of an agent's conversation as the store keeps it: ``n`` counts from 1 without a hole, ``at_ms`` is
    server time. What ``kind`` and ``body`` say is the journal's business (``workers.journal``)."""

    n: int
    kind: str
    task: str
    attempt: int
    at_ms: int
    body: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Mail:
    """A message that lies in an agent's mailbox. ``sender`` is set by the channel, never by the text; ``kind`` is
    ``message``, ``task``, ``answer`` or ``completion report``; ``entry`` is the store's own id of it."""

    id: str
    sender: str
    text: str
    kind: str = "message"
    source: Literal["user", "sub_agent", "system"] = "user"
    sender_agent: int | None = None
    at_s: float = 0.0
    entry: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A whole conversation: its entries in order, its metadata, and how many messages wait in the mailbox."""

    entries: tuple[Saved, ...]
    meta: Mapping[str, Json]
    mail: int = 0


class Conversation(Protocol):
    """One agent's conversation in the hands of one attempt. Every write is fenced by task, attempt and owner on the
    server, atomic, and safe to send twice."""

    async def load(self) -> Loaded:
        """All that is saved."""

    async def write(
        self,
        first: int,
        entries: Sequence[tuple[str, Mapping[str, Json]]],
        *,
        meta: Mapping[str, Json] | None = None,
        taken: Sequence[str] = (),
    ) -> int:
        """Save ``(kind, body)`` entries as numbers ``first``, ``first + 1`` …, set metadata fields, and remove the
        mailbox entries ``taken``, all in one step. Returns how many messages wait in the mailbox.

        Raises FenceLost where the attempt is not the owner's any more, StoreFull past the conversation's limit.
        """

    async def close(
        self, first: int, entries: Sequence[tuple[str, Mapping[str, Json]]], *, meta: Mapping[str, Json] | None = None
    ) -> bool:
        """The last words of an attempt whose task was cancelled: saved only in that state, and only if nobody saved
        anything since ``first`` was counted. False: nothing was saved."""

    async def mail(self, limit: int = 100) -> tuple[Mail, ...]:
        """The oldest messages in the mailbox; they stay there until a write takes them."""


class Conversations(Protocol):
    """The conversations of a space: opened by attempts, read by people, written to through mailboxes."""

    def open(self, dispatch: Dispatch) -> Conversation:
        """The conversation of ``dispatch.agent``, for this attempt alone. Touches nothing yet."""

    async def read(self, space: str, agent: str) -> Loaded:
        """All that is saved of one agent; no fence."""

    async def agents(self, space: str) -> dict[str, int]:
        """Every agent of the space that ever had a conversation, with its number."""

    async def post(self, space: str, agent: str, mail: Mail) -> bool:
        """Put a message into a mailbox; False where one with this id lies there already.

        Raises StoreFull where the mailbox is full."""
