"""Workers for the zombie tests: a process that stops itself (SIGSTOP) at a named point, once, or holds the interpreter.

``arq tests.chaos.pausing.stepper`` stops at the crash point named by ``PAUSE_AT``; ``arq tests.chaos.pausing.holder``
serves the role ``stepper`` with a runner that holds the interpreter lock for ``HOLD_S`` seconds, ``…quick`` with one
that is done at once, ``…killer`` with one that ends its whole process where the task says so.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

from protocol.ports import Delivered, Dispatch, Outcome, Runner, TurnFence
from workers import consumer
from workers.host import arq_settings

_paused = False


def pause_point(name: str) -> None:
    """Stop this process the first time it comes by the point."""
    global _paused
    if name == os.environ.get("PAUSE_AT") and not _paused:
        _paused = True
        os.kill(os.getpid(), signal.SIGSTOP)


async def hold(dispatch: Dispatch, fence: TurnFence) -> Outcome:
    """Holds the interpreter lock, as one long call into C does (PyDLL never releases it)."""
    with Path(dispatch.detail["input"]["log"]).open("a") as file:
        file.write(f"{dispatch.task}\n")
    ctypes.PyDLL(None).usleep(int(float(os.environ["HOLD_S"]) * 1_000_000))
    return Delivered({"result": "完成"})


def make_hold(parts: object) -> Runner:
    return hold


async def at_once(dispatch: Dispatch, fence: TurnFence) -> Outcome:
    """Done at once."""
    return Delivered({"result": f"完成 {dispatch.task}"})


def make_at_once(parts: object) -> Runner:
    return at_once


async def end_process(dispatch: Dispatch, fence: TurnFence) -> Outcome:
    """Ends the worker as the kernel does when memory is out, where the task's input has ``kill``."""
    given = dispatch.detail["input"]
    with Path(given["log"]).open("a") as file:
        file.write(f"{dispatch.task}\n")
    if given.get("kill"):
        os._exit(137)
    return Delivered({"result": f"完成 {dispatch.task}"})


def make_end_process(parts: object) -> Runner:
    return end_process


def __getattr__(name: str) -> dict[str, Any]:
    if name == "stepper":
        setattr(consumer, "crash_point", pause_point)  # noqa: B010 - a name that the module does not export
        return arq_settings("stepper")
    if name == "holder":
        return arq_settings("stepper", runner=make_hold)
    if name == "quick":
        return arq_settings("stepper", runner=make_at_once)
    if name == "killer":
        return arq_settings("stepper", runner=make_end_process)
    raise AttributeError(name)
