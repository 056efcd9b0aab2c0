"""The stand-in as a process of its own, through the very client that calls real endpoints."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from protocol.kit.modellist import ModelEntry
from protocol.ports import Delivered
from tests.support import wait_until
from tests.unit.agentkit import CountedTools, MemoryConversation, OpenFence, Store, dispatch, role
from workers.agent import run_agent
from workers.model import ModelClient
from workers.offline import FINGERPRINT, NAME
from workers.offline.server import OfflineServer

HELLO = [{"role": "user", "content": "Input:\n```json\n[1, 2]\n```"}]


@pytest.fixture
async def url() -> AsyncIterator[str]:
    server, url = await OfflineServer().start()
    async with server:
        yield url


async def test_an_agent_delivers_offline_and_the_delivery_says_so(url: str) -> None:
    given, store = dispatch(input={"findings": [{"rule": "S101"}]}), Store()
    async with aclosing(ModelClient(ModelEntry("offline", "", url), loopback_only=True)) as client:
        outcome = await run_agent(
            given, OpenFence(), role=role(), conversation=MemoryConversation(store, given), model=client,
            tools=CountedTools(),
        )  # fmt: skip
    assert isinstance(outcome, Delivered)
    assert "findings：1 条" in outcome.detail["result"]
    assert outcome.detail["model"] == {"key": "offline", "name": NAME, "endpoint": url, "fingerprint": FINGERPRINT}
    assert outcome.detail["usage"]["total_tokens"] > 0


async def test_a_structured_delivery_offline(url: str) -> None:
    given, store = dispatch(verifies="T0"), Store()
    async with aclosing(ModelClient(ModelEntry("offline", "", url))) as client:
        outcome = await run_agent(
            given, OpenFence(), role=role(kind="verifier"), conversation=MemoryConversation(store, given), model=client,
            tools=CountedTools(),
        )  # fmt: skip
    assert isinstance(outcome, Delivered)
    assert outcome.detail["verdict"] == "partial", "it never judges in favour"


async def test_one_connection_serves_many_requests_streamed_and_whole(url: str) -> None:
    async with aclosing(ModelClient(ModelEntry("offline", "", url))) as client:
        first, second = await client.complete(HELLO), await client.complete(HELLO)
    assert first == second
    assert (first.model, first.fingerprint) == (NAME, FINGERPRINT)
    whole = await exchange(url, "POST /v1/chat/completions", json.dumps({"messages": HELLO}).encode())
    assert json.loads(whole.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"] == first.content


async def test_a_token_limit_is_kept(url: str) -> None:
    asked = json.dumps({"messages": HELLO, "max_tokens": 3}).encode()
    choice = json.loads((await exchange(url, "POST /v1/chat/completions", asked)).partition(b"\r\n\r\n")[2])["choices"][
        0
    ]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["content"]) == 12


@pytest.mark.parametrize(
    ("line", "body", "status"),
    [
        ("POST /v1/chat/completions", b"{oops", 400),
        ("POST /v1/chat/completions", b'{"model": 1}', 400),
        ("GET /nowhere", b"", 404),
        ("DELETE /v1/models", b"", 404),
        ("rubbish", b"", 400),
    ],
)
async def test_what_it_cannot_read_is_refused_and_it_lives_on(url: str, line: str, body: bytes, status: int) -> None:
    assert (await exchange(url, line, body)).startswith(f"HTTP/1.1 {status} ".encode())
    assert b"200 OK" in await exchange(url, "GET /health", b"")


async def exchange(url: str, line: str, body: bytes) -> bytes:
    """One raw request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
    head = f"{line} HTTP/1.1" if line != "rubbish" else line
    writer.write(f"{head}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    return answer


async def test_as_a_process_it_prints_its_url_and_ends_with_its_parent() -> None:
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-m', 'workers.offline', '--port', '0', '--parent', sys.argv[1]],"
        " stdout=subprocess.PIPE, text=True)\n"
        "print(p.pid, p.stdout.readline().strip(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    shell = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code.replace("sys.argv[1]", "str(__import__('os').getpid())"),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert shell.stdout is not None
    pid, url = (await shell.stdout.readline()).decode().split()
    async with aclosing(ModelClient(ModelEntry("offline", "", url))) as client:
        assert (await client.complete(HELLO)).model == NAME
    shell.kill()
    await shell.wait()
    await wait_until(lambda: _gone(int(pid)), "the stand-in has ended with its parent")


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as stat:  # a zombie that nobody has reaped is gone too
        return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
