"""From pieces of live text to lines for a terminal: one agent a line, whole lines where there are any.

Guarantees: pure; an agent's text stays in order, two agents' texts never share a line; a piece of a later attempt
begins a new line. What is shown is bounded: a line without an end is cut at ``WIDTH`` characters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocol.stores.redis_live import Piece

WIDTH: Final = 100


@dataclass
class LiveLines:
    """Collects pieces; gives ``(agent, kind, line)`` as soon as a line is whole or long enough."""

    _open: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    """Per agent: attempt, kind, the text of its unfinished line."""

    def take(self, piece: Piece) -> list[tuple[str, str, str]]:
        """The lines that are complete with this piece."""
        attempt, kind, text = self._open.pop(piece.agent, (piece.attempt, piece.kind, ""))
        out: list[tuple[str, str, str]] = []
        if (attempt, kind) != (piece.attempt, piece.kind):
            out += [(piece.agent, kind, text)] if text.strip() else []
            text = ""
        *lines, rest = (text + piece.text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for line in lines:
            out += [(piece.agent, piece.kind, part) for part in _parts(line)]
        *long, rest = _parts(rest) or [""]
        out += [(piece.agent, piece.kind, part) for part in long]
        self._open[piece.agent] = (piece.attempt, piece.kind, rest)
        return [line for line in out if line[2].strip()]

    def rest(self, agent: str = "") -> list[tuple[str, str, str]]:
        """The unfinished lines, of one agent or of all; they are finished with that."""
        names = [agent] if agent in self._open else [] if agent else list(self._open)
        found = [(name, *self._open.pop(name)[1:]) for name in names]
        return [line for line in found if line[2].strip()]


def _parts(line: str) -> list[str]:
    return [line[at : at + WIDTH] for at in range(0, len(line), WIDTH)]
