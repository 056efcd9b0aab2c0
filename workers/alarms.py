"""Everything that knows arq: it hosts the worker process and it is the alarm clock.

Guarantees: JSON on the wire, never pickle; an alarm's job returns an outcome and never raises; arq's connection waits
for a store that is away and never hangs an ending process; arq's own health key is ours to write (``--check`` exits 0
only if a worker of the role beats and reads). Why each: ``docs/decisions/0002-arq.md``. Nothing else imports arq.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from arq.connections import ArqRedis, RedisSettings
from arq.worker import func
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import BusyLoadingError, ConnectionError, TimeoutError

from protocol.keys import Keys
from protocol.stores.redis_dispatch import Ref

FIRE: Final = "fire"
ENDLESS: Final = 1_000_000
POLL_S: Final = 0.5
Fire = Callable[[Ref], Awaitable[float]]
"""Fires an alarm; the seconds that remain, 0 where it is settled."""


class AlarmPool(ArqRedis):
    """arq's connection: an outage is waited out, and its one health key per role is left to us (arq would write it
    though nothing is read, and delete it though another worker of the role lives)."""

    health_key: str = ""

    async def psetex(self, name: Any, time_ms: Any, value: Any) -> Any:
        if name != self.health_key:
            return await super().psetex(name, time_ms, value)
        return True

    async def delete(self, *names: Any) -> Any:
        kept = [name for name in names if name != self.health_key]
        return await super().delete(*kept) if kept else 0


def dumps(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, default=str)


def loads(data: bytes) -> dict[str, Any]:
    value: dict[str, Any] = orjson.loads(data)
    if isinstance(value.get("a"), list):
        value["a"] = tuple(value["a"])
    return value


def alarm_pool(url: str, keys: Keys, role: str) -> AlarmPool:
    """A connection for one role's alarms."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=8,
        timeout=10,
        socket_timeout=10,
        socket_connect_timeout=3,
        health_check_interval=30,
        retry=Retry(ExponentialBackoff(cap=1.0, base=0.1), ENDLESS),
        retry_on_error=[ConnectionError, TimeoutError, BusyLoadingError, OSError],
    )
    made = AlarmPool(
        pool_or_conn=pool, job_serializer=dumps, job_deserializer=loads, default_queue_name=keys.alarms(role)
    )
    made.health_key = keys.health(role)
    return made


async def arm(pool: AlarmPool, keys: Keys, ref: Ref, delay_s: float) -> None:
    """Arm the alarm of a retry. It only makes it prompt: the due time is in the task's state, and the manager fires
    whatever is overdue."""
    await pool.enqueue_job(
        FIRE,
        ref.space,
        ref.task,
        ref.attempt,
        _job_id=f"{keys.prefix}{ref.field}",
        _queue_name=keys.alarms(ref.role),
        _defer_by=delay_s,
    )


def hosted(
    *,
    url: str,
    keys: Keys,
    role: str,
    fire: Fire,
    pool: AlarmPool | None,
    on_startup: Callable[[dict[str, Any]], Awaitable[None]],
    on_shutdown: Callable[[dict[str, Any]], Awaitable[None]],
) -> dict[str, Any]:
    """The settings that arq's command line takes for a role. Without ``pool`` they serve ``--check`` alone."""

    async def fire_job(ctx: dict[str, Any], space: str, task: str, attempt: int) -> dict[str, Any]:
        ref = Ref(role, space, task, attempt)
        remaining = await fire(ref)
        if remaining > 0 and pool is not None:
            # Re-armed under another name: arq would take the running job's own id for a double.
            await pool.enqueue_job(
                FIRE,
                space,
                task,
                attempt,
                _queue_name=keys.alarms(role),
                _defer_by=remaining + 0.05,
                _job_id=f"{keys.prefix}{ref.field}:{ctx.get('score', 0)}",
            )
        return {"task": task, "attempt": attempt, "remaining_s": remaining}

    return {
        "functions": [func(fire_job, name=FIRE, keep_result=0, timeout=20, max_tries=1000)],
        "queue_name": keys.alarms(role),
        "redis_settings": _check_settings(url),
        "redis_pool": pool,
        "handle_signals": False,
        "on_startup": on_startup,
        "on_shutdown": on_shutdown,
        "health_check_key": keys.health(role),
        "keep_result": 0,
        "max_tries": 1000,
        "job_timeout": 20,
        "poll_delay": POLL_S,
        "max_jobs": 50,
        "job_serializer": dumps,
        "job_deserializer": loads,
        "log_results": False,
    }


def _check_settings(url: str) -> RedisSettings:
    made = RedisSettings.from_dsn(url)
    made.conn_retries, made.conn_timeout = 1, 3
    return made
