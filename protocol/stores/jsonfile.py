"""The record store on a local JSON file: one space a file, no server.

Guarantees: the same law, outcomes, cursors and refusals as on Redis; an append is one atomic replace under the file's
lock, judged against what is on disk at that moment, so that several processes lose nothing and double nothing. A read
takes no lock and sees one whole state. Cost is linear in the file: at most 50,000 records, refused by name beyond
that. Never breaks a lock and never writes over a file that is not its own.
"""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from protocol.cursor import entry_key, parse_moment_ms, parse_since
from protocol.errors import ConfigError, Refused, StoreError
from protocol.ports import Appended, Clock, Page, Step
from protocol.record import Record
from protocol.stores import statefile
from protocol.stores.filelock import WAIT_S, locked
from protocol.stores.ledger import RECORDS_MAX, Ledger, Row, record_of_row
from protocol.tasks import TaskState

LIMIT_MAX: Final = 1_000
AGAIN: Final = 5
"""How often a write begins anew because somebody changed the file without the lock."""
T = TypeVar("T")


class JsonFile:
    """The space in one state file (port ``RecordStore``). Every method takes the space's name, as on Redis, and
    refuses another than the file's."""

    def __init__(
        self, path: Path, *, clock: Clock = time.time, wait_s: float = WAIT_S, records_max: int = RECORDS_MAX
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._clock = clock
        self._wait_s = wait_s
        self._most = records_max
        self._seen: tuple[tuple[int, int, int], Ledger] | None = None

    async def create(self, space: str, *, meta: Mapping[str, str], replace: bool = False) -> bool:
        """Make the file for ``space`` with ``meta`` (``kind``, ``policy``, ``session``, ``title``); False where a
        state file is there already. ``replace``: make it anew whatever is there."""
        _folder(self.path)
        async with locked(self.path, wait_s=self._wait_s, clock=self._clock):
            if self.path.exists():
                if not replace:
                    self._check(space, statefile.load(self.path)[0])
                    return False
                old = statefile.read(self.path)[1]
            else:
                old = None
            made = {"kind": "hand", "created": str(self.now()), **meta}
            statefile.store(self.path, Ledger(space, made), old)
            return True

    async def exists(self, space: str) -> bool:
        """Whether the file is there and holds ``space``."""
        return self.path.exists() and self._load().space == space

    def name(self) -> str:
        """The space in the file."""
        return self._load().space

    async def meta(self, space: str) -> dict[str, str]:
        """The space's metadata with its number of records."""
        ledger = self._of(space)
        return {**ledger.meta, "n": str(len(ledger.rows))}

    async def set_meta(self, space: str, values: Mapping[str, str]) -> None:
        def put(ledger: Ledger) -> tuple[None, bool]:
            before = dict(ledger.meta)
            ledger.meta |= values
            return None, ledger.meta != before

        await self.change(space, put)

    async def open_space(self, space: str) -> None:
        """Nothing sweeps a state file: there is nothing to open."""

    async def append(self, space: str, records: Sequence[Record], *, owner: str = "") -> list[Appended]:
        """Append any number of records in one replace, one outcome each; a refusal leaves a violation."""

        def add(ledger: Ledger) -> tuple[list[Appended], bool]:
            before = ledger.last
            return self.admit(ledger, records, owner=owner), ledger.last != before

        return await self.change(space, add)

    def admit(self, ledger: Ledger, records: Sequence[Record], *, owner: str = "") -> list[Appended]:
        """Append to a space that ``change`` has in hand."""
        return ledger.admit(records, owner=owner, now_ms=self.now(), most=self._most)

    async def append_step(self, space: str, records: Sequence[Record]) -> Step:
        """Append all records or none."""

        def add(ledger: Ledger) -> tuple[Step, bool]:
            before = ledger.last
            step = ledger.admit_all(records, now_ms=self.now(), most=self._most)
            return step, step.ok and ledger.last != before

        return await self.change(space, add)

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
        """Records after ``since``, filtered, oldest first, as on Redis."""
        if not 1 <= limit <= LIMIT_MAX:
            raise Refused(f"limit={limit!r} is out of range", reason="bad_limit", path="limit", mend="1 to 1000")
        start, least = parse_since(since), 0.0
        if by_time and not start.cursor:
            moment = parse_moment_ms(str(since).strip())
            least = max(moment[0], 0) / 1000 if moment else 0.0
            start = parse_since(0)
        ledger = self._of(space)
        rewound = start.cursor and (start.ms, start.seq) > entry_key(ledger.last)
        found: list[Row] = []
        for row in _from(ledger.rows, (start.ms, start.seq), exclusive=start.exclusive):
            if _matches(row, who, event, session, least):
                found.append(row)
                if len(found) > limit:
                    break
        more = len(found) > limit
        shown = found[:limit]
        return Page(
            records=tuple(record_of_row(row) for row in shown),
            entries=tuple(row["entry"] for row in shown),
            next=shown[-1]["entry"] if more else ledger.last,
            more=more,
            rewound=rewound,
        )

    async def tail(self, space: str, after: str = "0-0", count: int = 1000) -> list[tuple[str, Record]]:
        """Unfiltered records after the entry ``after``, for folding."""
        rows = _from(self._of(space).rows, entry_key(after), exclusive=True)
        return [(row["entry"], record_of_row(row)) for _, row in zip(range(count), rows, strict=False)]

    async def get(self, space: str, entry: str) -> Record | None:
        """The record at one entry."""
        row = next(_from(self._of(space).rows, entry_key(entry), exclusive=False), None)
        return record_of_row(row) if row and row["entry"] == entry else None

    async def find(self, space: str, id: str) -> Record | None:
        """A record that is identified by its id alone."""
        packed = self._of(space).ids.get(id)
        return await self.get(space, packed.split(",")[1]) if packed else None

    async def task_states(self, space: str) -> dict[str, TaskState]:
        return self._of(space).states()

    async def task_state(self, space: str, task: str) -> TaskState | None:
        return self._of(space).state(task)

    async def now_ms(self) -> int:
        """This machine's clock."""
        return self.now()

    def now(self) -> int:
        return int(self._clock() * 1000)

    def whole(self, space: str) -> Ledger:
        """Everything in the file, to look at and not to change."""
        return self._of(space)

    async def change(self, space: str, work: Callable[[Ledger], tuple[T, bool]]) -> T:
        """Do ``work`` on the space as it is on disk, with the lock held: its answer, and whether the space changed and
        is to be written. Raises what the work raises; then nothing is written."""
        statefile.glance(self.path)  # a file that is not there, or not ours, gets no lock beside it
        async with locked(self.path, wait_s=self._wait_s, clock=self._clock):
            for _ in range(AGAIN):
                ledger, identity = statefile.load(self.path)
                self._check(space, ledger)
                answer, changed = work(ledger)
                if not changed:
                    return answer
                try:
                    statefile.store(self.path, ledger, identity)
                    return answer
                except statefile.Changed:
                    continue
        raise StoreError(
            f"{str(self.path)!r} was changed {AGAIN} times by something that does not hold its lock", op="write",
            mend="close what else writes it",
        )  # fmt: skip

    def _of(self, space: str) -> Ledger:
        ledger = self._load()
        self._check(space, ledger)
        return ledger

    def _load(self) -> Ledger:
        """The file's space; not read again while the file is the same."""
        try:
            there = os.stat(self.path)
        except OSError:
            return statefile.load(self.path)[0]
        mark = there.st_ino, there.st_mtime_ns, there.st_size
        if self._seen is None or self._seen[0] != mark:
            ledger, identity = statefile.load(self.path)
            self._seen = (identity.inode, identity.mtime_ns, identity.size), ledger
        return self._seen[1]

    def _check(self, space: str, ledger: Ledger) -> None:
        if ledger.space != space:
            raise ConfigError(
                f"the state file {str(self.path)!r} holds the space {ledger.space!r}, not {space!r}",
                mend="name the right file",
            )


def _folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{str(path.parent)!r} can't be made: {error.strerror}", mend="name another place") from error


def _from(rows: Sequence[Row], place: tuple[int, int], *, exclusive: bool) -> Iterator[Row]:
    find = bisect.bisect_right if exclusive else bisect.bisect_left
    start = find(rows, place, key=lambda row: entry_key(row["entry"]))
    return (rows[at] for at in range(start, len(rows)))


def _matches(row: Row, who: str, event: str, session: str, least: float) -> bool:
    record = row["record"]
    if event and record.get("event") != event:
        return False
    if who:
        name = str(record.get("who", ""))
        if not (name.startswith(who[:-1]) if who.endswith("*") else name == who):
            return False
    if session and (record.get("trace") or {}).get("session_id") != session:
        return False
    return not least or record.get("time", 0) > least
