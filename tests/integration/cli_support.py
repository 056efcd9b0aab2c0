"""What the tests of the command line share: calling it in this process, and looking into the same store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from coordinator.cli.app import App
from coordinator.cli.store import Store, open_store

T = TypeVar("T")
SPACE = "review_2026"


@dataclass
class Said:
    """What one command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Said]
"""``cli(*argv, stdin=None, expect=0, env=None)``: runs a command line; its exit code must be ``expect``."""


def in_store(app: App, do: Callable[[Store], Awaitable[T]]) -> T:
    """Do something with the same store that the command line opens."""

    async def work() -> T:
        async with open_store(app) as store:
            return await do(store)

    return asyncio.run(work())


def record(event: str, task: str = "T1", who: str = "master_w", **detail: Any) -> str:
    """A task record of an outside agent, as text."""
    trace = {"parent_id": None, "session_id": SPACE}
    value = {"id": task, "who": who, "event": event, "detail": detail, "trace": trace}
    return json.dumps(value, ensure_ascii=False)
