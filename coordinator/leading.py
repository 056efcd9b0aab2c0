"""Leading one session: fold its log, ask its flow, append what it decides, enqueue what that dispatches.

Guarantees: the commands of one step are one append, all or none, under the lease's term; nothing is enqueued before it
is in the log. Level-triggered: `go` may be cut off anywhere and called again, by this leader or another. Never decides:
that is the flow's; never judges a transition: that is the store's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from coordinator import flows, snapshot
from coordinator.commands import By, Decide, to_record
from coordinator.view import View
from protocol.errors import StoreError
from protocol.kit.crash import crash_point
from protocol.kit.logs import get_log
from protocol.ports import Clock
from protocol.record import Record
from protocol.stores.redis_dispatch import Ref
from protocol.stores.redis_log import Step

log = get_log(__name__)

PAGE: Final = 1_000
SNAPSHOT_EVERY: Final = 2_000
TOO_LARGE: Final = "too_large"


class Log(Protocol):
    """What leading needs of the record log."""

    async def meta(self, space: str) -> dict[str, str]: ...
    async def tail(self, space: str, after: str, count: int) -> list[tuple[str, Record]]: ...
    async def get(self, space: str, entry: str) -> Record | None: ...
    async def append_step(self, space: str, records: Sequence[Record], *, term: int, holder: str) -> Step: ...
    async def snapshot(self, space: str) -> bytes | None: ...
    async def set_snapshot(self, space: str, data: bytes) -> None: ...


class Streams(Protocol):
    async def enqueue(self, refs: Sequence[Ref]) -> list[Ref]: ...


class Bell(Protocol):
    async def ring(self, spaces: Sequence[str]) -> None: ...


class Artifacts(Protocol):
    async def get(self, space: str, sha256: str) -> bytes: ...


class Registry(Protocol):
    async def all(self) -> dict[str, dict[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class Stores:
    """Everything that a leader talks to, but leases and wake-up calls."""

    log: Log
    streams: Streams
    bell: Bell
    artifacts: Artifacts
    roles: Registry


class RoleBook:
    """The published roles as last read, shared by all sessions of a leader: read again only where one is missing."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.known: Mapping[str, Mapping[str, Any]] = {}

    def knows(self, view: View) -> bool:
        """True where nothing that the session names is missing here."""
        return view.planned and view.graph.roles <= self.known.keys()

    async def read(self) -> None:
        self.known = await self._registry.all()


class LeaseLost(Exception):
    """Another leader has the space, or its term is over. Never leaves the leader: the space is forgotten."""


class Lead:
    """One session under this leader's lease."""

    def __init__(self, space: str, term: int, holder: str, stores: Stores, book: RoleBook, clock: Clock) -> None:
        self.space = space
        self._term = term
        self._holder = holder
        self._stores = stores
        self._book = book
        self._clock = clock
        self._view: View | None = None
        self._snapped = 0
        self._dropped: set[tuple[str, str, int]] = set()

    @property
    def view(self) -> View | None:
        """The view as folded so far; None where nothing is in memory."""
        return self._view

    @property
    def finished(self) -> bool:
        return self._view is not None and self._view.finished is not None

    def unload(self) -> None:
        """Free the memory; the next `go` folds again, from the snapshot on."""
        self._view = None

    async def go(self) -> None:
        """Fold and step until the flow has nothing more to say. Raises LeaseLost, StoreError, and ConfigError for a
        flow or version that this release does not have."""
        view = await self._load()
        while True:
            changed = await self._fold(view)
            if not view.session:
                return
            await self._prepare(view)
            records = self._decide(view, changed)
            if not records:
                break
            if await self._append(view, records):
                await self._hand_on(records)
        if view.count - self._snapped >= SNAPSHOT_EVERY:
            self._snapped = view.count
            await self._stores.log.set_snapshot(self.space, snapshot.dump(view))

    async def _load(self) -> View:
        """The view in memory, else that of the snapshot if the log still has its last entry, else a new one."""
        if self._view is None:
            data = await self._stores.log.snapshot(self.space)
            found = snapshot.load(self.space, data) if data else None
            if found is not None and await self._stores.log.get(self.space, found.last) is None:
                found = None
            self._view = found or View(self.space)
            self._snapped = self._view.count
        return self._view

    async def _fold(self, view: View) -> set[str]:
        """Fold what is new; the tasks that changed."""
        changed: set[str] = set()
        while True:
            page = await self._stores.log.tail(self.space, view.last, PAGE)
            if page:
                self._dropped.clear()
                changed |= view.fold_all(page)
            if len(page) < PAGE:
                return changed

    async def _prepare(self, view: View) -> None:
        """Hand the view what is not in the log: artifacts by content, and the roles where the flow looks at them."""
        for sha256 in list(view.wants):
            try:
                data: bytes | None = await self._stores.artifacts.get(self.space, sha256)
            except StoreError as error:
                if error.retryable:
                    raise
                data = None  # gone or damaged: the flow says so on record
            view.supply(sha256, data)
        unsure = not view.planned or view.proposals or not view.dispatches
        if unsure and not view.finished and (view.proposals or not self._book.knows(view)):
            await self._book.read()
        view.roles = self._book.known

    def _decide(self, view: View, changed: set[str]) -> list[Record]:
        """The records of the flow's commands, without those that were refused on this very state."""
        version = view.root.get("flow_version")
        flow = flows.find(str(view.root.get("flow") or "plan"), version if isinstance(version, int) else None)
        by = By(flow.name, flow.version, view.last, self._term)
        now = int(self._clock())
        records = [
            to_record(command, session=view.session, by=by, time=now, traceparent=view.traceparent)
            for command in flow.step(view, changed)
        ]
        return [r for r in records if _identity(r) not in self._dropped] if self._dropped else records

    async def _append(self, view: View, records: list[Record]) -> bool:
        """Append a step; False where it was refused: then what is at fault is left out of the next."""
        step = await self._stores.log.append_step(self.space, records, term=self._term, holder=self._holder)
        if step.refused_term:
            raise LeaseLost
        if step.ok:
            if all(outcome.outcome == "already" for outcome in step.outcomes):
                self._dropped.update(map(_identity, records))
            return True
        at = records[step.refused_at or 0]
        log.warning(
            "command_refused", space=self.space, task=at.id, event_=at.event, reason=step.reason, why=step.message
        )
        self._dropped.add(_identity(at))
        if step.reason == TOO_LARGE and not view.stop:
            await self._stop_full(view, step.message)
        return False

    async def _stop_full(self, view: View, why: str) -> None:
        """The space takes no new tasks: a guard as any other, so that the session ends with what there is."""
        by = By(str(view.root.get("flow")), 0, view.last, self._term)
        command = Decide("guard", why, f"space_{view.session}_{view.resumes}", detail={"guard": "space"})
        record = to_record(command, session=view.session, by=by, time=int(self._clock()))
        step = await self._stores.log.append_step(self.space, [record], term=self._term, holder=self._holder)
        if step.refused_term:
            raise LeaseLost

    async def _hand_on(self, records: list[Record]) -> None:
        """After the append: dispatches into their role's stream, and a ring where others have something to do."""
        crash_point("leader.after_append")
        refs = [Ref(r.detail["role"], self.space, r.id, r.attempt) for r in records if r.event == "task_assigned"]
        if refs:
            full = await self._stores.streams.enqueue(refs)
            crash_point("leader.after_enqueue")
            if full:  # they stay in the outbox; the sweep enqueues them when there is room
                log.warning("backlog_full", space=self.space, role=full[0].role, waiting=len(full))
        if any(r.event == "decision" for r in records):
            await self._stores.bell.ring([self.space])


def _identity(record: Record) -> tuple[str, str, int]:
    return record.id, record.event, record.attempt
