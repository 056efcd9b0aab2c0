"""What a since-read costs in a short and in a long log: 10 new records, with and without filters.

``python -m benchmarks.since [--records 1000000] [--small 1000] [--rounds 30] [--json]``. Both logs lie on one server
and their reads take turns; the figures are medians in ms of one read through the client. ``ok``: the long log within
1.5 times the short one. The logs are filled by a script that runs the append's own writing (entry, indexes, counters).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from protocol.keys import Keys
from protocol.kit.embedded import find_binary, start_server
from protocol.record import Record
from protocol.stores.client import Client, awaited, connect
from protocol.stores.redis_log import RedisLog
from protocol.stores.scripts import source
from protocol.stores.wire import space_keys

GOAL: Final = 1.5
CHUNK: Final = 2_000
NEW: Final = 10
NAMES: Final = 40
BATCH: Final = 20
READER: Final = "verifier_new"
FILL: Final = """
local keys = space_keys()
local log = open_log(keys)
local events = {'info', 'info', 'info', 'heartbeat', 'checkpoint', 'info', 'summary', 'heartbeat', 'info', 'error'}
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local session = 's' .. (i % 5)
  write(keys, log, 'INFO_' .. i, 'master_' .. (i % 40), '1719600000', events[i % 10 + 1], 'an older record', ARGV[3],
        '{"parent_id":null,"session_id":"' .. session .. '"}', session)
end
close_log(keys, log)
return log.n
"""
QUERIES: Final[dict[str, dict[str, Any]]] = {
    "no filter": {},
    "who": {"who": READER},
    "who, a prefix": {"who": "verifier_*"},
    "event": {"event": "protocol_violation"},
    "session": {"session": "s_new"},
    "who and event": {"who": READER, "event": "protocol_violation"},
    "who, from the start": {"who": READER, "since": 0},
    "a common event": {"event": "info", "common": True},
    "a common who": {"who": "master_3", "common": True},
    "since a time": {"who": READER, "moment": True},
}


async def fill(client: Client, keys: Keys, space: str, records: int, say: Callable[[str], None]) -> str:
    """A log of ``records`` older records and 10 new ones; the cursor between them."""
    log = RedisLog(client, keys, records_max=records * 2)
    await log.create(space, meta={"kind": "hand"})
    script = source("law") + FILL
    began = time.perf_counter()
    for at in range(1, records + 1, CHUNK):
        last = min(at + CHUNK - 1, records)
        await awaited(
            client.eval(script, 9, *space_keys(keys.space(space)), at, last, json.dumps({"text": "x" * 60}))  # type: ignore[arg-type]
        )
    say(f"{space}: {records:,} records in {time.perf_counter() - began:.0f} s")
    cursor = (await client.xrevrange(keys.space(space).log, count=1))[0][0].decode()
    new = [
        Record(
            id=f"NEW_{n}", who=READER, time=1719600001, event="protocol_violation", what="new",
            detail={"reason": "gate_1", "raw": ""},
            trace={"parent_id": None, "session_id": "s_new"},  # type: ignore[arg-type]
        )
        for n in range(NEW)
    ]  # fmt: skip
    common = [
        Record(
            id=f"NEWER_{n}", who="master_3", time=1719600001, event="info", what="new", detail={},
            trace={"parent_id": None, "session_id": "s1"},  # type: ignore[arg-type]
        )
        for n in range(NEW)
    ]  # fmt: skip
    await log.append(space, new)
    between = (await client.xrevrange(keys.space(space).log, count=1))[0][0].decode()
    await log.append(space, common)
    return f"{cursor} {between}"


async def measure(records: int, small: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Fill both logs, then read in turns."""
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(find_binary(), Path(folder), aof=False, password="bench", die_with_parent=True)
        client = connect(server.url)
        try:
            keys = Keys()
            log = RedisLog(client, keys)
            sizes = {"short": small, "long": records}
            cursors = {name: (await fill(client, keys, name, n, say)).split() for name, n in sizes.items()}
            rows = [
                {"read": query, **await _compare(log, cursors, dict(how), rounds)} for query, how in QUERIES.items()
            ]
            info: Any = await client.info("memory")
            return {
                "records": {**sizes}, "goal": GOAL, "reads": rows, "ok": all(row["ok"] for row in rows),
                "server_mb": round(info["used_memory"] / 1e6),
            }  # fmt: skip
        finally:
            await client.aclose()
            server.stop()


async def _compare(log: RedisLog, cursors: dict[str, list[str]], how: dict[str, Any], rounds: int) -> dict[str, Any]:
    common, moment = how.pop("common", False), how.pop("moment", False)
    times: dict[str, list[float]] = {name: [] for name in cursors}
    for _ in range(rounds):
        for name, (first, between) in cursors.items():
            since: str | int = how.get("since", between if common else first)
            if moment:
                since = int(first.split("-")[0]) // 1000
            began = time.perf_counter()
            pages = [await log.read(name, **{**how, "since": since}, limit=20) for _ in range(BATCH)]
            times[name].append((time.perf_counter() - began) * 1000 / BATCH)
            found = len(pages[-1].records)
            assert found == (20 if not how else NEW), (name, how, found)
    short, long = (statistics.median(times[name]) for name in ("short", "long"))
    return {"short_ms": round(short, 3), "long_ms": round(long, 3), "ratio": round(long / short, 2),
            "ok": long / short <= GOAL}  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    sizes = result["records"]
    lines = [f"| read of {NEW} new records | {sizes['short']:,} records | {sizes['long']:,} records | ratio |",
             "| --- | --- | --- | --- |"]  # fmt: skip
    lines += [f"| {r['read']} | {r['short_ms']} ms | {r['long_ms']} ms | {r['ratio']} |" for r in result["reads"]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.since", description="Since-reads in a short and a long log.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--small", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args()
    result = asyncio.run(
        measure(args.records, args.small, args.rounds, lambda line: print(line, file=sys.stderr, flush=True))
    )
    print(json.dumps(result, indent=2) if args.json else table(result))


if __name__ == "__main__":
    main()
