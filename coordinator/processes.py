"""A leader or manager as a process: connections, logs, metrics, signals, its end. The two composition roots.

Guarantees: blocking reads have a connection of their own; the first SIGTERM or SIGINT drains within the grace time,
the second ends; a store that is away is waited for, a wrong password is not. Never decides what a leader or manager
does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from coordinator.child import TOKEN_VARIABLE
from coordinator.presence import Kind, host_name, run_present, start_id
from protocol.errors import StoreDenied, StoreError
from protocol.keys import Keys
from protocol.kit import crash, logs
from protocol.kit.lifecycle import Stopping, run_until_signal
from protocol.kit.metrics import Metrics
from protocol.kit.settings import Settings
from protocol.stores.client import ANSWER_TIMEOUT_S, Client, connect, guard
from protocol.stores.redis_workers import Workers

LISTEN_S = 2.0
"""A manager's blocking read lasts at most so long."""


async def run_leader(settings: Settings, url: str, env: Mapping[str, str]) -> int:
    """One leader process until a signal; its exit code. Raises StoreDenied, and what the leader raises."""
    from coordinator import leader_process

    async with _client(url, pool=2) as client:
        workers = Workers(client, Keys(settings.prefix))

        async def lead(start: str, stopping: Stopping) -> None:
            await leader_process.serve(settings, url, stopping, start)

        async def work(stopping: Stopping) -> None:
            token = env.get(TOKEN_VARIABLE, "")
            await run_present("leader", lead, stopping, workers=workers, beat_s=settings.beat_s, token=token)

        return await _process("leader", settings, work, client)


async def run_manager(settings: Settings, url: str, env: Mapping[str, str]) -> int:
    """One manager process until a signal; its exit code. Raises StoreDenied, and what the manager raises."""
    from coordinator.manager import Manager

    async with _client(url) as client, _client(url, answer_timeout_s=ANSWER_TIMEOUT_S + LISTEN_S, pool=1) as reader:
        metrics = Metrics()
        manager = Manager(client, reader, Keys(settings.prefix), settings, metrics, host=host_name())
        manager.start = start_id("manager", env.get(TOKEN_VARIABLE, ""))
        return await _process("manager", settings, manager.run, client, metrics)


async def _process(
    kind: Kind,
    settings: Settings,
    work: Callable[[Stopping], Awaitable[None]],
    client: Client,
    metrics: Metrics | None = None,
) -> int:
    logs.configure(kind, style=settings.log)
    crash.arm(settings.crash_at)
    log = logs.get_log(__name__)
    try:
        with guard("connect"):
            await client.ping()
    except StoreDenied:
        raise
    except StoreError as error:
        log.warning("store_away", why=error.message, mend=error.mend)
    served = None
    if settings.metrics_port is not None:
        served = (metrics or Metrics()).serve(settings.metrics_port)
    try:
        ended = await run_until_signal(work, grace_s=settings.grace_s)
    finally:
        if served is not None:
            served.close()
    log.info("ended", drained=ended)
    return 0 if ended else 1


@asynccontextmanager
async def _client(url: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S, pool: int = 16) -> AsyncIterator[Client]:
    client = connect(url, answer_timeout_s=answer_timeout_s, pool=pool)
    try:
        yield client
    finally:
        await client.aclose()
