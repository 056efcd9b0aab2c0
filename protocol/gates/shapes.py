"""One object or list of a damaged text, rewritten as JSON: separators, brackets, bare words, comments, commas.

Guarantees: works as a list of edits on the text, so what is not damaged is passed on letter by letter; one pass, an
explicit stack, no recursion. Keys keep their place. What was cut off is refused as truncated, never completed; a value
that is not there is never made up. Never decides between two readings: that is refused.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Literal, NoReturn

from protocol.gates import edits
from protocol.gates.edits import Edits
from protocol.gates.lookahead import Lookahead
from protocol.gates.marks import (
    CLEAN_ITEMS,
    CLEAN_MEMBERS,
    COMMAS,
    FAMILY,
    KEY_WORD,
    LIKELY_ITEMS,
    LIKELY_MEMBERS,
    LITERALS,
    NOT_FINITE,
    NUMBER,
    NUMBERISH,
    PLAIN_GAP,
    SHAPE,
    WORD,
)
from protocol.gates.strict import MAX_DEPTH, refuse
from protocol.gates.strings import Strings

Brackets = Literal["missing", "typo", "extra"]
"""What a closing bracket of the wrong kind means: inner ones are missing, it was mistyped, or it is one too many."""

_CLOSER = {"{": "}", "[": "]"}


@dataclass(slots=True)
class _Frame:
    """An open bracket. ``state``: 0 wants a key or item, 1 wants the key's value, 2 wants a comma or the
    end. ``lists``: it has lists as items, so where a missing bracket belongs is in doubt."""

    kind: str
    state: int = 0
    count: int = 0
    key: tuple[int, int] = (0, 0)
    lists: bool = False


class Shapes:
    """One attempt at the value that begins at ``start``. After ``read``: ``end``, ``json()``, ``notes``."""

    def __init__(
        self, look: Lookahead, start: int, *, brackets: Brackets, mixed: bool = False, doubled: bool = False
    ) -> None:
        self.look = look
        self.text = look.text
        self.start = start
        self.end = start
        self.brackets = brackets
        self.doubled = doubled
        self.strings = Strings(look, mixed=mixed)
        self.mismatched = False
        self.missing = 0
        self.extra = 0
        self._stack: list[_Frame] = []
        self._comma: tuple[int, int] | None = None
        self.edits = Edits(look.text, start, self._path)

    def json(self) -> str:
        """The value as JSON text (a last strict reading decides whether it really is)."""
        return self.edits.result(self.end)

    def _path(self) -> str:
        parts: list[str] = []
        for frame in self._stack:
            if frame.kind == "[":
                parts.append("[]")
            elif frame.state == 1 or frame is not self._stack[-1]:
                parts.append("." + self.text[slice(*frame.key)].strip("\"'“”‘’「」＂")[:60])
        path = "".join(parts).removeprefix(".") or "$"
        return path if len(path) <= 160 else f"{path[:80]}…{path[-70:]}"

    def _refuse(self, message: str, kind: str = "damaged", mend: str = "") -> NoReturn:
        path = self._path()
        refuse(f"{message} at {path}" if path != "$" else message, kind=kind, path=path, mend=mend)

    # -- the pass ----------------------------------------------------------------------------------------------------

    def read(self) -> int:
        """Read the value; returns the position after it. Raises GateRefused."""
        look, text = self.look, self.text
        pos = self._open(self.start)
        while True:
            look.step()
            if self._comma is None:
                self.edits.settle(pos)
            pos = self._gap(pos)
            if pos >= look.size:
                self._truncated()
            top = self._stack[-1]
            mark = SHAPE.get(text[pos], "")
            if mark in ("}", "]"):
                pos = self._close(pos, mark)
                if not self._stack:
                    self.end = pos
                    return pos
            elif mark == ",":
                pos = self._take_comma(pos, top)
            elif top.state == 2:
                self._missing_comma(pos)
            elif top.state == 1:
                pos = self._value(pos)
            elif top.kind == "{":
                pos = self._key(pos, top)
            else:
                pos = self._item(pos, top)

    def _truncated(self) -> NoReturn:
        opened = "".join(_CLOSER[frame.kind] for frame in reversed(self._stack[-20:]))
        self._refuse(f"cut off: {opened!r} is missing at the end", "truncated", "ask for the whole answer again")

    def _gap(self, pos: int) -> int:
        char = self.text[pos : pos + 1]
        if char > " " and char not in "#/\x7f" and char.isascii():
            return pos
        end = self.look.skip(pos)
        if end > pos:
            plain = PLAIN_GAP.match(self.text, pos)
            if plain is None or plain.end() < end:
                piece = self.text[pos:end]
                comment = "//" in piece or "/*" in piece or "#" in piece
                self.edits.add(pos, end, " ", edits.COMMENT if comment else edits.CONTROL)
        return end

    def _open(self, pos: int) -> int:
        mark = SHAPE[self.text[pos]]
        if len(self._stack) >= MAX_DEPTH:
            self._refuse(f"nested deeper than {MAX_DEPTH} levels", "too_deep")
        self._settle()
        if mark == "[" and self._stack:
            self._stack[-1].lists = True
        self._stack.append(_Frame(mark))
        if self.text[pos] != mark:
            self.edits.add(pos, pos + 1, mark, edits.WIDE_BRACKET)
        return pos + 1

    def _settle(self) -> None:
        """What follows the comma has come: the comma stays."""
        if self._comma is not None:
            start, end = self._comma
            self._comma = None
            if self.text[start] != ",":
                self.edits.add(start, end, ",", edits.SEPARATOR)

    def _take_comma(self, pos: int, top: _Frame) -> int:
        if top.state == 1:
            self._refuse("a key without a value")
        if top.state == 0:
            if top.kind == "[":
                self._refuse("nothing between two commas")
            match = COMMAS.match(self.text, pos)
            end = match.end() if match else pos + 1
            self.edits.add(pos, end, "", edits.COMMA_EXTRA)
            return end
        self._comma = (pos, pos + 1)
        top.state = 0
        return pos + 1

    def _missing_comma(self, pos: int) -> None:
        look, top = self.look, self._stack[-1]
        if top.kind == "[" and look.quoted_key(pos) and self._implicit(pos):
            top = self._stack[-1]
        fits = look.key(pos) if top.kind == "{" else look.value(pos) or WORD.match(self.text, pos) is not None
        if not fits:
            self._refuse(f"{self.text[pos : pos + 12]!r} where a comma or a closing bracket belongs")
        self.edits.add(pos, pos, ",", edits.COMMA_MISSING)
        top.state = 0

    def _implicit(self, at: int) -> bool:
        """A key stands in a list: its closing bracket is missing, if there is an object round it."""
        depth = len(self._stack)
        while depth and self._stack[depth - 1].kind == "[":
            frame = self._stack[depth - 1]
            if not frame.count or frame.lists:
                return False
            depth -= 1
        if not depth:
            return False
        self.edits.add(at, at, "]" * (len(self._stack) - depth), edits.BRACKET_MISSING)
        self.missing += len(self._stack) - depth
        del self._stack[depth:]
        self._stack[-1].state = 2
        return True

    def _key(self, pos: int, top: _Frame) -> int:
        look, text = self.look, self.text
        run = CLEAN_MEMBERS.match(text, pos)
        if run is None and (run := LIKELY_MEMBERS.match(text, pos)) is not None:
            self._rewrite(run)
        if run is not None:
            self._settle()
            top.count += 1
            pos = run.end()
        char = text[pos]
        if char in FAMILY:
            end, new = self.strings.read(pos, "key", self._path)
            if new is not None:
                self.edits.add(pos, end, new, edits.QUOTES if char != '"' else edits.STRING)
        elif SHAPE.get(char) == "{" and top.count and len(self._stack) > 1 and self._stack[-2].kind == "[":
            at = self._comma[0] if self._comma else pos
            self.edits.add(at, at, "}", edits.BRACKET_MISSING)
            self.missing += 1
            self._stack.pop()
            self._stack[-1].state = 0 if self._comma else 2
            return pos
        else:
            match = KEY_WORD.match(text, pos)
            if match is None:
                self._refuse(f"{text[pos : pos + 12]!r} where a key belongs")
            end = match.end()
            if look.skip(end) >= look.size:
                self._truncated()
            if look.shape(look.skip(end)) != ":":
                self._refuse(f"{text[pos : pos + 12]!r} where a key belongs")
            self.edits.add(pos, end, json.dumps(match[0], ensure_ascii=False), edits.BARE_KEY)
        top.key = (pos, end)
        colon = self._gap(end)
        if colon >= look.size:
            self._truncated()
        if look.shape(colon) != ":":
            self._refuse("a key without a colon")
        if text[colon] != ":":
            self.edits.add(colon, colon + 1, ":", edits.SEPARATOR)
        top.state = 1
        self._settle()
        return colon + 1

    def _rewrite(self, run: re.Match[str]) -> None:
        self.edits.rewrite(run.start(), run.end())
        self.strings.python = self.strings.python or "'" in run[0]

    def _item(self, pos: int, top: _Frame) -> int:
        run = CLEAN_ITEMS.match(self.text, pos)
        if run is None and (run := LIKELY_ITEMS.match(self.text, pos)) is not None:
            self._rewrite(run)
        if run is not None:
            self._settle()
            top.count += 1
            top.lists = top.lists or "[" in run[0]
            pos = run.end()
            if not self.look.quoted_key(pos):
                return pos
            comma = max(self.text.rfind(mark, run.start(), pos) for mark in ",，")
            self._comma = (comma, comma + 1)
        if self.look.quoted_key(pos):
            at = self._comma[0] if self._comma else -1
            if at < 0 or not self._implicit(at):
                self._refuse("a key in a list")
            self._stack[-1].state = 0
            return pos
        return self._value(pos)

    def _value(self, pos: int) -> int:
        top = self._stack[-1]
        char = self.text[pos]
        if SHAPE.get(char) in ("{", "["):
            end = self._open(pos)
            top.state = 2
            top.count += 1
            return end
        if char in "uU" and self.text[pos + 1 : pos + 2] in ("'", '"'):
            self.edits.add(pos, pos + 1, "", edits.PREFIX)
            pos += 1
            char = self.text[pos]
        if char in FAMILY:
            end, new = self.strings.read(pos, "member" if top.kind == "{" else "item", self._path)
            if new is not None:
                note = edits.QUOTES if char != '"' else edits.STRING
                self.edits.add(pos, end, new, edits.INNER_QUOTES if self.strings.inner else note)
        else:
            end = self._scalar(pos)
        self._settle()
        top.state = 2
        top.count += 1
        return end

    def _scalar(self, pos: int) -> int:
        text = self.text
        match = NUMBERISH.match(text, pos) or WORD.match(text, pos)
        if match is None:
            if SHAPE.get(text[pos]) == ":":
                self._refuse("a second colon")
            self._refuse(f"{text[pos : pos + 12]!r} where a value belongs")
        word, end = match[0], match.end()
        plain = word if word.isascii() else unicodedata.normalize("NFKC", word).replace("\u2212", "-")
        if NOT_FINITE.match(plain):
            self._refuse(f"{plain} is no JSON number", "non_finite", "use null, or text")
        after = self.look.skip(end)
        if after >= self.look.size:
            self._truncated()
        if end == after and SHAPE.get(text[after], "") not in (",", "}", "]"):
            self._refuse(f"{text[pos : end + 8]!r} where a value belongs", mend="put text in quotes")
        if plain.casefold() in LITERALS:
            new = LITERALS[plain.casefold()]
            if new != word:
                self.edits.add(pos, end, new, edits.LITERAL)
            return end
        new = plain.removeprefix("+")
        if new.startswith((".", "-.")):
            new = new.replace(".", "0.", 1)
        if new.endswith("."):
            new += "0"
        if not NUMBER.fullmatch(new):
            self._refuse(f"{word[:40]!r} where a value belongs", mend="put text in quotes")
        if new != word:
            self.edits.add(pos, end, new, edits.NUMBER_FORM)
        return end

    # -- closing -----------------------------------------------------------------------------------------------------

    def _close(self, pos: int, mark: str) -> int:
        stack = self._stack
        if stack[-1].state == 1:
            self._refuse("a key without a value")
        if self._comma is not None:
            self.edits.add(*self._comma, "", edits.COMMA_TRAILING)
            self._comma = None
            stack[-1].state = 2
        want = _CLOSER[stack[-1].kind]
        new = mark
        if mark != want:
            self.mismatched = True
            if self.brackets == "typo":
                new = want
            else:
                depth = len(stack)
                while depth and _CLOSER[stack[depth - 1].kind] != mark:
                    depth -= 1
                if self.brackets == "extra" or not depth:
                    self.extra += 1
                    self.edits.add(pos, pos + 1, "", edits.BRACKET_EXTRA)
                    return pos + 1
                if any(frame.lists and frame.kind == "[" for frame in stack[depth:]):
                    self._refuse("a closing bracket is missing, and where is in doubt", "ambiguous")
                inner = "".join(_CLOSER[frame.kind] for frame in reversed(stack[depth:]))
                self.missing += len(inner)
                self.edits.add(pos, pos, inner, edits.BRACKET_MISSING)
                del stack[depth:]
        if len(stack) == 1 and mark == "}" and not self.doubled:
            end = self._goes_on(pos + 1)
            if end > pos:
                self.extra += 1
                self.edits.add(pos, end, "", edits.BRACKET_EXTRA)
                return end
        if self.text[pos] != new:
            wrong = edits.BRACKET_TYPO
            self.edits.add(pos, pos + 1, new, wrong if new != mark else edits.WIDE_BRACKET)
        stack.pop()
        if stack:
            stack[-1].state = 2
        return pos + 1

    def _goes_on(self, pos: int) -> int:
        """Where the object goes on after its last closing bracket (a comma, a quoted key, a colon), or -1."""
        look = self.look
        end = look.skip(pos)
        while look.shape(end) in ("}", "]"):
            look.step()
            end = look.skip(end + 1)
        return end if look.shape(end) == "," and look.quoted_key(look.skip(end + 1)) else -1
