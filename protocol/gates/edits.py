"""The edits of one attempt at a damaged text, and what is told about them.

Guarantees: what no edit touches is passed on letter by letter; memory grows with the text, not with the number of
edits. Knows nothing of JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocol.gates.marks import LIKELY_KEY, LIKELY_STRING, LIKELY_WORD, LITERALS

_FLUSH: Final = 10_000

COMMENT: Final = "comment removed"
CONTROL: Final = "control characters outside strings removed"
QUOTES: Final = "typographic or single quotes read as ASCII"
INNER_QUOTES: Final = "unescaped quotes kept as text"
STRING: Final = "string rewritten"
BARE_KEY: Final = "bare key quoted"
LITERAL: Final = "Python literal read as JSON"
NUMBER_FORM: Final = "number rewritten as JSON"
PREFIX: Final = "Python string prefix removed"
SEPARATOR: Final = "full-width separator read as ASCII"
WIDE_BRACKET: Final = "full-width bracket read as ASCII"
COMMA_MISSING: Final = "missing comma put in"
COMMA_EXTRA: Final = "comma too many removed"
COMMA_TRAILING: Final = "trailing comma removed"
BRACKET_MISSING: Final = "missing closing bracket put in"
BRACKET_EXTRA: Final = "closing bracket too many removed"
BRACKET_TYPO: Final = "closing bracket of the wrong kind mended"


class Edits:
    """Edits of ``text`` from ``start`` on, in any order until they are flushed; ``path`` says where the reader is."""

    def __init__(self, text: str, start: int, path: Callable[[], str]) -> None:
        self.text = text
        self._path = path
        self._from = start
        self._edits: list[tuple[int, int, str]] = []
        self._done: list[str] = []
        self._notes: dict[str, tuple[int, str]] = {}

    def add(self, start: int, end: int, new: str, note: str) -> None:
        """Put ``new`` in the place of ``text[start:end]``."""
        self._edits.append((start, end, new))
        self.note(note)

    def note(self, note: str, count: int = 1) -> None:
        """Tell that something was done ``count`` times."""
        before = self._notes.get(note)
        self._notes[note] = (before[0] + count, before[1]) if before else (count, self._path())

    def rewrite(self, start: int, end: int) -> None:
        """A stretch without doubt in which only marks, quotes and literals are to be changed: all at once."""
        pieces = LIKELY_STRING.split(self.text[start:end])
        strings = pieces[1::2]
        plain, keys = LIKELY_KEY.subn(lambda match: f'"{match[1]}"', "\0".join(pieces[0::2]))
        plain, words = LIKELY_WORD.subn(lambda match: LITERALS[match[0].casefold()], plain)
        marks = plain.count("，") + plain.count("：")
        pieces[0::2] = plain.replace("，", ",").replace("：", ":").split("\0")
        pieces[1::2] = [text if text[0] == '"' else f'"{text[1:-1]}"' for text in strings]
        self._edits.append((start, end, "".join(pieces)))
        quotes = sum(text[0] != '"' for text in strings)
        for note, count in ((QUOTES, quotes), (BARE_KEY, keys), (LITERAL, words), (SEPARATOR, marks)):
            if count:
                self.note(note, count)

    def settle(self, upto: int) -> None:
        """No edit before ``upto`` will follow: now and then that is the moment to let go of what is done."""
        if len(self._edits) >= _FLUSH:
            self._flush(upto)

    def _flush(self, upto: int) -> None:
        parts: list[str] = []
        at = self._from
        for start, end, new in sorted(self._edits, key=lambda edit: edit[:2]):
            parts.append(self.text[at:start])
            parts.append(new)
            at = end
        parts.append(self.text[at:upto])
        self._done.append("".join(parts))
        self._from = upto
        self._edits.clear()

    def result(self, end: int) -> str:
        """The edited text up to ``end``."""
        self._flush(end)
        return "".join(self._done)

    def notes(self) -> list[str]:
        """What was done, each kind once: how often, and where first."""
        out: list[str] = []
        for note, (count, path) in self._notes.items():
            times = f"{count} times" if count > 1 else ""
            where = ("first at " if count > 1 else "at ") + path if path != "$" else ""
            told = ", ".join(part for part in (times, where) if part)
            out.append(f"{note} ({told})" if told else note)
        return out
