"""What tests share: waiting without sleeping, and the list of keys that may live for ever.

Guarantees: `wait_until` polls fast and names what it waited for; `leaks` finds every key that has neither a lifetime
nor a place on the list. Never imports the code under test beyond what it is handed.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

T = TypeVar("T")

PERMANENT: tuple[str, ...] = (
    # in a space's slot, {S}: the log and what the append keeps beside it
    r"\{[^}]+\}:log",
    r"\{[^}]+\}:tasks",
    r"\{[^}]+\}:ids",
    r"\{[^}]+\}:meta",
    r"\{[^}]+\}:outbox",
    r"\{[^}]+\}:due",
    r"\{[^}]+\}:held",
    r"\{[^}]+\}:names",
    r"\{[^}]+\}:snap",
    r"\{[^}]+\}:ix:.+",
    r"\{[^}]+\}:beats",
    r"\{[^}]+\}:agents",
    r"\{[^}]+\}:used",
    r"\{[^}]+\}:calls",
    r"\{[^}]+\}:arts",
    r"\{[^}]+\}:conv:.+",
    r"\{[^}]+\}:convm:.+",
    r"\{[^}]+\}:mail:.+",
    r"\{[^}]+\}:area:.+",
    r"\{[^}]+\}:docs",
    r"\{[^}]+\}:art:.+",
    r"\{[^}]+\}:files:.+",
    # a role's stream and its companion
    r"role:[^:]+",
    r"\{.*role:[^}]+\}:queued",
    # the fleet's own
    r"spaces",
    r"\{.*spaces\}:open",
    r"roles",
    r"wake",
    r"workers",
    r"\{.*workers\}:(info|graves|graveinfo|unsettled|watch|agents)",
    # arq's queue of a role
    r"alarms:[^:]+",
)
"""Patterns for what follows the prefix, matched whole. Everything else must have a lifetime."""

FOREIGN = "arq:"
"""What stands outside any prefix: arq's own job keys. They must have a lifetime, all of them."""

_PERMANENT = re.compile("|".join(f"(?:{pattern})" for pattern in PERMANENT))


@overload
async def wait_until(
    condition: Callable[[], Awaitable[T]], what: str, timeout: float = 10.0, every: float = 0.01
) -> T: ...
@overload
async def wait_until(condition: Callable[[], T], what: str, timeout: float = 10.0, every: float = 0.01) -> T: ...
async def wait_until(condition: Callable[[], Any], what: str, timeout: float = 10.0, every: float = 0.01) -> Any:
    """The first true value of ``condition`` (sync or async); after ``timeout`` seconds an error naming ``what``."""
    deadline = time.monotonic() + timeout
    while True:
        found = condition()
        value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain until {what}; last seen: {value!r}")
        await asyncio.sleep(every)


def wait_until_sync(condition: Callable[[], T], what: str, timeout: float = 10.0, every: float = 0.01) -> T:
    """`wait_until` for tests without an event loop."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain until {what}; last seen: {value!r}")
        time.sleep(every)
    return value


def dies_with_test() -> Callable[[], None] | None:
    """For ``preexec_fn``: the kernel (Linux) ends the child with the thread that started it: nothing stays where
    a test process was killed or ran out of its time."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def ask_kernel() -> None:
        libc.prctl(1, signal.SIGKILL)

    return ask_kernel


def leaks(lifetimes: Mapping[str, int], prefix: str) -> list[str]:
    """The keys of ``lifetimes`` (key -> TTL in ms, -1 for none) that may neither stay nor will go."""
    return sorted(key for key, ttl_ms in lifetimes.items() if _leaks(key, ttl_ms, prefix))


def _leaks(key: str, ttl_ms: int, prefix: str) -> bool:
    if key.startswith(prefix):
        return ttl_ms == -1 and not _PERMANENT.fullmatch(key.removeprefix(prefix))
    return ttl_ms == -1 or not key.startswith(FOREIGN)


def clean_environment(environment: Mapping[str, str], extra: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """``environment`` without anything that would steer a fleet: for child processes of a test."""
    steering = ("ROLECALL_", "REDIS_", "OPENAI_")
    kept = {name: value for name, value in environment.items() if not name.startswith(steering)}
    return {**kept, "ROLECALL_NO_MODEL": "1", **dict(extra)}
