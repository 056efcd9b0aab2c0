"""The composition root of a leader process: settings in, a `Leader` on real stores out.

Guarantees: blocking reads have a connection of their own, with an answer timeout longer than the block; everything is
closed at the end. Never configures logs or signals: that is the command line's.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coordinator.leader import Leader
from coordinator.leading import Stores
from protocol.keys import Keys
from protocol.kit.lifecycle import Stopping
from protocol.kit.settings import Settings
from protocol.stores.client import ANSWER_TIMEOUT_S, Client, awaited, connect, guard
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_dispatch import RoleStreams
from protocol.stores.redis_lease import Leases
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_roles import Roles
from protocol.stores.redis_wake import Wake
from protocol.stores.scripts import Scripts


async def serve(settings: Settings, url: str, stopping: Stopping, holder: str = "") -> None:
    """Lead sessions on the server at ``url`` until ``stopping`` begins, as ``holder`` (a start id; "": a new one)."""
    async with leader(settings, url, holder) as made:
        await made.run(stopping)


@asynccontextmanager
async def leader(settings: Settings, url: str, holder: str = "") -> AsyncIterator[Leader]:
    """A leader and its connections."""
    client = connect(url)
    blocking = connect(url, pool=1, answer_timeout_s=ANSWER_TIMEOUT_S + settings.sweep_s)
    keys, scripts = Keys(settings.prefix), Scripts(client)
    log = RedisLog(client, keys, scripts)
    wake = Wake(client, keys, reader=blocking)
    try:
        yield Leader(
            Stores(
                log=log,
                streams=RoleStreams(client, keys, scripts),
                bell=wake,
                artifacts=Artifacts(client, keys, scripts),
                roles=Roles(client, keys),
            ),
            Leases(client, keys, scripts),
            wake,
            open_spaces=log.open_spaces,
            run_id=lambda: run_id(client),
            holder=holder or f"leader@{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}",
            lease_s=settings.dead_s * 2 / 3,
            sweep_s=settings.sweep_s,
        )
    finally:
        # Shielded: a second signal must not leave sockets open that are warned of at the end.
        await asyncio.shield(asyncio.gather(client.aclose(), blocking.aclose(), return_exceptions=True))


async def run_id(client: Client) -> str:
    """Which run of the server this is: another one may have lost what the last second brought."""
    with guard("server info"):
        info = await awaited(client.info("server"))
    return str(info.get("run_id", ""))
