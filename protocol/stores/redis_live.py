"""What agents' models are writing right now, for people who watch: a capped stream a space that expires by itself.

Guarantees: a piece of an attempt that was taken over is not stored (``lua/live.lua``); what nobody reads in time is
gone. Never the truth: whoever decides anything reads the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.keys import Keys
from protocol.ports import Dispatch
from protocol.stores.client import Client, guard
from protocol.stores.scripts import Scripts

MOST_ENTRIES: Final = 1_000
LIFE_MS: Final = 3_600_000
PIECE_MAX: Final = 4_096
"""Characters of one entry; what is longer is cut into several."""
START: Final = "0-0"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of text. ``kind``: ``content`` or ``reasoning``; ``entry`` is the cursor to read on from."""

    entry: str
    task: str
    attempt: int
    agent: str
    kind: str
    text: str


class Live:
    """The live streams of every space on one server."""

    def __init__(self, client: Client, keys: Keys, scripts: Scripts | None = None) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts or Scripts(client)

    async def add(self, dispatch: Dispatch, pieces: Sequence[tuple[str, str]]) -> bool:
        """Add ``(kind, text)`` pieces; False where the attempt is no longer the owner's."""
        k = self._keys.space(dispatch.space)
        args: list[str | int] = [
            dispatch.task, dispatch.attempt, dispatch.owner, dispatch.agent, MOST_ENTRIES, LIFE_MS
        ]  # fmt: skip
        for kind, text in pieces:
            for at in range(0, len(text), PIECE_MAX):
                args += [kind, text[at : at + PIECE_MAX]]
        return bool(await self._scripts.run("live", [k.tasks, k.live], args))

    async def read(
        self, space: str, after: str = START, *, count: int = 500, block_ms: int | None = None
    ) -> list[Piece]:
        """Pieces after the entry ``after``; ``block_ms`` waits for one so long (on a client that may block)."""
        key = self._keys.space(space).live
        with guard("live"):
            found = await self._client.xread({key: after}, count=count, block=block_ms)
        return [_piece(entry, fields) for _, entries in found or () for entry, fields in entries]

    async def last(self, space: str, count: int = 200) -> list[Piece]:
        """The newest pieces, oldest first."""
        with guard("live"):
            found = await self._client.xrevrange(self._keys.space(space).live, count=count)
        return [_piece(entry, fields) for entry, fields in reversed(found)]


def _piece(entry: bytes, fields: dict[bytes, bytes]) -> Piece:
    got = {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()}
    return Piece(entry.decode(), got["s"], int(got["n"]), got["a"], got["k"], got["t"])
