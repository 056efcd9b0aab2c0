"""YAML front matter of a Markdown file: the values, the line of each key, and the text that follows.

Guarantees: only JSON values come out (no dates, sets, bytes, NaN; keys are text); every error has the line of the
*file*; anchors, aliases and repeated keys are refused, so a small file can't unfold into a large value. Never reads a
file and never runs a YAML tag.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from protocol.record import Json

MAX_BYTES = 256 * 1024
"""A longer file is refused: it is no prompt that any model could read."""

_FENCE = re.compile(r"---[ \t]*\Z")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class FrontError(Exception):
    """What is wrong, and on which line of the file (from 1)."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in a file of the user's. ``line`` counts from 1; 0 is the file as a whole."""

    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Front:
    """A file taken apart.

    ``values`` are as YAML reads them. ``text`` has each single value as it was written, for keys that hold text
    whatever YAML makes of it (an id ``on`` is no truth value); None where nothing was written.
    """

    values: dict[str, Json]
    text: dict[str, str | None]
    lines: dict[str, int]
    body: str


class _Loader(yaml.SafeLoader):
    """The safe loader, without aliases, repeated keys and dates."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not read: write the value out", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key_node.value!r} is there twice", problem_mark=key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def decode(data: bytes) -> str:
    """The text of a file's bytes; a byte order mark is dropped and line ends become ``\\n``. Raises `FrontError`."""
    if len(data) > MAX_BYTES:
        raise FrontError(0, f"the file has {len(data)} bytes, at most {MAX_BYTES} are read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FrontError(line, f"is not UTF-8 (byte {data[error.start]:#04x}): save the file as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def split(text: str) -> Front:
    """Take ``text`` apart: front matter between two lines ``---``, then the body. Raises `FrontError`."""
    lines = text.removeprefix("\ufeff").split("\n")
    if not _FENCE.match(lines[0]):
        raise FrontError(1, "has no front matter: the first line must be '---'")
    end = next((number for number, line in enumerate(lines[1:], start=1) if _FENCE.match(line)), None)
    if end is None:
        raise FrontError(1, "the front matter does not end: a second line '---' is missing")
    values, raw, places = _read("\n".join(lines[1:end]) + "\n")
    return Front(values=values, text=raw, lines=places, body="\n".join(lines[end + 1 :]).strip("\n"))


def _read(source: str) -> tuple[dict[str, Json], dict[str, str | None], dict[str, int]]:
    """The mapping, the single values as written, the lines. The opening fence is line 1, so YAML's line 0 is line 2."""
    try:
        loader = _Loader(source)
        node = loader.get_single_node()
        if node is None:
            raise FrontError(1, "the front matter is empty")
        if not isinstance(node, yaml.MappingNode):
            raise FrontError(2, "the front matter is no mapping: write one 'key: value' a line")
        values: dict[str, Json] = {}
        raw: dict[str, str | None] = {}
        places: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 2
            if not isinstance(key_node, yaml.ScalarNode):
                raise FrontError(line, "a key must be plain text")
            key = key_node.value
            if key in places:
                raise FrontError(line, f"the key {key!r} is there twice (first on line {places[key]})")
            places[key] = line
            values[key] = loader.construct_document(value_node)
            if isinstance(value_node, yaml.ScalarNode):
                raw[key] = None if values[key] is None else str(value_node.value)
            fault = not_json(values[key])
            if fault:
                raise FrontError(line, f"{key}{fault}")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = " ".join(part for part in (error.problem, f"({error.context})" if error.context else "") if part)
        raise FrontError(mark.line + 2 if mark else 1, words or "is no YAML") from None
    except yaml.reader.ReaderError as error:
        line = source.count("\n", 0, error.position) + 2
        raise FrontError(line, f"the character {error.character!r} is not allowed in YAML") from None
    except RecursionError:
        raise FrontError(2, "the front matter is nested too deeply") from None
    except ValueError as error:  # a number or date that YAML's own rules let through and Python does not
        raise FrontError(2, f"has a value that can't be read: {error}") from None
    return values, raw, places


def not_json(value: object, path: str = "") -> str:
    """Where and why ``value`` is no JSON, as words that follow the name of what holds it; "" if it is JSON."""
    if value is None or isinstance(value, bool | int):
        return ""
    if isinstance(value, str):
        return f"{path} has a lone surrogate" if _SURROGATE.search(value) else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{path} is {value!r}, which is no JSON number"
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                return f"{path} has the key {key!r}, which is not text: put it in quotes"
            if _SURROGATE.search(key):
                return f"{path} has the key {key!r} with a lone surrogate"
            fault = not_json(inner, f"{path}.{key}")
            if fault:
                return fault
        return ""
    if isinstance(value, list):
        return next((fault for n, inner in enumerate(value) if (fault := not_json(inner, f"{path}[{n}]"))), "")
    return f"{path} is a {type(value).__name__}, which is no JSON value"
