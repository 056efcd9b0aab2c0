"""What agents are writing, shown while it is written: on stderr beside a followed session, and in ``watch``.

Guarantees: shown without control characters; a store that is away only means that nothing is shown. Never waits for
text, never writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from coordinator.cli.app import App
from coordinator.cli.render import cut, plain
from coordinator.cli.store import FOLLOW_TIMEOUT_S, Store
from coordinator.livelines import WIDTH, LiveLines
from protocol.errors import StoreError
from protocol.record import Record
from protocol.stores.client import connect
from protocol.stores.redis_live import START, Live

BLOCK_MS: Final = 2_000
PAUSE_S: Final = 1.0
MOVING: Final = ("planning", "running")


class LiveScreen:
    """The text of one session on stderr, line by line."""

    def __init__(self, app: App, live: Live, session: str) -> None:
        self._app = app
        self._live = live
        self._session = session
        self._lines = LiveLines()

    async def run(self) -> None:
        """Show until cancelled."""
        after = START
        while True:
            try:
                pieces = await self._live.read(self._session, after, block_ms=BLOCK_MS)
            except StoreError:
                await asyncio.sleep(PAUSE_S)
                continue
            for piece in pieces:
                after = piece.entry
                self._show(self._lines.take(piece))

    def settle(self, record: Record) -> None:
        """A record of an agent has come: what it had written is whole."""
        self._show(self._lines.rest(record.who))

    def settle_all(self) -> None:
        """The session is over."""
        self._show(self._lines.rest())

    def _show(self, lines: Iterable[tuple[str, str, str]]) -> None:
        for agent, kind, text in lines:
            self._app.note(f"  {cut(agent, 24)} {'~' if kind == 'reasoning' else '|'} {plain(text)}")


class _Nothing(LiveScreen):
    """No text was asked for."""

    def __init__(self) -> None:
        self._lines = LiveLines()


@asynccontextmanager
async def live_text(app: App, store: Store, session: str, *, wanted: bool) -> AsyncIterator[LiveScreen]:
    """Show a session's text while the block runs, where it is ``wanted``; on a connection of its own."""
    if not wanted:
        yield _Nothing()
        return
    client = connect(store.url, answer_timeout_s=FOLLOW_TIMEOUT_S, pool=1)
    screen = LiveScreen(app, Live(client, store.keys), session)
    showing = asyncio.create_task(screen.run())
    try:
        yield screen
        screen.settle_all()
    finally:
        while not showing.done():  # a client library may swallow a cancellation that meets an answer
            showing.cancel()
            await asyncio.wait({showing}, timeout=0.2)
        await client.aclose()


async def last_words(store: Store, sessions: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The last words of every agent that was writing in these sessions, the newest last."""
    live = Live(store.client, store.keys)
    out: list[dict[str, str]] = []
    for session in (row["session"] for row in sessions if row["phase"] in MOVING):
        texts: dict[str, str] = {}
        for piece in await live.last(session):
            texts[piece.agent] = (texts.pop(piece.agent, "") + piece.text)[-4 * WIDTH :]
        for agent, text in texts.items():
            words = " ".join(text.split())
            out.append({"session": session, "agent": agent, "text": words[-WIDTH:]})
    return out
