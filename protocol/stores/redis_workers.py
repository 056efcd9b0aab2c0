"""Who lives: beats, graves, the sweep.

Guarantees: death is a write, once and for ever (``bury.lua``); a buried start's beat is refused; ages count by the
server's clock and only while someone watched. Never decides what happens to a dead start's tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from protocol.keys import Keys
from protocol.stores.client import Client, awaited, guard
from protocol.stores.scripts import Scripts

WATCH_GAP_MS: Final = 5_000
"""A sweep later than this after the one before starts a fresh window for everyone (where dead-after is short: later
than half of that, or a pause just below the gap would make everyone look dead)."""
STALLED_FROM_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One start as its last beat told."""

    start: str
    role: str
    host: str
    pid: int
    last_beat_ms: int
    age_s: float
    loop_age_s: float
    in_hand: int
    kind: str = "worker"
    digest: str = ""
    state: Literal["live", "stalled"] = "live"
    """``stalled``: beats, but the event loop has not turned for some time. Shown; nothing is taken."""


@dataclass(frozen=True, slots=True)
class Grave:
    """A buried start."""

    start: str
    role: str
    reason: str
    at_ms: int
    last_beat_ms: int
    info: Mapping[str, Any] = field(default_factory=dict)


class Workers:
    """The register of starts (workers, leaders and managers)."""

    def __init__(
        self, client: Client, keys: Keys, scripts: Scripts | None = None, *, stalled_s: float = STALLED_FROM_S
    ) -> None:
        self._stalled_s = stalled_s
        self._client = client
        self._keys = keys
        self._scripts = scripts or Scripts(client)

    async def beat(self, start: str, info: Mapping[str, object]) -> bool:
        """One beat; False where the start is buried."""
        k = self._keys
        answer = await self._scripts.run(
            "beat", [k.workers, k.workers_info, k.graves], [start, orjson.dumps(dict(info))]
        )
        return bool(answer[0] == b"ok")

    async def bury(self, start: str, reason: str) -> bool:
        """Bury one start; True where this call did it."""
        return bool(await self._bury("one", start, reason))

    async def sweep(self, *, dead_ms: int, run_id: str, stalled_lost_ms: int = 0, every_ms: int = 0) -> list[str]:
        """Bury who has been silent for longer than ``dead_ms`` while someone watched; the starts buried now.
        ``every_ms``: how far apart the caller's sweeps are on purpose."""
        gap_ms = max(min(WATCH_GAP_MS, dead_ms // 2), 2 * every_ms)
        return await self._bury("sweep", dead_ms, run_id, gap_ms, stalled_lost_ms)

    async def live(self) -> list[WorkerInfo]:
        """Every start that is not buried, ages by the server's clock."""
        with guard("workers"):
            async with self._client.pipeline(transaction=False) as pipe:
                pipe.time()
                pipe.zrange(self._keys.workers, 0, -1, withscores=True)
                pipe.hgetall(self._keys.workers_info)
                (seconds, micros), scored, infos = await pipe.execute()
        now = seconds * 1000 + micros // 1000
        return [
            _info(start.decode(), int(beat), now, _told(infos.get(start, b"{}")), self._stalled_s)
            for start, beat in scored
        ]

    async def graves(self, *, unsettled: bool = False) -> list[Grave]:
        """Buried starts; with ``unsettled`` those whose tasks are not all taken care of."""
        with guard("graves"):
            if unsettled:
                starts = sorted(await awaited(self._client.smembers(self._keys.unsettled)))
            else:
                starts = list(await self._client.zrange(self._keys.graves, 0, -1))
            if not starts:
                return []
            raw = await awaited(self._client.hmget(self._keys.grave_info, starts))
        return [_grave(s.decode(), _told(r)) for s, r in zip(starts, raw, strict=True) if r]

    async def buried(self, starts: Sequence[str]) -> set[str]:
        """Which of ``starts`` are buried."""
        if not starts:
            return set()
        with guard("graves"):
            async with self._client.pipeline(transaction=False) as pipe:
                for start in starts:
                    pipe.zscore(self._keys.graves, start)
                scores = await pipe.execute()
        return {s for s, score in zip(starts, scores, strict=True) if score is not None}

    async def known(self, starts: Sequence[str]) -> set[str]:
        """Which of ``starts`` are registered as living."""
        if not starts:
            return set()
        with guard("workers"):
            scores = await awaited(self._client.zmscore(self._keys.workers, list(starts)))
        return {s for s, score in zip(starts, scores, strict=True) if score is not None}

    async def settled(self, start: str) -> None:
        """Everything the start held is taken care of."""
        with guard("graves"):
            await awaited(self._client.srem(self._keys.unsettled, start))

    async def unsettle(self, starts: Sequence[str]) -> None:
        """Something of these buried starts is left after all: their graves are looked at again."""
        if starts:
            with guard("graves"):
                await awaited(self._client.sadd(self._keys.unsettled, *starts))

    async def unserve(self, role: str, start: str) -> None:
        """Take back the sign that the role is served, where this start set it; another worker sets it again."""
        key = self._keys.health(role)
        with guard("unserve"):
            if await self._client.get(key) == start.encode():
                await self._client.delete(key)

    async def run_id(self) -> str:
        """The server's run id: another one after a restart or failover."""
        with guard("server info"):
            info = await self._client.info("server")
            return str(info["run_id"])

    async def _bury(self, *args: str | int) -> list[str]:
        k = self._keys
        keys = [k.workers, k.workers_info, k.graves, k.grave_info, k.unsettled, k.watch]
        return [s.decode() for s in await self._scripts.run("bury", keys, list(args))]


def _told(raw: bytes) -> Mapping[str, Any]:
    """What a start told of itself; nothing, where that is no object (any worker's credential may write there)."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _info(start: str, beat_ms: int, now_ms: int, info: Mapping[str, Any], stalled_s: float) -> WorkerInfo:
    role, _, rest = start.partition("@")
    host, _, tail = rest.rpartition(":")[0].rpartition(":")
    return WorkerInfo(
        start=start, role=str(info.get("role", role)), host=str(info.get("host", host)),
        pid=int(_number(info.get("pid"))) or (int(tail) if tail.isdecimal() else 0), last_beat_ms=beat_ms,
        age_s=max(0.0, (now_ms - beat_ms) / 1000), loop_age_s=_number(info.get("loop_age_s")),
        in_hand=int(_number(info.get("in_hand"))), kind=str(info.get("kind", "worker")),
        digest=str(info.get("digest", "")),
        state="stalled" if _number(info.get("loop_age_s")) >= stalled_s else "live",
    )  # fmt: skip


def _grave(start: str, raw: Mapping[str, Any]) -> Grave:
    info = raw.get("info")
    info = info if isinstance(info, dict) else {}
    return Grave(
        start=start, role=str(info.get("role") or start.partition("@")[0]), reason=str(raw.get("reason", "")),
        at_ms=int(_number(raw.get("at"))), last_beat_ms=int(_number(raw.get("last_beat"))), info=info,
    )  # fmt: skip
