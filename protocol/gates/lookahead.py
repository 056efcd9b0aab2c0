"""Looking ahead in a damaged text: what follows a position, and whether a quote there can close a string.

Guarantees: pure, and linear over the whole text, however often it is asked: line and comment ends are remembered, all
other looks are bounded or end at the next quote. Never changes anything.
"""

from __future__ import annotations

from typing import Final, Literal

from protocol.gates.marks import COMMAS, FAMILY, GAP, KEY_WORD, QUOTED, SCALAR_ITEM, SHAPE
from protocol.gates.strict import MAX_DEPTH, refuse

Context = Literal["key", "member", "item"]
"""Where a string stands: an object's key, an object's value, an item of a list."""

STEPS: Final = 200_000
"""Tokens that are looked at one by one. A text that needs more is damaged through and through."""
DOUBTS: Final = 20_000
"""Quotes inside strings that might or might not close them, in one text."""

_VALUE_STARTS: Final = frozenset("-+.0123456789tfnTFN０１２３４５６７８９－")


class Lookahead:
    """One text and what is known about it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.size = len(text)
        self.steps = 0
        self.doubts = 0
        self._line = (0, -1)
        self._block = (0, -1)

    def step(self, count: int = 1) -> None:
        """Count work; refuses a text that needs too much of it."""
        self.steps += count
        if self.steps > STEPS:
            refuse(f"more than {STEPS:,} tokens in a damaged text", kind="too_damaged", mend="send JSON, or less of it")

    def doubt(self) -> None:
        """Count a quote inside a string that does not close it."""
        self.doubts += 1
        if self.doubts > DOUBTS:
            refuse(f"more than {DOUBTS:,} unescaped quotes inside strings", kind="too_damaged", mend="escape them")

    def _line_end(self, pos: int) -> int:
        start, end = self._line
        if not start <= pos <= end:
            end = self.text.find("\n", pos)
            end = self.size if end < 0 else end
            self._line = (pos, end)
        return end

    def _block_end(self, pos: int) -> int:
        start, end = self._block
        if not start <= pos < end:
            end = self.text.find("*/", pos)
            end = self.size if end < 0 else end
            self._block = (pos, end)
        return min(end + 2, self.size)

    def skip(self, pos: int) -> int:
        """The next token from ``pos``: past white space, control characters, colour codes and comments."""
        text = self.text
        while True:
            match = GAP.match(text, pos)
            pos = match.end() if match else pos
            char = text[pos : pos + 1]
            if char == "#":
                self.step()
                pos = self._line_end(pos)
            elif char == "/":
                two = text[pos : pos + 2]
                if two == "//":
                    self.step()
                    pos = self._line_end(pos)
                elif two == "/*":
                    self.step()
                    pos = self._block_end(pos + 2)
                else:
                    return pos
            else:
                return pos

    def commas(self, pos: int) -> int:
        """The next token from ``pos`` that is no comma."""
        match = COMMAS.match(self.text, pos)
        return self.skip(match.end() if match else pos)

    def shape(self, pos: int) -> str:
        """The structural mark at ``pos`` as ASCII; "" for anything else, or at the end."""
        return SHAPE.get(self.text[pos : pos + 1], "")

    def quoted_key(self, pos: int) -> bool:
        """A quoted string and a colon stand at ``pos``."""
        match = QUOTED.match(self.text, pos)
        return match is not None and self.shape(self.skip(match.end())) == ":"

    def key(self, pos: int) -> bool:
        """A key, quoted or bare, and a colon stand at ``pos``."""
        match = QUOTED.match(self.text, pos) or KEY_WORD.match(self.text, pos)
        return match is not None and self.shape(self.skip(match.end())) == ":"

    def value(self, pos: int) -> bool:
        """Something that may begin a value stands at ``pos``."""
        char = self.text[pos : pos + 1]
        return char in FAMILY or char in _VALUE_STARTS or SHAPE.get(char, "") in ("{", "[")

    def closes(self, pos: int, context: Context) -> bool:
        """A quote just before ``pos`` may close the string that stands in ``context``: what follows fits."""
        after = self.skip(pos)
        if after >= self.size:
            return True
        if self.text[pos] == "#":  # a comment stands apart; this is "C"#, or the like
            return False
        shape = self.shape(after)
        if context == "key":
            return shape == ":"
        if shape in ("}", "]"):
            return True
        if shape == ",":
            after = self.commas(after)
            if after >= self.size or self.shape(after) in ("}", "]"):
                return True
            if self.key(after):
                return True
            return context == "item" and self.value(after)
        if shape == ":":
            return False
        char = self.text[after]
        newline = self._newline(pos, after)
        if char in FAMILY:  # a comma is missing
            if self.quoted_key(after):
                return True
            return context == "item" and self._quoted_item(after, newline)
        if context == "item":
            return newline and self.value(after)
        return newline and self.key(after)

    def _newline(self, pos: int, after: int) -> bool:
        return "\n" in self.text[pos : min(after, pos + 200)]

    def _quoted_item(self, pos: int, newline: bool) -> bool:
        match = QUOTED.match(self.text, pos)
        if match is None:
            return False
        after = self.skip(match.end())
        return self.shape(after) in (",", "]") or (newline and self._newline(match.end(), after) and self.value(after))

    def looks_structural(self, pos: int) -> bool:
        """What follows the quote before ``pos`` looks like JSON though it does not fit: a colon and a value (the quote
        ended a key), or, on another line, a string or a bracket. Such a quote is no plain text."""
        after = self.skip(pos)
        shape = self.shape(after)
        if shape == ":":
            return self.value(self.skip(after + 1))
        if shape == ",":
            after = self.commas(after)
            item = QUOTED.match(self.text, after)
            if item is not None and self.shape(self.skip(item.end())) in (",", "]", "}"):
                return True
            if self.shape(after) in ("{", "["):
                return True
        return self._newline(pos, after) and (self.text[after : after + 1] in FAMILY or self.shape(after) in ("{", "["))

    def object_at(self, pos: int) -> int:
        """For a ``{`` in prose at ``pos``: where the object begins (past doubled braces), or -1 for braces of prose."""
        for doubled in range(4):
            inner = self.commas(self.skip(pos + 1))
            if inner >= self.size or self.shape(inner) == "}":
                # "{" at the very end is an object cut off; "{}" is one; "{{}}" is a template's
                return pos if doubled == 0 else -1
            if self.shape(inner) == "{":
                pos = inner
                continue
            if self.text[inner] in FAMILY:
                return -1 if self._quoted_placeholder(inner) else pos
            return pos if self.key(inner) else -1
        return self._deep(pos)

    def _deep(self, pos: int) -> int:
        depth = 0
        while self.shape(pos) == "{":
            depth += 1
            pos = self.skip(pos + 1)
            if depth > MAX_DEPTH:
                refuse(f"nested deeper than {MAX_DEPTH} levels", kind="too_deep")
        return -1

    def _quoted_placeholder(self, pos: int) -> bool:
        match = QUOTED.match(self.text, pos)
        return match is not None and match.end() - pos < 80 and self.shape(self.skip(match.end())) == "}"

    def list_at(self, pos: int) -> tuple[bool, int]:
        """For a ``[`` in prose: ``(it begins a list, position after the brackets)``."""
        depth = 0
        while self.shape(pos) == "[":
            self.step()
            depth += 1
            if depth > MAX_DEPTH:
                refuse(f"nested deeper than {MAX_DEPTH} levels", kind="too_deep")
            pos = self.skip(pos + 1)
        if pos >= self.size or self.shape(pos) == "]":
            return True, pos
        char = self.text[pos]
        if char in FAMILY:
            return True, pos
        if self.shape(pos) == "{":
            return self.object_at(pos) >= 0, pos
        match = SCALAR_ITEM.match(self.text, pos)
        return match is not None and self.shape(self.skip(match.end())) in (",", "]"), pos
