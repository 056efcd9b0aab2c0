"""What the fleet knows of roles: published by every worker at its start and on change.

Guarantees: a role that any worker ever published is known to leaders, planners and people; nothing here is the truth
about who is alive (``redis_workers``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson

from protocol.keys import Keys
from protocol.stores.client import Client, awaited, guard


class Roles:
    """The published roles: id -> front matter with ``digest``."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def publish(self, role: str, front: Mapping[str, object], digest: str) -> None:
        with guard("publish role"):
            await awaited(
                self._client.hset(self._keys.roles, role, cast("Any", orjson.dumps({**front, "digest": digest})))
            )

    async def all(self) -> dict[str, dict[str, Any]]:
        with guard("roles"):
            raw = await awaited(self._client.hgetall(self._keys.roles))
        fronts = {role.decode("utf-8", "replace"): _front(front) for role, front in raw.items()}
        return {role: front for role, front in fronts.items() if front}


def _front(raw: bytes) -> dict[str, Any]:
    """A role's front matter; nothing, where that is no object (any worker's credential may write there)."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
