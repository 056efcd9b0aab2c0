"""The way from the command line to a store: the fleet's Redis, or (``--state``) a file.

Guarantees: the server is ``REDIS_URL``, else the embedded one that runs in the data directory; only `up` and `run`
start one, a command that looks says that none runs. Connections are closed when the command ends. Never builds
anything at import time.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from coordinator.cli.app import App
from coordinator.inspector import Inspector
from coordinator.person import NoFleet, Person
from coordinator.spaceview import describe
from protocol.errors import ConfigError, StoreUnreachable
from protocol.keys import Keys
from protocol.kit import embedded
from protocol.kit.settings import Settings
from protocol.ports import Areas, ArtifactStore, KnownRoles
from protocol.record import is_name
from protocol.stores.client import Client, connect, guard
from protocol.stores.file_areas import FileAreas, FolderArtifacts
from protocol.stores.jsonfile import JsonFile
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_dispatch import RoleStreams
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_roles import Roles
from protocol.stores.redis_wake import Wake
from protocol.stores.redis_workers import Workers
from protocol.stores.redis_workspaces import RedisAreas
from protocol.stores.scripts import Scripts

F = TypeVar("F", bound=Callable[..., Any])
FOLLOW_TIMEOUT_S = 30.0
"""How long a blocking read may be silent before its connection counts as broken; longer than its block."""


@dataclass(frozen=True, slots=True)
class Store:
    """What a command may use of the fleet's store. ``blocking`` is for reads that wait, on a connection of its own."""

    settings: Settings
    url: str
    client: Client
    blocking: Client
    keys: Keys
    scripts: Scripts
    log: RedisLog
    streams: RoleStreams
    roles: Roles
    wake: Wake
    workers: Workers

    @property
    def inspector(self) -> Inspector:
        """The read side."""
        return Inspector(
            self.client, self.keys, self.log, self.workers, self.roles, self.streams, dead_s=self.settings.dead_s
        )

    def person(self, who: str) -> Person:
        """What a person does, as ``who``."""
        return Person(self.log, self.streams, self.wake, self.roles, who=person_name(who))


def server_url(app: App, *, start: bool = False) -> str:
    """The address of the fleet's server. Raises StoreUnreachable where none is named and none runs."""
    if app.settings.redis_url is not None:
        return app.settings.redis_url
    if start:
        server = embedded.ensure_server(app.settings.data_dir)
        if server.started_here:
            app.note(f"started the embedded server in {str(server.directory)!r} (pid {server.pid})")
        return server.url
    found = embedded.find_running(app.settings.data_dir)
    if found is None:
        raise StoreUnreachable(
            f"no server runs in {str(app.settings.data_dir)!r} and REDIS_URL is not set",
            op="connect",
            mend="start a fleet with `rolecall up`, or set REDIS_URL",
        )
    return found.url


@asynccontextmanager
async def open_store(app: App, *, start: bool = False, url: str = "") -> AsyncIterator[Store]:
    """The fleet's store (at ``url`` where that is known), proved to answer. Raises StoreError or ConfigError."""
    url = url or server_url(app, start=start)
    client = connect(url, pool=8)
    blocking = connect(url, answer_timeout_s=FOLLOW_TIMEOUT_S, pool=1)
    try:
        with guard("connect"):
            await client.ping()
        keys, scripts = Keys(app.settings.prefix), Scripts(client)
        yield Store(
            settings=app.settings,
            url=url,
            client=client,
            blocking=blocking,
            keys=keys,
            scripts=scripts,
            log=RedisLog(client, keys, scripts),
            streams=RoleStreams(client, keys, scripts),
            roles=Roles(client, keys),
            wake=Wake(client, keys),
            workers=Workers(client, keys, scripts),
        )
    finally:
        await client.aclose()
        await blocking.aclose()


@dataclass(frozen=True, slots=True)
class Target:
    """Where a command works: a space of the fleet (empty: the last session), or a state file."""

    space: str = ""
    state: Path | None = None


class NoRoles:
    """Without a fleet no role was ever published."""

    async def all(self) -> dict[str, dict[str, Any]]:
        return {}


@dataclass(frozen=True, slots=True)
class Opened:
    """An opened target: the log, the name of the space in it, and what stands beside the log. ``store`` is None on a
    state file."""

    log: RedisLog | JsonFile
    space: str
    store: Store | None
    artifacts: ArtifactStore
    areas: Areas
    roles: KnownRoles

    def person(self, who: str) -> Person:
        """What a person does, as ``who``; on a state file without a fleet to tell."""
        if self.store is not None:
            return self.store.person(who)
        assert isinstance(self.log, JsonFile), "only a state file comes without a store"
        return Person(self.log, NoFleet(), NoFleet(), None, who=person_name(who))

    async def described(self) -> dict[str, Any]:
        """The space as ``check-status`` shows it."""
        if self.store is not None:
            return await self.store.inspector.session(self.space)
        states = await self.log.task_states(self.space)
        usage = {"by": [], "total_tokens": 0, "cost": 0.0, "budget": {}}
        return await describe(self.log, self.space, states) | {"usage": usage}


def target_options(command: F) -> F:
    """``--space``, ``--session`` and ``--state``; the command gets them as ``target``."""

    def wrapped(*args: Any, space: str, session: str, state: str | None, **kwargs: Any) -> Any:
        if sum(map(bool, (space, session, state))) > 1:
            raise click.UsageError("give one of --space, --session and --state")
        target = Target(space or session, Path(state) if state else None)
        return command(*args, target=target, **kwargs)

    wrapped.__doc__ = command.__doc__
    wrapped.__name__ = command.__name__
    wrapped.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--state", metavar="FILE", help="A state file instead of the fleet's store."),
        click.option("--session", default="", metavar="ID", help="A session (its space has its name)."),
        click.option("--space", default="", metavar="NAME", help="A task space. Default: the last session."),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


@asynccontextmanager
async def open_target(app: App, target: Target, *, must_exist: bool = True) -> AsyncIterator[Opened]:
    """Open what ``--space``, ``--session`` or ``--state`` named. Raises ConfigError for a space that is not there."""
    if target.state is not None:
        file = JsonFile(app.cwd / target.state)
        yield Opened(file, file.name(), None, FolderArtifacts(file), FileAreas(file), NoRoles())
        return
    try:
        url = server_url(app)
    except StoreUnreachable as error:
        beside = state_path(app, target.space) if is_name(target.space) else None
        if beside is not None and beside.exists():
            error.mend += f"; or did you mean --state state/{beside.name}?"
        raise
    async with open_store(app, url=url) as store:
        space = target.space or await store.inspector.last_session()
        if must_exist and not await store.log.exists(space):
            raise ConfigError(
                f"there is no space {space!r}", mend="`rolecall list-tasks` lists them, `create-task-space` makes one"
            )
        artifacts = Artifacts(store.client, store.keys, store.scripts)
        areas = RedisAreas(store.client, store.keys, store.log)
        yield Opened(store.log, space, store, artifacts, areas, store.roles)


def state_path(app: App, name: str) -> Path:
    """Where ``create-task-space`` keeps a space without a server."""
    return app.cwd / "state" / f"{name}.json"


def person_name(given: str = "") -> str:
    """Who a person is on record: ``person_<user>``, or the name that was given with ``--as``."""
    if given:
        if not re.fullmatch(r"[A-Za-z0-9_\-.:/#@]{1,128}", given):
            raise ConfigError(f"--as {given!r} can't be a name", mend="use 1 to 128 of A-Z a-z 0-9 _ - . : / # @")
        return given
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = "unknown"
    return f"person_{re.sub(r'[^A-Za-z0-9_.-]', '_', user)[:100] or 'unknown'}"
