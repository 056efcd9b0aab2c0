"""The read side, in one place: what the command line shows, and later the page and other programs.

Guarantees: reads only, and only what an answer needs (nothing walks a whole log); ages are the server's. Never writes,
never formats for people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from coordinator.spaceview import describe, marks_of, overview
from coordinator.status import SETTLED, counts, waiting
from protocol.errors import ConfigError
from protocol.keys import Keys
from protocol.record import Json
from protocol.stores.client import Client, awaited, guard
from protocol.stores.redis_budget import MICROS, Budgets
from protocol.stores.redis_dispatch import RoleStreams
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_roles import Roles
from protocol.stores.redis_workers import Grave, WorkerInfo, Workers
from protocol.tasks import TaskState

SHOWN_SESSIONS: Final = 50
LISTED: Final = ("session", "imported")
"""Kinds of spaces that hold a person's conversation with a fleet."""
GRAVES_FOR_S: Final = 600.0
"""A dead worker is shown this long."""


class Inspector:
    """Looks at a fleet."""

    def __init__(
        self, client: Client, keys: Keys, log: RedisLog, workers: Workers, roles: Roles, streams: RoleStreams,
        *, dead_s: float,
    ) -> None:  # fmt: skip
        self._client = client
        self._keys = keys
        self._log = log
        self._workers = workers
        self._roles = roles
        self._streams = streams
        self._dead_s = dead_s

    async def spaces(self, limit: int = 1_000) -> list[dict[str, Json]]:
        """Every space, the last changed first, with its metadata and number of records."""
        names = await self._newest(limit)
        out: list[dict[str, Json]] = []
        for name, meta in zip(names, await self._metas(names), strict=True):
            out.append(
                {
                    "space": name, "kind": meta.get("kind", "?"), "title": meta.get("title", ""),
                    "records": int(meta.get("n", 0)), "created_ms": int(meta.get("created", 0)),
                }
            )  # fmt: skip
        return out

    async def last_session(self) -> str:
        """The session that was started last. Raises ConfigError where there is none."""
        for limit in (50, 1_000_000):
            names = await self._newest(limit)
            metas = zip(names, await self._metas(names), strict=True)
            sessions = [(int(m.get("created", 0)), n) for n, m in metas if m.get("kind") == "session"]
            if sessions:
                return max(sessions)[1]
        raise ConfigError("there is no session yet", mend="name a space with --space, or start one: rolecall run GOAL")

    async def sessions(self, *, archived: bool = False, limit: int = SHOWN_SESSIONS) -> list[dict[str, Json]]:
        """Sessions, the newest first: id, title, flow, phase, tasks by state."""
        names = await self._newest(limit * 4)
        metas = await self._metas(names)
        chosen = [
            (name, meta)
            for name, meta in zip(names, metas, strict=True)
            if meta.get("kind") in LISTED and (archived or meta.get("status", "active") != "archived")
        ]
        chosen.sort(key=lambda pair: (-int(pair[1].get("created", 0)), pair[0]))
        return await self._overviews(chosen[:limit])

    async def session(self, space: str) -> dict[str, Json]:
        """One session or space, whole: metadata, phase, tasks with their states, what waits for a person."""
        states = await self._log.task_states(space)
        return await describe(self._log, space, states) | {"usage": await self._usage(space, states)}

    async def _usage(self, space: str, states: Mapping[str, TaskState]) -> dict[str, Json]:
        """Tokens (and money, where models have prices) by role and model, and the session's budget as it started."""
        rows = await Budgets(self._client, self._keys).used(space)
        root = states[space].entry_of("task_started", 1) if space in states else None
        record = await self._log.get(space, root) if root else None
        guards = record.detail.get("guards") if record else None
        return {
            "by": [row.to_json() for row in rows],
            "total_tokens": sum(row.prompt + row.completion for row in rows),
            "cost": sum(row.micros for row in rows) / MICROS,
            "budget": {k: v for k, v in guards.items() if k in ("tokens", "money")} if isinstance(guards, dict) else {},
        }

    async def workers(self) -> list[dict[str, Json]]:
        """Live, stalled and (for a while) dead workers, leaders and managers."""
        live = await self._workers.live()
        now_ms = await self._now_ms()
        rows = [worker_row(info, self._dead_s) for info in live]
        rows += [
            grave_row(grave, now_ms)
            for grave in await self._workers.graves()
            if grave.reason != "left" and now_ms - grave.at_ms <= GRAVES_FOR_S * 1000
        ]
        return sorted(rows, key=lambda row: (str(row["state"]) == "dead", str(row["role"]), str(row["worker"])))

    async def roles(self) -> list[dict[str, Json]]:
        """The published roles with their live workers and backlog."""
        known = await self._roles.all()
        backlog = await self._streams.backlog(sorted(known))
        live = Counter(info.role for info in await self._workers.live() if info.kind == "worker")
        return [
            {
                "role": role, "name": front.get("name", role), "description": front.get("description", ""),
                "kind": front.get("kind", "master"), "executor": front.get("executor", "model"), "workers": live[role],
                "backlog": backlog.get(role, 0), "digest": front.get("digest", ""),
            }
            for role, front in sorted(known.items())
        ]  # fmt: skip

    async def alive(self, kind: str) -> int:
        """How many processes of a kind (``leader``, ``manager``, ``worker``) beat."""
        live = await self._workers.live()
        return sum(1 for info in live if kind_of(info) == kind and info.age_s <= self._dead_s)

    async def status(self) -> dict[str, Json]:
        """The whole fleet: open and recent sessions, their tasks by state, workers, what waits for a person."""
        open_names = await self._log.open_spaces()
        recent = [name for name in await self._newest(SHOWN_SESSIONS) if name not in open_names]
        names = [*open_names[-SHOWN_SESSIONS:], *recent][:SHOWN_SESSIONS]
        sessions: list[dict[str, Json]] = []
        tasks: Counter[str] = Counter()
        waits: list[dict[str, Json]] = []
        for name, meta in zip(names, await self._metas(names), strict=True):
            states = await self._log.task_states(name)
            marks = await marks_of(self._log, name, meta, states)
            sessions.append(overview(name, meta, states, marks))
            tasks.update(counts(states, marks))
            if sessions[-1]["phase"] not in SETTLED:
                waits += waiting(name, states, marks)
        sessions.sort(key=lambda row: (row["phase"] in SETTLED, -row["created_ms"]))
        return {
            "sessions": sessions, "tasks": dict(tasks), "workers": await self.workers(), "waiting_for_person": waits
        }  # fmt: skip

    async def _overviews(self, chosen: Iterable[tuple[str, Mapping[str, str]]]) -> list[dict[str, Json]]:
        out = []
        for name, meta in chosen:
            states = await self._log.task_states(name)
            out.append(overview(name, meta, states, await marks_of(self._log, name, meta, states)))
        return out

    async def _newest(self, limit: int) -> list[str]:
        with guard("list spaces"):
            return [name.decode() for name in await self._client.zrange(self._keys.spaces, 0, limit - 1, desc=True)]

    async def _metas(self, names: Sequence[str]) -> list[dict[str, str]]:
        if not names:
            return []
        with guard("space meta"):
            async with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hgetall(self._keys.space(name).meta)
                rows = await pipe.execute()
        return [{k.decode(): v.decode() for k, v in row.items()} for row in rows]

    async def _now_ms(self) -> int:
        with guard("time"):
            seconds, micros = await awaited(self._client.time())
        return int(seconds) * 1000 + int(micros) // 1000


def kind_of(info: WorkerInfo) -> str:
    """``leader``, ``manager`` or ``worker``."""
    return info.role if info.role in ("leader", "manager") else info.kind


def worker_row(info: WorkerInfo, dead_s: float) -> dict[str, Json]:
    """A start that is not buried; one that nobody has buried yet but that is silent for too long is shown as dead."""
    return {
        "worker": info.start, "role": info.role, "host": info.host, "pid": info.pid,
        "state": "dead" if info.age_s > dead_s else info.state, "last_beat_s": round(info.age_s, 3),
        "loop_age_s": round(info.loop_age_s, 3), "in_hand": info.in_hand,
    }  # fmt: skip


def grave_row(grave: Grave, now_ms: int) -> dict[str, Json]:
    """A buried start, in the same form."""
    info: Mapping[str, Any] = grave.info
    return {
        "worker": grave.start, "role": grave.role, "host": info.get("host", ""), "pid": info.get("pid", 0),
        "state": "dead", "last_beat_s": round(max(0, now_ms - grave.last_beat_ms) / 1000, 3),
        "loop_age_s": info.get("loop_age_s", 0), "in_hand": info.get("in_hand", 0), "reason": grave.reason,
    }  # fmt: skip
