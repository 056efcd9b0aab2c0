"""Following a log: every record from a cursor on, and then each new one as it arrives.

Guarantees: exact continuation, also over a broken connection (said once, then tried again); waits on the server, never
in a loop of its own. Never skips in silence: a log that was rewound is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

from protocol.cursor import parse_moment_ms
from protocol.errors import StoreUnreachable
from protocol.keys import Keys
from protocol.record import Record
from protocol.stores.client import Client, guard
from protocol.stores.jsonfile import JsonFile
from protocol.stores.redis_log import RedisLog

BLOCK_MS: Final = 5_000
FIRST_PAUSE_S: Final = 0.25
MOST_PAUSE_S: Final = 5.0
FILE_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Filter:
    """What of a log is wanted; empty: all of it."""

    who: str = ""
    event: str = ""
    session: str = ""
    by_time: bool = False


EVERYTHING: Final = Filter()


async def follow(
    log: RedisLog,
    blocking: Client,
    keys: Keys,
    space: str,
    *,
    since: str | int = 0,
    wanted: Filter = EVERYTHING,
    tell: Callable[[str], None] = lambda text: None,
) -> AsyncGenerator[tuple[str, Record], None]:
    """Records of ``space`` after ``since`` with their entries, for ever. ``blocking`` is a connection of its own;
    ``tell`` is called with one sentence when the store goes and when it is back. Raises Refused for a bad cursor."""
    cursor, pause, gone = since, FIRST_PAUSE_S, False
    later_than_s = _later_than(since, wanted)
    while True:
        try:
            page = await log.read(
                space, since=cursor, who=wanted.who, event=wanted.event, session=wanted.session, limit=500,
                by_time=wanted.by_time,
            )  # fmt: skip
            if gone:
                tell("the store is back")
                gone, pause = False, FIRST_PAUSE_S
            if page.rewound:
                tell("the log was rewound: it is read from its start again")
                cursor = 0
                continue
            for entry, record in zip(page.entries, page.records, strict=True):
                if record.time > later_than_s:  # from the second page on the cursor is an entry: it knows no times
                    yield entry, record
            cursor = page.next
            if not page.more:
                await _news(blocking, keys, space, str(cursor))
        except StoreUnreachable as error:
            if not gone:
                tell(f"{error.message}; trying again")
            gone = True
            await asyncio.sleep(pause)
            pause = min(pause * 2, MOST_PAUSE_S)


async def follow_file(
    log: JsonFile, space: str, *, since: str | int = 0, wanted: Filter = EVERYTHING
) -> AsyncGenerator[tuple[str, Record], None]:
    """The same on a state file, which tells nobody that it changed: it is looked at five times a second."""
    cursor, later_than_s = since, _later_than(since, wanted)
    while True:
        page = await log.read(
            space, since=cursor, who=wanted.who, event=wanted.event, session=wanted.session, limit=500,
            by_time=wanted.by_time,
        )  # fmt: skip
        for entry, record in zip(page.entries, page.records, strict=True):
            if record.time > later_than_s:
                yield entry, record
        cursor = page.next
        if not page.more:
            await asyncio.sleep(FILE_PAUSE_S)


def _later_than(since: str | int, wanted: Filter) -> float:
    """What the writers' times are compared with, from the second page on, when the cursor is an entry."""
    moment = parse_moment_ms(str(since)) if wanted.by_time else None
    return moment[0] / 1000 if moment and moment[0] > 0 else float("-inf")


async def _news(blocking: Client, keys: Keys, space: str, cursor: str) -> None:
    """Return when the log has an entry after ``cursor``, or after a while."""
    with guard("follow"):
        await blocking.xread({keys.space(space).log: cursor}, count=1, block=BLOCK_MS)
