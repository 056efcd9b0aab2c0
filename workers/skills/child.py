"""The process of one skill call: a supervisor, and below it the skill. Standard library only; run by path.

::

    worker ── supervisor ── [first process of a process-id space] ── skill ── whatever the skill starts

Guarantees: the call ends at its deadline, at a limit, when the worker closes the request pipe, or when the worker dies,
whatever the skill does; with it ends everything that the skill started; the scratch directory is removed. The answer
travels over a descriptor of its own, so nothing that the skill prints can break it. Never imports the fleet's code.

Request (standard input): 8 bytes of length, then JSON; the pipe stays open as the line to the worker. ``argv[3]`` names
the scratch directory, which is there already.
Answer (descriptor ``argv[1]``): 8 bytes of length, then JSON: ``{"ok": true, "output": …}`` or ``{"ok": false, "kind",
"error", "retryable"}``. Status (descriptor ``argv[2]``): one JSON object on how the call ended.
"""

from __future__ import annotations

import json
import math
import os
import select
import shutil
import signal
import sys
import time
import traceback
from importlib import util
from types import ModuleType
from typing import Any, NoReturn

_STEP_S = 0.05
"""How often the limits of the tree are looked at: a fork bomb lives for about so long."""
_SWEEPS = 400


def _module(name: str, path: str) -> ModuleType:
    spec = util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} can't be loaded")
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# --- the supervisor ---------------------------------------------------------------------------------------------------


def main() -> None:
    """Read the request, start the skill below, watch, clear up, say how it ended."""
    answer, status = int(sys.argv[1]), int(sys.argv[2])
    confine = _module("rolecall_confine", os.path.join(os.path.dirname(os.path.abspath(__file__)), "confine.py"))
    gone: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: gone.append(number))
    confine.die_with_parent(signal.SIGTERM)  # caught, so that what runs below is cleared up first
    confine.adopt_orphans()
    for descriptor in (answer, status):
        os.set_inheritable(descriptor, False)
    request = _request(sys.argv[3])
    request["user"] = confine.own_user(request["scratch"])
    space = bool(request["process_space"]) and confine.own_process_space()
    hidden = bool(request["hidden"]) and confine.hide(request["hidden"])
    deadline = time.monotonic() + request["timeout_s"]
    pid = os.fork()
    if pid == 0:
        os.close(status)
        if space:
            _first(confine, request, answer)
        _skill(confine, request, answer)
    os.close(answer)
    end = _watch(confine, pid, deadline, request, gone)
    _clear(confine, pid, space)
    shutil.rmtree(request["scratch"], ignore_errors=True)
    os.write(status, json.dumps({**end, "process_space": space, "hidden": hidden}).encode())


def _first(confine: ModuleType, request: dict[str, Any], answer: int) -> NoReturn:
    """The first process of a space: adopts orphans, ends with the skill, and the space with it."""
    confine.die_with_parent()
    skill = os.fork()
    if skill == 0:
        _skill(confine, request, answer)
    os.close(answer)
    while True:
        pid, code = os.wait()
        if pid == skill:
            os._exit(_code(code))


def _code(status: int) -> int:
    """An exit code; a death by a signal is 128 and the signal, as a shell has it."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _watch(confine: ModuleType, pid: int, deadline: float, request: dict[str, Any], gone: list[int]) -> dict[str, Any]:
    """Until the skill ends or must end: how."""
    poller = select.poll()
    poller.register(0, select.POLLIN | select.POLLHUP)
    ended = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    if ended >= 0:
        poller.register(ended, select.POLLIN)
    looked = 0.0
    while True:
        now = time.monotonic()
        if now >= deadline:
            return {"end": "timeout"}
        events = poller.poll(1000 * min(deadline - now, _STEP_S if ended >= 0 else _STEP_S / 5))
        code = _reap(pid)
        if code is not None:
            return {"end": "exit", "code": code}
        if gone or (any(descriptor == 0 for descriptor, _ in events) and not os.read(0, 1)):
            return {"end": "abandoned"}
        if now - looked >= _STEP_S:
            looked = now
            tree = [pid, *confine.descendants(pid, request["processes"])]
            if len(tree) > request["processes"]:
                return {"end": "limit", "what": "processes", "most": request["processes"]}
            if confine.resident_bytes(tree) > request["memory_bytes"]:
                return {"end": "limit", "what": "bytes of memory", "most": request["memory_bytes"]}


def _reap(pid: int) -> int | None:
    """Collect what ended; the skill's exit code if it was among it."""
    code = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if ended == 0:
            return code
        if ended == pid:
            code = _code(status)


def _clear(confine: ModuleType, pid: int, space: bool) -> None:
    """Kill everything that is left. In a space the kernel does it at once; else sweep until nothing is found."""
    if not space:
        _kill(pid, group=True)
    for _ in range(_SWEEPS):
        for other in confine.descendants(os.getpid()):
            _kill(other)
        _reap(pid)
        if not confine.descendants(os.getpid()):
            return
        time.sleep(0.001)


def _kill(pid: int, *, group: bool = False) -> None:
    try:
        if group:
            os.killpg(pid, signal.SIGKILL)  # all of a group in one step: none of them can fork away
        else:
            os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


# --- the skill --------------------------------------------------------------------------------------------------------


def _skill(confine: ModuleType, request: dict[str, Any], answer: int) -> NoReturn:
    """Become the skill's process, call it once, answer, end without waiting for threads."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.nice(10)  # the worker and the supervisor come first, also beside an endless loop
    confine.limits(
        memory_bytes=request["address_bytes"], file_bytes=request["file_bytes"], open_files=request["open_files"]
    )
    confine.drop_rights(request["user"], request["processes"])
    confine.die_with_parent()  # after the change of user, which takes it away
    me = os.getpid()
    try:
        reply = _call(request)
        data = json.dumps(reply).encode()
        if len(data) > request["output_bytes"]:
            words = f"the output has {len(data)} bytes, at most {request['output_bytes']} are taken"
            data = json.dumps(_failure("too_large", words, retryable=False)).encode()
    except BaseException as error:  # noqa: BLE001 - whatever a skill does ends here, as an answer
        data = json.dumps(_failure("raised", _words(error), retryable=not isinstance(error, RecursionError))).encode()
    if os.getpid() != me:
        os._exit(1)  # a copy that the skill made of itself: it has nothing to say
    _write(answer, len(data).to_bytes(8, "big") + data)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(0)


def _call(request: dict[str, Any]) -> dict[str, Any]:
    folder, file, name = request["folder"], request["file"], request["function"]
    sys.path.insert(0, folder)
    sys.argv = [os.path.join(folder, file)]
    try:
        function = getattr(_module("rolecall_skill", os.path.join(folder, file)), name, None)
    except BaseException as error:  # noqa: BLE001 - a module may raise anything, SystemExit too
        traceback.print_exc()
        return _failure("broken", f"{file} can't be loaded: {_words(error)}", retryable=False)
    if not callable(function):
        return _failure("broken", f"{file} has no function {name!r}", retryable=False)
    try:
        output = function(**request["params"])
        if hasattr(output, "__await__"):
            import asyncio

            output = asyncio.run(_awaited(output))
    except SystemExit as error:
        return _failure("raised", f"called sys.exit({error.code!r})", retryable=True)
    except BaseException as error:  # noqa: BLE001 - told to the caller as a value
        meant = getattr(error, "retryable", True) is False
        if not meant:  # a refusal says it all in its words
            traceback.print_exc()
        return _failure("raised", _words(error), retryable=not meant)
    try:
        return {"ok": True, "output": _plain(output, "output")}
    except (TypeError, ValueError, RecursionError) as error:
        words = "the output is nested too deeply" if isinstance(error, RecursionError) else str(error)
        return _failure("bad_output", words, retryable=False)


async def _awaited(output: Any) -> Any:
    return await output


def _plain(value: Any, path: str) -> Any:
    """``value`` as plain JSON values (a tuple is a list). Raises by name for what JSON has not."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{path} has a lone surrogate, which is no text") from None
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path} is {float(value)!r}, which is no JSON number")
        return float(value)
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{path} has the key {key!r} of type {type(key).__name__}; keys of JSON are text")
        return {_plain(key, path): _plain(inner, f"{path}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{path}[{number}]") for number, inner in enumerate(value)]
    raise TypeError(f"{path} is of type {type(value).__name__}, which is no JSON value")


def _failure(kind: str, error: str, *, retryable: bool) -> dict[str, Any]:
    return {"ok": False, "kind": kind, "error": error[:4000], "retryable": retryable}


def _words(error: BaseException) -> str:
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - a skill's own class may fail even here
        words = ""
    text = f"{type(error).__name__}: {words}" if words else type(error).__name__
    return text.encode("utf-8", "backslashreplace").decode()


def _request(scratch: str) -> dict[str, Any]:
    """The request; where the worker is gone before it asked for anything, this process ends and leaves nothing."""
    data = b""
    wanted = 8
    while len(data) < wanted:
        part = os.read(0, wanted - len(data))
        if not part:
            shutil.rmtree(scratch, ignore_errors=True)
            os._exit(0)
        data += part
        if len(data) == wanted == 8:
            wanted += int.from_bytes(data, "big")
    request = json.loads(data[8:])
    return {**request, "scratch": scratch}


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        pass


if __name__ == "__main__":
    main()
