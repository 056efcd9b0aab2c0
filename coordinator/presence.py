"""The presence of a leader or manager in the register of starts: it beats while it runs, and says when it leaves.

Guarantees: a process of the coordinator is seen like a worker (live, dead, left); one that was buried in the meantime
(stopped for too long) gives up what it does and begins again under a new name. Never decides anything else.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

from protocol.errors import StoreError
from protocol.kit.lifecycle import Stopping
from protocol.kit.logs import get_log
from protocol.stores.redis_workers import Workers

log = get_log(__name__)

Kind = Literal["leader", "manager"]


def host_name() -> str:
    """This host's name, in the letters that a start id may have."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64] or "host"


def start_id(kind: Kind, token: str = "") -> str:
    """``leader@<host>:<pid>:<token>``; without a token a random one."""
    return f"{kind}@{host_name()}:{os.getpid()}:{token or secrets.token_hex(4)}"


async def run_present(
    kind: Kind,
    work: Callable[[str, Stopping], Awaitable[None]],
    stopping: Stopping,
    *,
    workers: Workers,
    beat_s: float,
    token: str = "",
) -> None:
    """Run ``work(start, stopping)`` and beat meanwhile, until ``stopping`` begins. Raises what the work raises."""
    while not stopping.draining:
        start = start_id(kind, token)
        token = ""  # a name is used once
        inner = Stopping()
        info = {"role": kind, "kind": kind, "host": host_name(), "pid": os.getpid()}
        beating = asyncio.create_task(_beat(workers, start, info, beat_s), name="beat")
        working = asyncio.ensure_future(work(start, inner))
        ended = asyncio.create_task(stopping.wait(), name="stopping")
        try:
            await asyncio.wait([beating, working, ended], return_when=asyncio.FIRST_COMPLETED)
            if beating.done():
                beating.result()
                log.warning("buried", start=start, then="beginning again under a new name")
            inner.request()
            await working
        finally:
            for task in (beating, working, ended):
                task.cancel()
            await asyncio.gather(beating, working, ended, return_exceptions=True)
            if not stopping.now:  # cut off: the store may be away, and then it would not hear of it in time
                await _leave(workers, start)


async def _beat(workers: Workers, start: str, info: Mapping[str, object], beat_s: float) -> None:
    """Beat until buried. A store that is away is waited for."""
    while True:
        try:
            if not await workers.beat(start, {**info, "loop_age_s": 0, "in_hand": 0}):
                return
            await asyncio.sleep(beat_s)
        except StoreError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(min(beat_s, 1.0))


async def _leave(workers: Workers, start: str) -> None:
    try:
        await asyncio.wait_for(workers.bury(start, "left"), 2.0)
    except (StoreError, TimeoutError):
        pass  # it falls silent instead
