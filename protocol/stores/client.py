"""Connections to Redis, and the one place where its exceptions become ours.

Guarantees: a client for loopback or anywhere that gives up on a silent peer after a bound, keeps blocking readers on
connections of their own, and raises nothing but ``StoreError`` through ``guard``. Never holds a client at module level.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast
from urllib.parse import urlsplit

from redis import exceptions as rx
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from protocol.errors import ConfigError, RolecallError, StoreDenied, StoreError, StoreFull, StoreUnreachable

T = TypeVar("T")
Client = Redis
"""The client type that the rest annotates with: bytes in, bytes out."""

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 10.0
"""A peer that is silent this long is taken for gone (its packets may be dropped without a reset)."""
POOL = 32
NOT_READY = (rx.ReadOnlyError, rx.MasterDownError, rx.ClusterDownError, rx.TryAgainError)
WAITED_FOR = ("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY ", "NOREPLICAS", "TRYAGAIN", "UNBLOCKED")
"""How the answers of a server begin that fails over, runs somebody's long script, or waits for its replicas."""
_PIPELINE = re.compile(r"^Command # \d+ \(.*\) of pipeline caused error: (?:\(['\"])?", re.DOTALL)
"""What redis-py puts before the words of a server that refused one command of a pipeline."""


def connect(url: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S, pool: int = POOL) -> Client:
    """A client with a bounded pool that waits for a free connection. For a blocking read give ``pool=1`` and an
    ``answer_timeout_s`` longer than the block."""
    try:
        made = BlockingConnectionPool.from_url(
            url,
            max_connections=pool,
            timeout=answer_timeout_s,
            socket_timeout=answer_timeout_s,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_keepalive=True,
            health_check_interval=30,
            retry=Retry(NoBackoff(), 1),
            retry_on_error=[rx.ConnectionError, ConnectionResetError, BrokenPipeError],
        )
    except ValueError as error:
        raise ConfigError(f"REDIS_URL {shown(url)!r}: {error}", mend="redis://[user:password@]host:port/db") from error
    return Redis.from_pool(made)


def shown(url: str) -> str:
    """The url without its password."""
    try:
        parts = urlsplit(url)
        if parts.password is None:
            return url
        host = parts.netloc.rsplit("@", 1)[1]
        return parts._replace(netloc=f"{parts.username or ''}:***@{host}").geturl()
    except ValueError:
        return "<not a url>"


async def awaited(value: Awaitable[T] | T) -> T:
    """Await a redis-py command whose annotation says "awaitable or value" (5.3 types both in one)."""
    return await cast("Awaitable[T]", value)


@contextmanager
def guard(op: str) -> Iterator[None]:
    """Turn what redis-py and the sockets raise into the error tree."""
    try:
        yield
    except RolecallError:
        raise
    except (rx.AuthenticationError, rx.NoPermissionError) as error:
        raise StoreDenied(f"Redis refused {op}: {error}", op=op, mend="check user and password in REDIS_URL") from error
    except rx.OutOfMemoryError as error:
        raise StoreFull(f"Redis is out of memory ({op})", op=op, mend="raise maxmemory or archive spaces") from error
    except rx.BusyLoadingError as error:
        raise StoreUnreachable(f"Redis is still loading its data ({op})", op=op, mend="wait for it") from error
    except NOT_READY as error:  # redis-py has taken the code off these
        raise StoreUnreachable(f"Redis is not ready ({op}): {error}", op=op, mend="wait for the failover") from error
    except (rx.ConnectionError, rx.TimeoutError, OSError, TimeoutError) as error:
        if "WRONGPASS" in str(error) or "Authentication required" in str(error):  # raised while connecting
            raise StoreDenied(f"Redis refused {op}: {error}", op=op, mend="check the password in REDIS_URL") from error
        raise StoreUnreachable(
            f"Redis can't be reached ({op}): {error}", op=op, mend="is it running? see REDIS_URL"
        ) from error
    except rx.ResponseError as error:
        text = _PIPELINE.sub("", str(error))
        if text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
            raise StoreDenied(
                f"Redis refused {op}: {text}", op=op, mend="check user and password in REDIS_URL"
            ) from error
        if text.startswith(("MISCONF", "OOM")):
            raise StoreFull(
                f"Redis can't write ({op}): {text}", op=op, mend="free disk or memory of the server"
            ) from error
        if text.startswith(WAITED_FOR):
            raise StoreUnreachable(f"Redis is not ready ({op}): {text}", op=op, mend="wait for the failover") from error
        raise StoreError(f"Redis refused {op}: {text}", op=op, retryable=False) from error


def error_of(op: str, raised: Exception) -> StoreError:
    """What ``guard`` makes of an exception that came as an answer among others."""
    try:
        with guard(op):
            raise raised
    except StoreError as error:
        return error
