"""Gate 1: from what a model wrote to the one JSON value in it.

Guarantees: JSON is never altered (a JSON string that holds an object is peeled, once); the content of strings is never
changed; the work is linear in the text and its memory bounded; whatever comes in, either a value comes out or
GateRefused is raised. Never completes what was cut off, never takes a draft from a reasoning block, never takes one of
several values on its own.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable
from typing import Final

from protocol.errors import GateRefused
from protocol.gates.front import Found, find_values
from protocol.gates.marks import BARE_QUOTE, ESCAPED, FENCED_STRING
from protocol.gates.strict import read_strict, refuse
from protocol.record import Json

MAX_CHARS: Final = 64 * 1024 * 1024
"""Characters of a text; more is refused unread."""

_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_EDGES: Final = "\ufeff\x00 \t\r\n"


def repair(text: str | bytes) -> tuple[Json, list[str]]:
    """The one JSON value in ``text`` and what was repaired, in words.

    Raises GateRefused (gate 1). Its ``kind``: ``no_json``, ``truncated``, ``damaged``, ``ambiguous``, ``several``,
    ``too_deep``, ``too_damaged``, ``too_large``, ``non_finite``, ``loses_digits``, ``not_storable``, ``not_utf8``.
    """
    found, notes = _values(_decoded(text))
    return _only(found, notes)


def object_from_text(
    text: str, *, required: tuple[str, ...] = (), truncated: bool = False
) -> tuple[dict[str, Json], list[str]]:
    """The object in a model's answer that has all ``required`` keys, and what was repaired.

    ``truncated``: the endpoint said that the answer was cut off; then nothing in it is taken. Raises GateRefused
    (gate 1): as ``repair``, and where not exactly one object has the keys.
    """
    if truncated:
        refuse("the answer was cut off", kind="truncated", mend="allow more tokens, or ask again")
    return choose(text, lambda value: all(key in value for key in required), required)


def choose(
    text: str | bytes, fits: Callable[[dict[str, Json]], bool], required: Iterable[str]
) -> tuple[dict[str, Json], list[str]]:
    """The one object in ``text`` that ``fits``. ``required`` names the keys for the message. Raises GateRefused."""
    found, notes = _values(_decoded(text))
    objects = [one for one in found if isinstance(one.value, dict)]
    if not objects:
        _only(found, notes)
        refuse("a JSON value, but no object", kind="no_json")
    fitting = [one for one in objects if fits(one.value)]
    names = ", ".join(repr(key) for key in required)
    if not fitting:
        missing = next((key for key in required if key not in objects[0].value), "$")
        path = missing if len(objects) == 1 else "$"
        refuse(f"no object with the keys {names}", kind="no_json", path=path)
    if len(fitting) > 1:
        which = f" with the keys {names}" if names else ""
        refuse(f"{len(fitting)} objects{which} in one text", kind="several", mend="send exactly one object")
    one = fitting[0]
    if len(found) > 1:
        notes = [*notes, f"the object with the keys {names} taken, {len(found) - 1} other value(s) dropped"]
    return one.value, notes + one.notes


def _only(found: list[Found], notes: list[str]) -> tuple[Json, list[str]]:
    if not found:
        refuse("no JSON in the text", kind="no_json", mend="send one JSON object")
    if len(found) > 1:
        refuse(f"{len(found)} values in one text", kind="several", mend="send exactly one object")
    return found[0].value, notes + found[0].notes


def _decoded(text: str | bytes) -> str:
    if isinstance(text, str):
        out = text
    else:
        raw = bytes(text)
        bom, encoding = next(((bom, name) for bom, name in _BOMS if raw.startswith(bom)), (b"", "utf-8"))
        try:
            out = raw[len(bom) :].decode(encoding)
        except UnicodeDecodeError as error:
            refuse(f"not {encoding.upper()} at byte {error.start + len(bom)}", kind="not_utf8", mend="send UTF-8")
    if len(out) > MAX_CHARS:
        refuse(f"{len(out):,} characters, at most {MAX_CHARS:,}", kind="too_large")
    return out


def _values(text: str, *, peel: bool = True) -> tuple[list[Found], list[str]]:
    """All values of a text: the text itself where it is JSON, else what is found in it."""
    strict = read_strict(text)
    notes: list[str] = []
    if strict is None:
        trimmed = text.strip(_EDGES)
        if not trimmed:
            refuse("no JSON in the text: it is empty", kind="no_json", mend="send one JSON object")
        if trimmed != text:
            strict = read_strict(trimmed)
            notes.append("byte order mark or NUL removed")
    if strict is not None:
        value, more = strict
        if peel and isinstance(value, str):
            inner = _peeled(value)
            if inner is not None:
                return inner
        return [Found(value, 0, len(text))], notes + more
    if peel:
        quoted = FENCED_STRING.match(text)
        if quoted is not None:
            inner = _peeled(json.loads(quoted[1]))
            if inner is not None:
                return inner
        if ESCAPED.search(text) and not BARE_QUOTE.search(text):
            unescaped = _unescaped(text)
            if unescaped is not None:
                found, more = _values(unescaped, peel=False)
                return found, ["one layer of escapes removed", *more]
    return find_values(text)


def _peeled(text: str) -> tuple[list[Found], list[str]] | None:
    """The object that a JSON string holds, if it holds nothing else."""
    inner = text.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        return None
    try:
        found, notes = _values(inner, peel=False)
    except GateRefused:
        return None
    if len(found) != 1 or not isinstance(found[0].value, dict):
        return None
    return found, ["JSON inside a JSON string: one layer peeled", *notes]


def _unescaped(text: str) -> str | None:
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return None
