"""The front part of gate 1: which values a text holds, and what round them is prose.

Guarantees: reasoning blocks are dropped whole, drafts in them included, and one that never ends takes all that follows
with it. Braces of prose are no objects. A damaged object is never searched for an inner one: where the outer can't be
read, the text is refused. One pass over the text; the work on damaged stretches is counted and bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.errors import GateRefused
from protocol.gates.edits import BRACKET_EXTRA
from protocol.gates.lookahead import Lookahead
from protocol.gates.marks import (
    BRACES,
    CANDIDATE,
    FENCE_AFTER,
    FENCE_BEFORE,
    KEY_BEFORE,
    LONE_CLOSE,
    MIXED,
    NESTED_OBJECT,
    NO_PROSE,
    TAG_CLOSE,
    TAG_OPEN,
)
from protocol.gates.shapes import Brackets, Shapes
from protocol.gates.strict import read_strict, refuse
from protocol.record import Json

_FINAL = frozenset({"too_deep", "too_damaged", "non_finite", "too_large"})
"""Refusals that no other reading can turn into a value."""
_VALUES_MAX = 1_000


@dataclass(slots=True)
class Found:
    """A top-level value: where it stands in the text (characters), and what was mended in it."""

    value: Json
    start: int
    end: int
    notes: list[str] = field(default_factory=list)

    @property
    def weak(self) -> bool:
        """``{}``, ``[]`` and lists of numbers: in prose these are footnotes and placeholders."""
        value = self.value
        return not value or (isinstance(value, list) and not any(isinstance(v, str | dict | list) for v in value))


def find_values(text: str) -> tuple[list[Found], list[str]]:
    """Every top-level object and list in ``text``, in order, and what was dropped round them.

    Raises GateRefused (gate 1) for a value that can't be read, a reasoning block without end, damage round a value.
    """
    look = Lookahead(text)
    found: list[Found] = []
    notes: dict[str, None] = {}
    pos = 0
    lone = LONE_CLOSE.search(text)
    if lone is not None and TAG_OPEN.search(text, 0, lone.start()) is None:
        pos = lone.end()
        notes["reasoning before the answer dropped"] = None
    while (match := CANDIDATE.search(text, pos)) is not None:
        look.step(4)
        pos = match.start()
        char = text[pos]
        if char in "<◁[":
            tag = TAG_OPEN.match(text, pos)
            if tag is not None:
                pos = _end_of_reasoning(text, tag.end(), tag[0])
                notes["reasoning block dropped"] = None
                continue
            if text[pos - 1 : pos] == "\x1b":  # a colour code's bracket
                pos += 1
                continue
            tag = TAG_CLOSE.match(text, pos)
            if tag is not None:
                found.clear()
                notes["reasoning before the answer dropped"] = None
                pos = tag.end()
                continue
        if char in "{｛":
            start = look.object_at(pos)
            if start < 0:
                pos = _prose_braces(look, pos)
                continue
            if start > pos:
                notes["opening bracket too many removed"] = None
        elif char in "}｝":
            refuse("a closing bracket without an opening one in the text: something is damaged", kind="damaged")
        elif char in "[［":
            is_list, after = look.list_at(pos)
            if not is_list:
                pos = after
                continue
            start = pos
        else:
            pos += 1
            continue
        if KEY_BEFORE.search(text, max(0, pos - 40), pos):
            refuse("an object follows a key: the object round it has lost its beginning", kind="damaged")
        one = read_value(look, start, doubled=start > pos)
        found.append(one)
        if len(found) > _VALUES_MAX:
            refuse(f"more than {_VALUES_MAX:,} values in one text", kind="several", mend="send exactly one object")
        pos = one.end
    return _without_prose(text, found, notes), list(notes)


def read_value(look: Lookahead, start: int, *, doubled: bool) -> Found:
    """The value that begins at ``start``, read in the one way in which it holds together. ``doubled``: its opening
    bracket was written twice.

    Raises GateRefused where there is none, with the first reading's reason.
    """
    plan: list[tuple[Brackets, bool]] = [("missing", False)]
    first: GateRefused | None = None
    while plan:
        brackets, mixed = plan.pop(0)
        attempt = Shapes(look, start, brackets=brackets, mixed=mixed, doubled=doubled)
        look.step(10)
        try:
            end = _after_closers(look, attempt)
            result = read_strict(attempt.json())
            if result is None:
                refuse("damaged beyond repair", kind="damaged")
            return Found(result[0], start, end, attempt.edits.notes() + result[1])
        except GateRefused as refusal:
            if refusal.kind in _FINAL:
                raise
            if first is None:
                first = refusal
                if attempt.mismatched:
                    plan += [("typo", False), ("extra", False)]
                if any(mark in look.text for mark in MIXED if not mark.isascii()):
                    plan.append(("missing", True))
    assert first is not None
    raise first


def _after_closers(look: Lookahead, attempt: Shapes) -> int:
    """Read one attempt; the position after it and after brackets too many. Refuses what contradicts itself."""
    end = attempt.read()
    more = look.skip(end)
    extra = 0
    while look.shape(more) in ("}", "]"):
        look.step()
        extra += 1
        end = more + 1
        more = look.skip(end)
    if extra:
        attempt.edits.note(BRACKET_EXTRA, extra)
    extra += attempt.extra
    if extra and (attempt.missing or (attempt.mismatched and attempt.brackets == "typo")):
        refuse("brackets are missing and too many at once", kind="ambiguous")
    if attempt.brackets == "typo" and attempt.missing:
        refuse("brackets are mistyped and missing at once", kind="ambiguous")
    text = look.text
    quote = text[more : more + 1]
    if quote in ("'", '"') and text[attempt.start - 1 : attempt.start] != quote:
        refuse("a quote follows the last bracket: where a string ends is in doubt", kind="ambiguous")
    if look.shape(more) == "," and text[attempt.start] in "[［":
        item = look.skip(more + 1)
        if look.value(item) and not look.shape(item):
            refuse("items follow the end of the list", kind="ambiguous")
    return end


def _end_of_reasoning(text: str, pos: int, tag: str) -> int:
    close = TAG_CLOSE.search(text, pos)
    if close is None:
        refuse(
            f"the reasoning block {tag[:40]!r} never ends: there is no answer after it",
            kind="truncated",
            mend="ask for the whole answer again",
        )
    return close.end()


def _prose_braces(look: Lookahead, pos: int) -> int:
    """Past the braces of prose that open at ``pos``. Refuses if an object stands inside, or if they never close."""
    text = look.text
    depth = 0
    for brace in BRACES.finditer(text, pos):
        look.step()
        depth += 1 if brace[0] in "{｛" else -1
        if not depth:
            if NESTED_OBJECT.search(text, pos + 1, brace.end()):
                refuse("an object inside braces that can't be read: damaged beyond repair", kind="damaged")
            return brace.end()
    if NESTED_OBJECT.search(text, pos + 1):
        refuse("a bracket that never closes, with an object after it", kind="damaged")
    refuse("no JSON in the text", kind="no_json")


def _without_prose(text: str, found: list[Found], notes: dict[str, None]) -> list[Found]:
    """Leave out placeholders and footnotes; say whether there was prose."""
    at = 0
    outside = []
    for one in found:
        outside.append(text[at : one.start])
        at = one.end
    outside.append(text[at:])
    bare = [NO_PROSE.sub("", piece) for piece in outside]
    if any(piece.strip() for piece in bare):
        notes["text round the value dropped"] = None
    if any("```" in piece or "~~~" in piece for piece in outside):
        notes["code fence removed"] = None
    if not any(any(map(str.isalnum, piece)) for piece in bare):
        return found
    strong = [one for one in found if not one.weak]
    if strong:
        return strong
    return [
        one
        for one in found
        if FENCE_BEFORE.search(text, max(0, one.start - 60), one.start) and FENCE_AFTER.match(text, one.end)
    ]
