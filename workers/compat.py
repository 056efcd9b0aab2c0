"""What real endpoints send, read the same way: content in blocks, reasoning in three places, tool calls in pieces.

Guarantees: pure; a tool call is never lost and never glued to another; each call of an answer has an id of its own;
arguments are an object or an error that says why, with the original text kept. Never guesses at broken arguments: what
is not an object is not run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from protocol.record import Json, canonical

_THINK = re.compile(r"\A\s*<(think|thinking|reasoning)>(.*?)</\1>\s*", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of an answer. ``raw`` is the arguments' text as it came; ``error`` says why they can't be used
    (then ``args`` is empty and the call is not run)."""

    id: str
    name: str
    args: Mapping[str, Json]
    raw: str
    error: str = ""


def text_of(content: Json) -> str:
    """Content as text: None is empty, blocks are joined, anything else that is no text is left out."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(text_of(block.get("text")) if isinstance(block, dict) else text_of(block) for block in content)
    return text_of(content.get("text")) if isinstance(content, dict) else ""


def reasoning_of(message: Mapping[str, Json]) -> str:
    """The reasoning of a message or delta, by whichever of its names came."""
    for name in ("reasoning_content", "reasoning", "thinking"):
        found = text_of(message.get(name))
        if found:
            return found
    return ""


def without_thinking(content: str) -> tuple[str, str]:
    """Content without a reasoning block at its very start, and that block's text."""
    found = _THINK.match(content)
    return (content[found.end() :], found.group(2).strip()) if found else (content, "")


def mended(text: str) -> str:
    """Text whose halves of one character came in two pieces, put together; a half alone becomes U+FFFD."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def loads(data: str | bytes) -> Json:
    """JSON as endpoints write it (lone halves of characters included). Raises ValueError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)


def arguments_of(raw: Json) -> tuple[dict[str, Json], str]:
    """Arguments as an object, and why they are none. Empty, blank, null mean ``{}``."""
    if isinstance(raw, str):
        if not raw.strip():
            return {}, ""
        try:
            value = loads(mended(raw))
            if isinstance(value, str) and value.lstrip().startswith("{"):  # written as JSON twice
                value = loads(value)
        except ValueError as error:
            return {}, f"the arguments are not valid JSON: {error}"
    else:
        value = raw
    if value is None:
        return {}, ""
    if not isinstance(value, dict):
        return {}, f"the arguments are {type(value).__name__}, not an object"
    try:
        json.dumps(value, allow_nan=False)
        canonical(value)
    except ValueError as error:
        return {}, f"the arguments are not valid JSON: {error}"
    return value, ""


@dataclass(slots=True)
class _Piece:
    index: int | None
    id: str
    name: str = ""
    text: list[str] = field(default_factory=list)
    whole: Mapping[str, Json] | None = None

    def complete(self) -> bool:
        """Arguments that read as JSON already: what comes after them is another call's."""
        if self.whole is not None:
            return True
        joined = "".join(self.text)
        return bool(joined.strip()) and not arguments_of(joined)[1]


class Calls:
    """Puts tool calls together from the pieces of a stream, or from a whole message."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []

    def add(self, given: Json, *, whole: bool = False) -> None:
        """One element of ``tool_calls``. With ``whole`` it is a call of its own whatever its id and index."""
        if not isinstance(given, dict):
            return
        function = given.get("function")
        body = function if isinstance(function, dict) else given
        name, arguments = text_of(body.get("name")), body.get("arguments")
        at, call_id = given.get("index"), text_of(given.get("id"))
        index = at if isinstance(at, int) and not isinstance(at, bool) else None
        piece = None if whole else self._find(index, call_id, name)
        if piece is None:
            piece = _Piece(index, call_id)
            self._pieces.append(piece)
        piece.id = piece.id or call_id
        piece.name = piece.name or name
        if isinstance(arguments, dict):
            piece.whole = arguments
        elif isinstance(arguments, str):
            piece.text.append(arguments)
        elif arguments is not None:
            piece.text.append(json.dumps(arguments))

    def _find(self, index: int | None, call_id: str, name: str) -> _Piece | None:
        """The call that a piece goes on with: by index, else by id, else the one in progress."""
        if index is not None:
            same = [p for p in self._pieces if p.index == index]
            if same:
                # Some endpoints number every call 0: another id with a name of its own is another call.
                other = bool(call_id and same[-1].id and call_id != same[-1].id and name)
                return None if other else same[-1]
            return None
        if call_id:
            for piece in reversed(self._pieces):
                if piece.id == call_id:
                    return None if name and piece.complete() else piece
            return None
        last = self._pieces[-1] if self._pieces else None
        return None if last is None or (name and last.name) else last

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def done(self) -> tuple[ToolCall, ...]:
        """The calls in order, each with an id that no other call of this answer has."""
        used: set[str] = set()
        out: list[ToolCall] = []
        for at, piece in enumerate(self._pieces, 1):
            call_id, serial = piece.id or f"call_{at}", 1
            while call_id in used or (not piece.id and any(p.id == call_id for p in self._pieces)):
                serial += 1
                call_id = f"{piece.id or f'call_{at}'}_{serial}"
            used.add(call_id)
            if piece.whole is not None:
                raw = json.dumps(piece.whole, ensure_ascii=False)
                args, error = arguments_of(dict(piece.whole))
            else:
                raw = mended("".join(piece.text))
                args, error = arguments_of(raw)
            if not piece.name:
                error = error or "the call names no tool"
            out.append(ToolCall(call_id, piece.name, args, mended(raw), error))
        return tuple(out)
