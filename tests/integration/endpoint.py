"""A model endpoint for tests: a real HTTP server on loopback that answers what it is told, byte for byte.

Guarantees: each request is kept; each answer is taken once, in order; nothing but loopback is listened on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from protocol.kit.modellist import ModelEntry
from protocol.record import Json


@dataclass(frozen=True)
class Answer:
    """One answer. ``pieces`` are written one by one; ``hang_up`` closes before the body's end, ``status`` 0 before its
    beginning."""

    pieces: Sequence[bytes]
    status: int = 200
    kind: str = "text/event-stream"
    headers: Mapping[str, str] = field(default_factory=dict)
    hang_up: bool = False


def body(value: Json, status: int = 200, **headers: str) -> Answer:
    """A whole JSON body."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer([json.dumps(value, ensure_ascii=False).encode()], status, "application/json", named)


def stream(*chunks: Json, done: bool = True, hang_up: bool = False) -> Answer:
    """Server-sent events."""
    events = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode() for chunk in chunks]
    return Answer([*events, b"data: [DONE]\n\n"] if done else events, hang_up=hang_up)


def says(text: str, finish: str | None = "stop") -> Answer:
    """A streamed answer of a few words."""
    return stream(
        *({"model": "m-1", "choices": [{"index": 0, "delta": {"content": part}}]} for part in text),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}},
    )


def error(status: int, message: str = "no", **more: Json) -> Answer:
    """An error as endpoints send it; ``headers`` may be among ``more``."""
    headers = more.pop("headers", {})
    return body({"error": {"message": message, **more}}, status, **headers)


class Endpoint:
    """Answers in order; ``requests`` has what was asked: path, headers, JSON body."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, str], dict[str, Json]]] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def entry(self, **more: Json) -> ModelEntry:
        """A models list entry that points here."""
        given: dict[str, Json] = {"key": "main", "model": "m", "base_url": self.url} | more
        return ModelEntry(**given)

    def choose(self, request: dict[str, Json]) -> Answer:
        """The answer to a request: the next of the list."""
        return self.answers.pop(0)

    async def answer(self, request: dict[str, Json]) -> Answer:
        """The same, for an endpoint that takes its time."""
        return self.choose(request)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client hung up: some tests want that
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append((first.split(" ")[1], headers, json.loads(raw) if raw else {}))
        answer = await self.answer(self.requests[-1][2])
        if not answer.status:
            return
        size = "" if answer.hang_up else f"content-length: {sum(map(len, answer.pieces))}\r\n"
        chunked = "transfer-encoding: chunked\r\n" if answer.hang_up else ""
        extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        writer.write(
            f"HTTP/1.1 {answer.status} X\r\ncontent-type: {answer.kind}\r\n{size}{chunked}{extra}"
            "connection: close\r\n\r\n".encode()
        )
        for piece in answer.pieces:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" if answer.hang_up else piece)
            await writer.drain()
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(*answers: Answer, endpoint: Endpoint | None = None) -> AsyncIterator[Endpoint]:
    """An endpoint that gives ``answers``, or ``endpoint`` itself."""
    endpoint = endpoint or Endpoint(*answers)
    server = await asyncio.start_server(endpoint, "127.0.0.1", 0)
    endpoint.port = server.sockets[0].getsockname()[1]
    async with server:
        yield endpoint
