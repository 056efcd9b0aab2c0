"""Small costs: the four gates on a clean record, and the lost-worker sweep over 10,000 live starts.

``python -m benchmarks.small [--json]``. Gates: microseconds of CPU for one clean record of about 300 bytes, as text and
as a value. Sweep: milliseconds inside the server for one sweep that finds 10 dead among 10,000 (INFO commandstats, so
the client's side does not count).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import redis

from protocol.gates import pass_gates
from protocol.keys import Keys
from protocol.kit.embedded import find_binary, start_server
from protocol.stores.client import connect
from protocol.stores.redis_workers import Workers

TIMES: Final = 5_000
LIVE: Final = 10_000
DEAD: Final = 10
RECORD: Final = {
    "id": "TASK_001", "who": "master_docs_01", "time": 1719600000, "event": "task_completed", "what": "汇总完成",
    "detail": {"result": {"text": "三条结论：" + "x" * 120, "n": 3, "ok": True}, "attempt": 1},
    "trace": {"parent_id": None, "session_id": "sess_demo"},
}  # fmt: skip


def gates() -> dict[str, float]:
    """Microseconds of CPU a record."""
    text = json.dumps(RECORD, ensure_ascii=False)

    def cost(raw: Any) -> float:
        began = time.process_time()
        for _ in range(TIMES):
            pass_gates(raw, now=1719600000, session="sess_demo", new_id=lambda prefix: prefix + "x")
        return (time.process_time() - began) / TIMES * 1e6

    cost(text)
    return {"text_us": round(cost(text), 1), "value_us": round(cost(RECORD), 1), "bytes": len(text.encode())}


async def sweep() -> dict[str, float]:
    """Milliseconds on the server."""
    with tempfile.TemporaryDirectory() as place:
        server = start_server(find_binary(), Path(place), aof=False, password="bench")
        try:
            client, keys = connect(server.url), Keys()
            workers = Workers(client, keys)
            sync = redis.Redis.from_url(server.url)
            now = int(sync.time()[0]) * 1000  # type: ignore[index]
            pipe = sync.pipeline(transaction=False)
            for n in range(LIVE + DEAD):
                start = f"reviewer@host:{n}:abc"
                pipe.zadd(keys.workers, {start: now - (60_000 if n < DEAD else 0)})
                pipe.hset(keys.workers_info, start, json.dumps({"role": "reviewer", "pid": n, "loop_age_s": 0.1}))
            pipe.execute()
            run_id = await workers.run_id()
            await workers.sweep(dead_ms=15_000, run_id=run_id)  # the first one only begins to watch
            sync.hset(keys.watch, "from", str(now - 60_000))
            sync.config_resetstat()
            buried = await workers.sweep(dead_ms=15_000, run_id=run_id)
            stats: Any = sync.info("commandstats")
            await client.aclose()
        finally:
            server.stop()
    if len(buried) != DEAD:
        raise RuntimeError(f"the sweep buried {len(buried)} of {DEAD}")
    return {"server_ms": round(stats["cmdstat_evalsha"]["usec"] / 1000, 3), "live": LIVE, "dead": DEAD}


def measure() -> dict[str, dict[str, float]]:
    return {"gates": gates(), "sweep": asyncio.run(sweep())}


def table(result: dict[str, dict[str, float]]) -> str:
    g, s = result["gates"], result["sweep"]
    return (
        f"four gates, clean record of {g['bytes']:.0f} bytes:"
        f" {g['text_us']:.1f} us as text, {g['value_us']:.1f} us as a value\n"
        f"sweep, {s['dead']:.0f} dead among {s['live']:,.0f} live: {s['server_ms']:.2f} ms on the server"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Gates and sweep.")
    parser.add_argument("--json", action="store_true")
    result = measure()
    print(json.dumps(result, indent=2) if parser.parse_args().json else table(result))


if __name__ == "__main__":
    main()
