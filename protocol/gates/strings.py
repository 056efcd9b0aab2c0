"""One string of a damaged text: where it ends, and what it says as a JSON string.

Guarantees: a string's content is never changed: typographic quotes, full-width marks, brackets, comments and line
breaks in it are content. A quote that is not followed by what must follow a string is text. Where two readings are
possible (what looks like a key inside a string, an odd quote in a list) the text is refused as ambiguous.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, NoReturn

from protocol.gates.lookahead import Context, Lookahead
from protocol.gates.marks import BODY, CLOSING, FAMILY, MIXED, OPENING, STRICT_STRING
from protocol.gates.strict import refuse

_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_PLAIN: Final[dict[str, str]] = {
    '"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
_PYTHON: Final[dict[str, str]] = {"a": "\a", "v": "\v", "0": "\0", "\n": ""}
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_QUOTE: Final = re.compile('"')
_BRACKET_LINE: Final = re.compile(r'[}\]][ \t]{0,20},?[ \t]{0,20}\r?\n\s{0,200}"')
_DIGIT: Final = re.compile(r"[0-9０-９]")


def unescape(raw: str, *, python: bool) -> str:
    """The content of a string without its quotes. An escape that JSON does not know keeps its backslash (``\\d`` is a
    pattern or a path), unless ``python``: then Python's own escapes (``\\x41``, ``\\a``) mean what they mean there."""
    if "\\" not in raw:
        return raw

    def one(match: re.Match[str]) -> str:
        what = match[1]
        if what in _PLAIN:
            return _PLAIN[what]
        if len(what) == 5 and what[0] == "u":
            return chr(int(what[1:], 16))
        if python and what[0] in "xU" and len(what) > 1 and int(what[1:], 16) <= 0x10FFFF:
            return chr(int(what[1:], 16))
        if python and what in _PYTHON:
            return _PYTHON[what]
        return match[0]

    text = _ESCAPE.sub(one, raw)
    # a pair of surrogate escapes is one character; a lone one stays and is refused later, by path
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _is_content(opener: str, mark: str, pairs: int) -> bool:
    """A typographic mark that is text: one that opens, or one that closes a pair opened inside the string."""
    return (opener.isascii() and mark in OPENING) or (mark in CLOSING and pairs > 0)


class Strings:
    """Reads the strings of one attempt. ``mixed``: a string may open with an ASCII quote and close with a typographic
    one, or the other way round."""

    def __init__(self, look: Lookahead, *, mixed: bool) -> None:
        self.look = look
        self.family = MIXED if mixed else FAMILY
        self.mixed = mixed
        self.python = False
        """Single quotes were seen: then double quotes too have Python's escapes."""
        self.inner = 0
        """Unescaped quotes kept as text in the string read last."""

    def read(self, pos: int, context: Context, path: Callable[[], str]) -> tuple[int, str | None]:
        """The string that opens at ``pos``: ``(position after it, its JSON text or None where that is unchanged)``."""
        text, look = self.look.text, self.look
        self.inner = 0
        if text.startswith('"""', pos) and context != "key":
            return self._triple(pos, path)
        match = STRICT_STRING.match(text, pos)
        if match is not None and look.closes(match.end(), context):
            return match.end(), None
        mark = text[pos]
        self.python = self.python or mark == "'"
        closers = self.family[mark]
        body = BODY[closers]
        end = pos + 1
        odd_at = -1
        pairs = 0  # typographic pairs opened inside and not yet closed
        while True:
            found = body.match(text, end)
            end = found.end() if found else end
            if end >= look.size:
                refuse(f"cut off inside the string at {path()}", kind="truncated", path=path())
            if look.closes(end + 1, context) and not (self.mixed and _is_content(mark, text[end], pairs)):
                break
            if context == "key":
                refuse(f"an unescaped quote in a key at {path()}", kind="damaged", path=path(), mend="escape it")
            if look.looks_structural(end + 1):
                self._doubtful(path)
            look.doubt()
            self.inner += 1
            pairs = pairs + 1 if text[end] in OPENING else max(pairs - (text[end] in CLOSING), 0)
            odd_at = end
            end += 1
        if context == "item" and self.inner % 2 and not _DIGIT.match(text, odd_at - 1):
            refuse(f"an odd quote inside the item at {path()}", kind="ambiguous", path=path(), mend="escape it")
        raw = text[pos + 1 : end]
        if self.inner and _BRACKET_LINE.search(raw):
            self._doubtful(path)
        return end + 1, json.dumps(unescape(raw, python=self.python), ensure_ascii=False)

    def _doubtful(self, path: Callable[[], str]) -> NoReturn:
        refuse(
            f"the string at {path()} seems to hold another key or item: where it ends is in doubt",
            kind="ambiguous",
            path=path(),
            mend="escape the quotes inside strings",
        )

    def _triple(self, pos: int, path: Callable[[], str]) -> tuple[int, str]:
        text, look = self.look.text, self.look
        end = pos + 3
        while True:
            end = text.find('"""', end)
            if end < 0:
                refuse(f"cut off inside the string at {path()}", kind="truncated", path=path())
            if look.closes(end + 3, "member") or look.closes(end + 3, "item"):
                break
            look.doubt()
            end += 3
        for quote in _QUOTE.finditer(text, pos + 3, end):
            look.doubt()
            if look.looks_structural(quote.end()):
                self._doubtful(path)
        return end + 3, json.dumps(unescape(text[pos + 3 : end], python=True), ensure_ascii=False)
