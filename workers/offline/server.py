"""The stand-in's HTTP server: chat completions and the list of models, on loopback, streamed or whole.

Guarantees: bounded requests (16 MB, 30 s to send one); every answer carries the stand-in's name and fingerprint; a
request that it can't read gets a 4xx with the reason. Never opens a connection of its own, never listens beyond
loopback.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from workers.offline import FINGERPRINT, NAME
from workers.offline.words import answer

Json = Any
BODY_MAX: Final = 16 * 1024 * 1024
HEAD_MAX: Final = 64 * 1024
READ_S: Final = 30.0
PIECE: Final = 24
"""Characters of one streamed piece."""


class Bad(Exception):
    """A request that can't be served."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class OfflineServer:
    """Serves until closed. ``delay_s`` is waited before an answer, ``piece_s`` between its pieces (a slow model)."""

    def __init__(self, *, delay_s: float = 0.0, piece_s: float = 0.0) -> None:
        self._delay_s = delay_s
        self._piece_s = piece_s
        self._served = 0

    async def start(self, port: int = 0) -> tuple[asyncio.Server, str]:
        """Listen on loopback; 0 is any free port. Returns the server and the url for ``OPENAI_BASE_URL``."""
        server = await asyncio.start_server(self._client, "127.0.0.1", port, limit=HEAD_MAX)
        return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # the client is gone, or sends no HTTP
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; True where the connection stays open."""
        try:
            head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), READ_S)).decode("latin-1")
        except asyncio.IncompleteReadError:
            return False
        first, *lines = head.split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        keep = headers.get("connection", "").lower() != "close"
        try:
            method, path, _ = first.split(" ", 2)
            size = _size(headers)
            body = await asyncio.wait_for(reader.readexactly(size), READ_S)
            await self._route(method, path.split("?")[0].rstrip("/"), body, writer)
        except ValueError:
            await _whole(writer, 400, {"error": {"message": "this is no HTTP request", "code": 400}})
            return False
        except Bad as bad:
            await _whole(writer, bad.status, {"error": {"message": str(bad), "code": bad.status}})
            return keep and bad.status not in (411, 413)
        return keep

    async def _route(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if (method, path) == ("GET", "/v1/models"):
            model = {"id": NAME, "object": "model", "created": 0, "owned_by": "rolecall"}
            await _whole(writer, 200, {"object": "list", "data": [model]})
        elif (method, path) == ("POST", "/v1/chat/completions"):
            await self._complete(_request(body), writer)
        elif (method, path) == ("GET", "/health"):
            await _whole(writer, 200, {"status": "ok", "model": NAME})
        else:
            raise Bad(404, f"{method} {path!r} is not served here; POST /v1/chat/completions is")

    async def _complete(self, request: Mapping[str, Json], writer: asyncio.StreamWriter) -> None:
        messages = [each for each in request["messages"] if isinstance(each, dict)]
        text = answer(messages, _schema(request))
        cut = request.get("max_tokens") or request.get("max_completion_tokens")
        finish = "stop"
        if isinstance(cut, int) and 0 < cut * 4 < len(text):
            text, finish = text[: cut * 4], "length"
        prompt = sum(len(str(each.get("content") or "")) for each in messages) // 4 + 1
        done = len(text) // 4 + 1
        usage = {"prompt_tokens": prompt, "completion_tokens": done, "total_tokens": prompt + done}
        self._served += 1
        base: dict[str, Json] = {
            "id": f"chatcmpl-offline-{self._served}",
            "created": 0,
            "model": NAME,
            "system_fingerprint": FINGERPRINT,
        }
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        if request.get("stream") is not True:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
            await _whole(writer, 200, {**base, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        base["object"] = "chat.completion.chunk"
        writer.write(_head(200, "text/event-stream") + b"transfer-encoding: chunked\r\n\r\n")
        for at in range(0, len(text), PIECE):
            await _event(writer, {**base, "choices": [_delta({"content": text[at : at + PIECE]})]})
            if self._piece_s:
                await asyncio.sleep(self._piece_s)
        await _event(writer, {**base, "choices": [_delta({}, finish)]})
        options = request.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            await _event(writer, {**base, "choices": [], "usage": usage})
        await _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def serve(port: int, *, delay_s: float, piece_s: float, alive: Callable[[], bool], every_s: float = 1.0) -> None:
    """Print the url on the first line of stdout and serve until ``alive`` says no."""
    server, url = await OfflineServer(delay_s=delay_s, piece_s=piece_s).start(port)
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    async with server:
        while alive():  # noqa: ASYNC110 - nobody sets an event when the parent is gone
            await asyncio.sleep(every_s)


def _request(body: bytes) -> Mapping[str, Json]:
    try:
        request = json.loads(body)
    except ValueError as error:
        raise Bad(400, f"the body is no JSON: {error}") from error
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
        raise Bad(400, "messages: a list is required")
    return request


def _schema(request: Mapping[str, Json]) -> Mapping[str, Json] | None:
    wanted = request.get("response_format")
    if not isinstance(wanted, dict) or wanted.get("type") not in ("json_schema", "json_object"):
        return None
    named = wanted.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    return schema if isinstance(schema, dict) else {"type": "object", "properties": {"text": {"type": "string"}}}


def _size(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise Bad(411, "send a content-length")
    size = int(headers.get("content-length") or 0)
    if not 0 <= size <= BODY_MAX:
        raise Bad(413, f"a request of {size} bytes is larger than {BODY_MAX}")
    return size


def _delta(delta: Mapping[str, Json], finish: str | None = None) -> dict[str, Json]:
    return {"index": 0, "delta": dict(delta), "finish_reason": finish}


def _head(status: int, kind: str) -> bytes:
    return f"HTTP/1.1 {status} {'OK' if status == 200 else 'No'}\r\ncontent-type: {kind}\r\n".encode()


async def _whole(writer: asyncio.StreamWriter, status: int, value: Json) -> None:
    data = json.dumps(value, ensure_ascii=False).encode()
    writer.write(_head(status, "application/json") + f"content-length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()


async def _event(writer: asyncio.StreamWriter, value: Json) -> None:
    await _chunk(writer, f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode())


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()
