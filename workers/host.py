"""The composition root of a worker process: from a role file and the settings to what ``arq`` runs.

Guarantees: everything a worker needs is built here and handed down; a wrong password, a broken role file or a bad
setting is one line with its mend before anything starts; a worker that failed exits with another code than 0. Never
keeps a client, pool or setting at module level.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import redis

from protocol.errors import ConfigError, RolecallError, StoreDenied
from protocol.keys import Keys
from protocol.kit import crash, embedded, logs
from protocol.kit.lifecycle import Stopping, cancelled
from protocol.kit.logs import get_log
from protocol.kit.metrics import Metrics, MetricsServer
from protocol.kit.rolefiles import RoleFile
from protocol.kit.settings import Settings
from protocol.kit.tracing import load as tracing_of
from protocol.ports import Runner
from protocol.stores.client import connect, guard, shown
from protocol.stores.redis_dispatch import Ref
from protocol.stores.redis_roles import Roles
from workers import alarms
from workers.checking import Checker
from workers.rolesource import RoleSource
from workers.runner import RunnerParts, make_runner
from workers.worker import BLOCK_MS, Parts, Worker, host_name

log = get_log(__name__)
EXIT_AFTER_S: Final = 5.0
RunnerMaker = Callable[[RunnerParts], Runner]


class Host:
    """One role's worker process, as arq hosts it."""

    def __init__(
        self, source: RoleSource, settings: Settings, *, burst: bool, runner: RunnerMaker = make_runner
    ) -> None:
        self._source = source
        self._settings = settings
        self._burst = burst
        self._make_runner = runner
        self._keys = Keys(settings.prefix)
        self._url = redis_url(settings)
        self._stopping = Stopping()
        self._failure: BaseException | None = None
        self._life: asyncio.Task[None] | None = None
        self._worker: Worker | None = None
        self._pool: alarms.AlarmPool | None = None
        self._ports: MetricsServer | None = None

    def check_settings(self) -> dict[str, Any]:
        """For ``--check``: nothing is started."""
        return self._hosted(None)

    def settings(self) -> dict[str, Any]:
        """For a worker process."""
        preflight(self._url)
        self._pool = alarms.alarm_pool(self._url, self._keys, self._source.id)
        return self._hosted(self._pool)

    def _hosted(self, pool: alarms.AlarmPool | None) -> dict[str, Any]:
        return alarms.hosted(
            url=self._url,
            keys=self._keys,
            role=self._source.id,
            fire=self._fire,
            pool=pool,
            on_startup=self._startup,
            on_shutdown=self._shutdown,
        )

    async def _fire(self, ref: Ref) -> float:
        if self._worker is None or self._worker.postman is None:
            return 1.0
        return await self._worker.postman.fire(ref)

    async def _startup(self, ctx: dict[str, Any]) -> None:
        """arq calls this inside its main task: ours runs beside it and ends it."""
        role = self._source.current()
        logs.configure(f"worker {role.id}", style=self._settings.log)
        main = asyncio.current_task()
        assert main is not None
        self._life = asyncio.create_task(self._live(role, main))

    async def _live(self, role: RoleFile, main: asyncio.Task[Any]) -> None:
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, self._signalled, loop)
        client = connect(self._url)
        reader = connect(self._url, answer_timeout_s=BLOCK_MS / 1000 + 8, pool=2)
        tracing = tracing_of(os.environ, "rolecall-worker")
        try:
            metrics = Metrics(roles=[role.id], models=[m.key for m in self._settings.models])
            if self._settings.metrics_port is not None:
                self._ports = metrics.serve(self._settings.metrics_port)
            published = Roles(client, self._keys)
            runner = self._make_runner(
                RunnerParts(
                    self._settings,
                    self._source,
                    client,
                    self._keys,
                    metrics,
                    self._url,
                    lambda: self._stopping.draining,
                    tracing,
                )
            )
            checker = Checker(self._source, client, self._keys, self._settings, metrics)
            self._worker = Worker(
                role.id,
                Parts(
                    url=self._url,
                    settings=self._settings,
                    keys=self._keys,
                    client=client,
                    reader=reader,
                    metrics=metrics,
                    runner=runner,
                    arm=self._arm,
                    check=checker.check,
                    processing=self._processing,
                    info=self._info,
                ),
                concurrency=concurrency_of(role, self._settings),
                stopping=self._stopping,
                burst=self._burst,
            )
            publishing = asyncio.create_task(self._source.publish(published, self._stopping))
            try:
                await self._worker.run()
            finally:
                await cancelled((publishing,))
        except Exception as error:  # noqa: BLE001 - arq must not swallow it: the process ends with it
            self._failure = error
            log.error("the worker failed", error=error, why=str(error))
        finally:
            if self._ports is not None:
                self._ports.close()
            tracing.close()
            await client.aclose()
            await reader.aclose()
            self._stopping.request()
            main.cancel()

    def _signalled(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stopping.request()
        # arq may hang in close() while the store is away: past the grace time this process ends all the same.
        loop.call_later(self._settings.grace_s + EXIT_AFTER_S, os._exit, 1)

    async def _shutdown(self, ctx: dict[str, Any]) -> None:
        """Burst ends here, and so does a failure: with another exit code than 0."""
        if self._life is not None:
            await asyncio.gather(self._life, return_exceptions=True)
        if self._failure is not None:
            raise SystemExit(exit_code(self._failure))

    async def _arm(self, ref: Ref, delay_s: float) -> None:
        assert self._pool is not None
        with guard("arm alarm"):
            await alarms.arm(self._pool, self._keys, ref, delay_s)

    def _processing(self) -> dict[str, Any]:
        return {"role_digest": self._source.current().digest}

    def _info(self) -> dict[str, object]:
        role = self._source.current()
        return {
            "host": host_name(),
            "digest": role.digest,
            "kind": "worker",
            "concurrency": concurrency_of(role, self._settings),
        }


def redis_url(settings: Settings) -> str:
    """``REDIS_URL``, else the embedded server of this data directory where one runs."""
    if settings.redis_url:
        return settings.redis_url
    running = embedded.find_running(settings.data_dir)
    if running is None:
        raise ConfigError(
            "no REDIS_URL and no embedded server runs here", mend="set REDIS_URL, or start `rolecall up` first"
        )
    return running.url


def preflight(url: str) -> None:
    """One try before anything starts: a wrong password ends the process at once, an absent server is waited for."""
    client = redis.Redis.from_url(url, socket_timeout=3, socket_connect_timeout=3)
    try:
        with guard("connect"):
            client.ping()
    except StoreDenied:
        raise
    except RolecallError as error:
        log.warning("the store is not there yet, waiting for it", url=shown(url), why=error.message)
    finally:
        client.close()


def concurrency_of(role: RoleFile, settings: Settings) -> int:
    """Turns at once in one process: ROLECALL_CONCURRENCY, else the role's, else 2 for a skill and 8 for a model."""
    return settings.concurrency or role.concurrency or (2 if role.executor == "skill" else 8)


def exit_code(failure: BaseException) -> int:
    return failure.exit_code if isinstance(failure, RolecallError) else 1


def arq_settings(name: str, *, runner: RunnerMaker = make_runner) -> dict[str, Any]:
    """The arq settings of the role whose module name is ``name`` (``workers.roles.<name>``). Raises ConfigError."""
    settings = Settings.load(os.environ, Path.cwd())
    crash.arm(settings.crash_at)
    source = RoleSource.find(name, settings)
    host = Host(source, settings, burst="--burst" in sys.argv, runner=runner)
    return host.check_settings() if "--check" in sys.argv else host.settings()
