"""The worker processes that the drain benchmark measures, each started by name as a process of its own.

``arq benchmarks.noop_worker.ours`` is our worker, whole path, with a runner that does nothing; ``arq
benchmarks.noop_worker.arq_peer`` is plain arq with a job that does nothing; ``python -m benchmarks.noop_worker`` is the
bare limit: redis-py in batches of 100, no record, no state, no gate.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from protocol.ports import Delivered, Dispatch, Outcome, Runner, TurnFence

BATCH = 100
LOG = os.open(os.environ.get("BENCH_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def body(name: str) -> None:
    """What every variant's job does: two lines into an event log, one when it starts and one when it ends."""
    os.write(LOG, b"S %s\n" % name.encode())
    os.write(LOG, b"E %s\n" % name.encode())


async def noop(dispatch: Dispatch, fence: TurnFence) -> Outcome:
    """A task that is done at once."""
    body(dispatch.task)
    return Delivered({"result": {"id": dispatch.task, "ok": True}})


def make_noop(parts: object) -> Runner:
    return noop


async def arq_job(ctx: dict[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
    body(payload["id"])
    return {"id": payload["id"], "ok": True}


def __getattr__(name: str) -> Any:
    if name == "ours":
        from workers.host import arq_settings

        return arq_settings("noop", runner=make_noop)
    if name == "arq_peer":
        from arq.connections import RedisSettings
        from arq.worker import func

        return {
            "functions": [func(arq_job, name="job")], "max_jobs": BATCH,
            "redis_settings": RedisSettings.from_dsn(os.environ["REDIS_URL"]),
        }  # fmt: skip
    raise AttributeError(name)


async def bare() -> None:
    """XREADGROUP 100 -> XADD results and XACK in one pipeline."""
    import redis.asyncio as aredis

    r = aredis.Redis.from_url(os.environ["REDIS_URL"])

    async def job(payload: dict[str, Any]) -> dict[str, Any]:
        body(payload["id"])
        return {"id": payload["id"], "ok": True}

    while True:
        got = await r.xreadgroup("g", "c1", {"bare:jobs": ">"}, count=BATCH, block=2000)
        for _, messages in got or ():
            done = await asyncio.gather(*(job(json.loads(fields[b"d"])) for _, fields in messages))
            async with r.pipeline(transaction=False) as pipe:
                for result in done:
                    pipe.xadd("bare:results", {"d": json.dumps(result)})
                pipe.xack("bare:jobs", "g", *(entry for entry, _ in messages))
                await pipe.execute()


if __name__ == "__main__":
    asyncio.run(bare())
