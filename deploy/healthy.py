"""``python deploy/healthy.py ROLE``: is there a living start of ROLE on this host? The health check of a container.

Guarantees: exit code 0 only if the store answers and a process of that role (or ``leader``, ``manager``) on this very
host beat within dead-after and its event loop turns; else 1 with one line. Never starts or changes anything.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from pathlib import Path

from protocol.errors import ConfigError, RolecallError
from protocol.keys import Keys
from protocol.kit.settings import Settings
from protocol.stores.client import connect
from protocol.stores.redis_workers import Workers


async def healthy(settings: Settings, role: str, host: str) -> bool:
    """Whether such a start lives. Raises StoreError or ConfigError."""
    if settings.redis_url is None:
        raise ConfigError("REDIS_URL is not set", mend="set it to the fleet's server")
    client = connect(settings.redis_url, answer_timeout_s=5, pool=1)
    try:
        found = await Workers(client, Keys(settings.prefix)).live()
    finally:
        await client.aclose()
    here = re.sub(r"[^A-Za-z0-9.-]", "-", host)  # as a start id has it, which may cut it short
    return any(
        info.role == role and info.host and here.startswith(info.host)
        and info.age_s < settings.dead_s and info.state == "live"
        for info in found
    )  # fmt: skip


def main(role: str) -> int:
    try:
        if asyncio.run(healthy(Settings.load(os.environ, Path.cwd()), role, socket.gethostname())):
            return 0
        said = f"no living {role!r} on this host"
    except RolecallError as error:
        said = str(error)
    sys.stderr.write(f"{said}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else "usage: python deploy/healthy.py ROLE")
