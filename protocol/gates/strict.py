"""Reading text that is JSON already: exact, bounded in depth, never altered.

Guarantees: what comes out is the value that the text says, with every digit of every number. NaN and Infinity, numbers
that would lose digits, lone surrogates and nesting past ``MAX_DEPTH`` are refused by path. Never repairs anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Final, NoReturn

import orjson

from protocol.errors import GateRefused
from protocol.record import Json

MAX_DEPTH: Final = 200
"""Levels of brackets. Below what orjson can write back (254), far above what a record needs."""

_INT_DIGITS: Final = 4_000
"""Python refuses to read longer integers (a quadratic conversion)."""

_RISKY_NUMBER: Final = re.compile(r"[0-9.](?:[0-9.]{15}|[eE][-+]?[0-9]{3})")
"""15 digits always survive a double; more digits or a huge exponent may not: those texts are read the exact way."""
_REFUSED_BY_ORJSON: Final = re.compile(r"\\u[dD][89a-fA-F]|[0-9.][eE][+]?[0-9]{3}|[0-9]{308}|[\ud800-\udfff]")
_ENDLESS: Final = re.compile(rf"[0-9]{{{_INT_DIGITS}}}")
_LARGE: Final = 6_000_000
"""orjson takes 12 bytes of working memory for each of the text; from here on the standard library reads."""
_KEY_END: Final = re.compile(r'"[ \t\r\n]*+:')
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


class Lossy(str):
    """A number that would lose digits (or be infinite), kept as its text until its path is known."""

    __slots__ = ()


def refuse(message: str, *, kind: str, path: str = "$", mend: str = "") -> NoReturn:
    """Raise the refusal of gate 1."""
    raise GateRefused(message, gate=1, path=path, kind=kind, mend=mend)


def number(text: str) -> int | float | Lossy:
    """The exact value of a JSON number, or its text as ``Lossy`` where there is none."""
    if text.lstrip("-").isdigit():
        return int(text) if len(text) <= _INT_DIGITS else Lossy(text)
    value = float(text)
    try:
        exact = isfinite(value) and Decimal(repr(value)) == Decimal(text)
    except InvalidOperation:
        exact = False
    return value if exact else Lossy(text)


def children(value: Json, path: str) -> Iterator[tuple[str, Json]]:
    """The direct children of a container with their paths: ``detail.items[0]``."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield (f"{path}.{key}" if path != "$" else str(key)), child
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield f"{path}[{index}]", child


def flaws(value: Json, path: str = "$", *, limit: int = 20) -> list[tuple[str, str]]:
    """``(path, message)`` for whatever in ``value`` is no storable JSON; at most ``limit``. Plain types only: bool,
    int, float, str, list, dict, None. Linear, without recursion; cheap where there is nothing to tell."""
    out: list[tuple[str, str]] = []
    level: list[Json] = [value]
    depth = 0
    clean = True
    while level and clean:
        depth += 1
        if depth > MAX_DEPTH + 1:
            clean = False
            break
        below: list[Json] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                for key in item:
                    if type(key) is not str or not (key.isascii() or _SURROGATE.search(key) is None):
                        clean = False
                below.extend(item.values())
            elif kind is list:
                below.extend(item)
            elif kind is str:
                if not item.isascii() and _SURROGATE.search(item) is not None:
                    clean = False
            elif kind is float:
                if not isfinite(item):
                    clean = False
            elif kind is not int and kind is not bool and item is not None:
                clean = False
        level = below
    if clean:
        return out
    stack: list[tuple[str, Json, int]] = [(path, value, 1)]
    while stack and len(out) < limit:
        where, item, deep = stack.pop()
        message = _flaw(item, deep)
        if message:
            out.append((where, message))
        elif isinstance(item, dict | list):
            stack.extend((w, c, deep + 1) for w, c in reversed(list(children(item, where))))
    return out


def _flaw(item: Json, depth: int) -> str:
    if type(item) in (dict, list):
        if depth > MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} levels"
        for key in item if type(item) is dict else ():
            if type(key) is not str:
                return f"has the key {key!r}, which is not text"
            if _SURROGATE.search(key):
                return f"has the key {key!r} with a lone surrogate"
        return ""
    if isinstance(item, Lossy):
        return f"the number {item[:40]} loses digits when it is read; write it as text"
    if type(item) is str:
        return "has a lone surrogate: not storable as UTF-8" if _SURROGATE.search(item) else ""
    if type(item) is float:
        return "" if isfinite(item) else f"{item!r} is no JSON number"
    return "" if item is None or type(item) in (bool, int) else f"{type(item).__name__!r} is not a JSON type"


def _survey(value: Json) -> tuple[int, int]:
    """``(keys, depth)``: all keys of all objects, levels of brackets."""
    keys = depth = 0
    level: list[Json] = [value] if type(value) in (dict, list) else []
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            break
        below: list[Json] = []
        for item in level:
            if type(item) is dict:
                keys += len(item)
                item = item.values()
            for child in item:
                kind = type(child)
                if kind is dict or kind is list:
                    below.append(child)
        level = below
    return keys, depth


def _constant(word: str) -> NoReturn:
    refuse(f"{word} is no JSON number", kind="non_finite", mend="use null, or text")


def _exact(text: str) -> tuple[Json, list[str]] | None:
    """The slow, exact reading; None where the text is no JSON. Notes name the keys that came twice."""
    twice: dict[str, None] = {}

    def pairs(items: list[tuple[str, Json]]) -> dict[str, Json]:
        out = dict(items)
        if len(out) != len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    twice[key] = None
                seen.add(key)
        return out

    whole = number if _ENDLESS.search(text) else None  # int itself, where no integer is longer than it takes
    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_float=number, parse_int=whole, parse_constant=_constant)
    except RecursionError:
        refuse(f"nested deeper than {MAX_DEPTH} levels", kind="too_deep")
    except ValueError:
        return None
    if _survey(value)[1] > MAX_DEPTH:
        refuse(f"nested deeper than {MAX_DEPTH} levels", kind="too_deep")
    found = flaws(value, limit=1)
    if found:
        path, message = found[0]
        refuse(message, kind="loses_digits" if "digits" in message else "not_storable", path=path)
    return value, [f"duplicate key {key!r}: the last one wins" for key in list(twice)[:20]]


def read_strict(text: str) -> tuple[Json, list[str]] | None:
    """The value of a JSON text and its notes (keys that came twice); None where ``text`` is no JSON.

    Raises GateRefused (gate 1) for JSON that must not go on: too deep, not finite, a number that loses digits, a lone
    surrogate.
    """
    if len(text) > _LARGE:
        return _exact(text)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        # orjson also refuses what is JSON by the letter: a lone surrogate, 1e400. The exact way tells them from damage.
        # (It refuses deep nesting as well: that is found where damage is looked for.)
        return _exact(text) if _REFUSED_BY_ORJSON.search(text) else None
    keys, depth = _survey(value)
    if depth > MAX_DEPTH:
        refuse(f"nested deeper than {MAX_DEPTH} levels", kind="too_deep")
    if _RISKY_NUMBER.search(text) is not None:
        return _exact(text)
    if keys != text.count(":") and keys != sum(1 for _ in _KEY_END.finditer(text)):
        return _exact(text)
    return value, []
