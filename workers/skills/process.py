"""One call of a skill in a process of its own: start it, hand over the request, take the answer, see it end.

Guarantees: returns when the call ended, whatever way, at the latest some seconds after its deadline; then nothing that
it started is left. When the calling task is cancelled the process ends too. When this process dies, however it dies,
the pipe to the supervisor closes and the supervisor ends everything. Memory for answer and log is bounded.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from protocol.record import Json

_CHILD: Final = str(Path(__file__).with_name("child.py"))
_LATE_S: Final = 10.0
"""How long after the deadline the supervisor may still be silent before it is killed itself."""
_END_S: Final = 5.0

Kind = Literal[
    "ok", "bad_input", "bad_output", "too_large", "raised", "crashed", "timeout", "limit", "broken", "environment"
]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may use. ``memory_bytes`` and ``processes`` are those of everything that it starts together."""

    memory_bytes: int = 2 * 1024**3
    address_bytes: int = 16 * 1024**3
    file_bytes: int = 1024**3
    open_files: int = 1024
    processes: int = 64
    input_bytes: int = 4 * 1024**2
    output_bytes: int = 4 * 1024**2
    log_bytes: int = 64 * 1024


@dataclass(frozen=True, slots=True)
class Call:
    """What is to be called, and how."""

    python: str
    folder: Path
    file: str
    function: str
    params: Mapping[str, Json]
    timeout_s: float
    env: Mapping[str, str]
    cwd: Path
    process_space: bool = True
    hidden: tuple[Path, ...] = ()
    """Files and directories that the skill is not to see, where the system allows to hide them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How one call ended. ``output`` where ``kind`` is ``ok``, else ``error`` in words; ``log`` is what it printed."""

    kind: Kind
    output: Json = None
    error: str = ""
    retryable: bool = False
    log: str = ""


async def call(what: Call, limits: Limits) -> Answer:
    """Run one call to its end. Raises nothing but cancellation."""
    scratch = tempfile.mkdtemp(prefix="rolecall-skill-")
    request = {
        "folder": str(what.folder.resolve()), "file": what.file, "function": what.function, "params": what.params,
        "timeout_s": what.timeout_s, "process_space": what.process_space,
        "hidden": [str(path) for path in what.hidden],
        "memory_bytes": limits.memory_bytes, "address_bytes": limits.address_bytes, "file_bytes": limits.file_bytes,
        "open_files": limits.open_files, "processes": limits.processes, "output_bytes": limits.output_bytes,
    }  # fmt: skip
    try:
        data = json.dumps(request, allow_nan=False).encode()
        if len(data) > limits.input_bytes:
            return Answer("bad_input", error=f"the input has {len(data)} bytes, at most {limits.input_bytes} are taken")
        return await _run(what, data, {**what.env, "HOME": scratch, "TMPDIR": scratch}, limits)
    except (TypeError, ValueError, RecursionError) as error:
        return Answer("bad_input", error=f"the input is no JSON: {error}")
    finally:
        # The supervisor removed it already, unless it never ran or was killed.
        shutil.rmtree(scratch, ignore_errors=True)


async def _run(what: Call, data: bytes, env: Mapping[str, str], limits: Limits) -> Answer:
    answer_read, answer_write = os.pipe()
    status_read, status_write = os.pipe()
    log_read, log_write = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            what.python, "-I", "-B", "-u", "-X", "utf8", _CHILD, str(answer_write), str(status_write), env["TMPDIR"],
            stdin=asyncio.subprocess.PIPE, stdout=log_write, stderr=log_write,
            pass_fds=(answer_write, status_write), cwd=what.cwd, env=env, start_new_session=True,
        )  # fmt: skip
    except BaseException as error:
        for descriptor in (answer_read, status_read, log_read):
            os.close(descriptor)
        if not isinstance(error, OSError):
            raise
        return Answer("environment", error=f"{what.python} can't be started: {error.strerror}", retryable=True)
    finally:
        for descriptor in (answer_write, status_write, log_write):
            os.close(descriptor)
    pipes = [await _Pipe.open(descriptor) for descriptor in (answer_read, status_read, log_read)]
    answer_pipe, status_pipe, log_pipe = pipes
    answer = asyncio.create_task(_frame(answer_pipe.reader, limits.output_bytes))
    log = asyncio.create_task(_bounded(log_pipe.reader, limits.log_bytes))
    try:
        status = await _status(process, data, status_pipe.reader, what.timeout_s + _LATE_S)
        await _ended(process)
        await asyncio.wait([answer, log], timeout=1.0)  # every writer is dead: this is only about reading what is there
        text = log.result() if log.done() else ""
        return _judge(status, answer.result() if answer.done() else None, text, what.timeout_s)
    finally:
        ending = asyncio.ensure_future(_ended(process))
        try:
            await asyncio.shield(ending)
        finally:
            answer.cancel()
            log.cancel()
            for pipe in pipes:
                pipe.close()


async def _status(
    process: asyncio.subprocess.Process, data: bytes, reader: asyncio.StreamReader, timeout_s: float
) -> dict[str, Json]:
    """Hand over the request, wait for the supervisor's word. An empty one: it was killed, or silent for too long."""
    assert process.stdin is not None
    try:
        async with asyncio.timeout(timeout_s):
            process.stdin.write(len(data).to_bytes(8, "big") + data)
            await process.stdin.drain()
            said = await reader.read(4096)
        status = json.loads(said)
    except (OSError, TimeoutError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Close the line, which tells the supervisor to end everything; kill it and its group if it does not."""
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _END_S)
    except TimeoutError:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        await process.wait()


def _judge(status: Mapping[str, Json], reply: Mapping[str, Json] | None, log: str, timeout_s: float) -> Answer:
    end = status.get("end")
    if end == "timeout":
        return Answer("timeout", error=f"did not end within {timeout_s:g} s", retryable=True, log=log)
    if end == "limit":
        return Answer("limit", error=f"was stopped: more than {status['most']} {status['what']}", log=log)
    if reply is not None and reply.get("ok") is True:
        return Answer("ok", output=reply.get("output"), log=log)
    if reply is not None and reply.get("ok") is False:
        kind: Kind = reply["kind"] if reply.get("kind") in ("raised", "bad_output", "too_large", "broken") else "raised"
        return Answer(kind, error=str(reply.get("error")), retryable=reply.get("retryable") is True, log=log)
    code = status.get("code")
    if isinstance(code, int):
        how = f"by signal {code - 128}" if code > 128 else f"with code {code}"
        return Answer("crashed", error=f"its process ended {how} and gave no result", retryable=True, log=log)
    return Answer("crashed", error="its supervisor ended and gave no result", retryable=True, log=log)


@dataclass(slots=True)
class _Pipe:
    reader: asyncio.StreamReader
    transport: asyncio.ReadTransport

    @classmethod
    async def open(cls, descriptor: int) -> _Pipe:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
        )
        return cls(reader, transport)

    def close(self) -> None:
        self.transport.close()


async def _frame(reader: asyncio.StreamReader, most: int) -> dict[str, Json] | None:
    """One frame, at most ``most`` bytes; None for none or a broken one. (The skill may write here what it likes.)"""
    try:
        size = int.from_bytes(await reader.readexactly(8), "big")
        if size > most:
            return {"ok": False, "kind": "too_large", "error": f"the output has {size} bytes, at most {most} are taken"}
        reply = json.loads(await reader.readexactly(size), parse_constant=_no_constant)
    except (asyncio.IncompleteReadError, ValueError, RecursionError):
        return None
    return reply if isinstance(reply, dict) else None


def _no_constant(word: str) -> Json:
    raise ValueError(word)


async def _bounded(reader: asyncio.StreamReader, most: int) -> str:
    """What was printed: the first half and the last half of ``most`` bytes; the rest is read and dropped."""
    half = most // 2
    head, tail, dropped = bytearray(), bytearray(), 0
    while part := await reader.read(65_536):
        room = half - len(head)
        head += part[: max(room, 0)]
        tail += part[max(room, 0) :]
        if len(tail) > half:
            dropped += len(tail) - half
            del tail[:-half]
    middle = f"\n… {dropped} bytes left out …\n" if dropped else ""
    return head.decode("utf-8", "replace") + middle + tail.decode("utf-8", "replace")
