"""No-op tasks through one worker process, whole path: drain rate, round trip, CPU and memory, beside arq and the bare
batched limit in the same run.

``python -m benchmarks.drain [--json] [--tasks 5000] [--rounds 3]``. Ratios of one run on one machine count, absolute
figures do not travel. Figures: tasks/s from the first start to the last acknowledgement (median of the rounds, which
take turns); round trip at low load in ms (dispatch written -> delivery read); worker CPU (the beat's process included)
and server CPU in us a task; bytes left per task against a bare stream of the same entries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import redis

from benchmarks.noop_worker import BATCH
from protocol.keys import Keys, SpaceKeys
from protocol.kit.embedded import find_binary, start_server
from protocol.record import Record
from protocol.stores.client import connect
from protocol.stores.redis_dispatch import Ref, RoleStreams
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_wake import Wake

HERE = Path(__file__).resolve().parent.parent
ROLE = "---\nid: noop\nname: noop\ndescription: does nothing\nconcurrency: 200\n---\nNothing.\n"
BRIEF = "x" * 120
CAP_S = 60.0


def payload(name: str) -> dict[str, Any]:
    """About 300 bytes of JSON, a dispatch as a user would send it."""
    return {
        "id": name,
        "role": "noop",
        "kind": "dispatch",
        "since": 1234567,
        "repo": "git@example.invalid:team/project.git",
        "branch": f"feature/agent-{name}",
        "brief": BRIEF,
        "attempt": 1,
    }


def assigned(name: str, session: str) -> Record:
    detail = {"role": "noop", "attempt": 1, "agent": f"noop_{name}", "input": payload(name), "prefix": name}
    return Record(
        id=name,
        who="leader",
        time=int(time.time()),
        event="task_assigned",
        what=f"{name} goes to noop_{name}",
        detail=detail,
        trace={"parent_id": session, "session_id": session},  # type: ignore[arg-type]
    )


class Bench:
    """One server for the whole run; each variant starts from an empty one."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.sync = redis.Redis.from_url(url)
        (folder / "roles").mkdir()
        (folder / "roles" / "noop.md").write_text(ROLE)
        self.env = {
            **os.environ,
            "REDIS_URL": url,
            "ROLECALL_ROLES": str(folder / "roles"),
            "ROLECALL_DATA": str(folder / "data"),
            "PYTHONPATH": str(HERE),
            "BENCH_LOG": str(folder / "events.log"),
        }
        self.errors = (folder / "workers.log").open("wb")

    def spawn(self, *argv: str) -> psutil.Popen:
        return psutil.Popen(
            [sys.executable, "-m", *argv], env=self.env, cwd=HERE, stdout=self.errors, stderr=self.errors
        )

    def server_cpu(self) -> float:
        info: Any = self.sync.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    async def ours(self, tasks: int, sessions: int) -> dict[str, float]:
        """Fill the sessions, then let one worker drain them."""
        self.sync.flushall()
        client, keys = connect(self.url), Keys()
        log, streams = RedisLog(client, keys), RoleStreams(client, keys)
        names = [f"conv_{n:03d}" for n in range(sessions)]
        for name in names:
            await log.create(name, meta={"kind": "session", "policy": "reassign"})
        per = tasks // sessions
        for name in names:
            for k in range(0, per, BATCH):
                batch = [assigned(f"task_{i:05d}", name) for i in range(k, min(k + BATCH, per))]
                await log.append(name, batch)
                await streams.enqueue([Ref("noop", name, r.id, 1) for r in batch])
        done = await self._drain(self.spawn("arq", "benchmarks.noop_worker.ours"), keys.role("noop"), tasks)
        done["bytes"] = sum(self._usage(key) for name in names for key in self._keys_of(keys.space(name))) / tasks
        if sessions == 1:
            done["bytes_bare"] = self._bare_copy(keys.space(names[0]).log) / tasks
        await client.aclose()
        return done

    def _bare_copy(self, log: str) -> int:
        """Bytes of a bare stream with the very same entries."""
        pipe = self.sync.pipeline(transaction=False)
        for entry, fields in self.sync.xrange(log):  # type: ignore[union-attr]
            pipe.xadd("bare:copy", fields, id=entry)
        pipe.execute()
        return self._usage("bare:copy")

    def _usage(self, key: str) -> int:
        """Bytes of one key, all of it counted."""
        used: Any = self.sync.memory_usage(key, samples=0)
        return int(used or 0)

    def _keys_of(self, space: SpaceKeys) -> list[str]:
        """Every key of a space (a scan: this is a benchmark's own server)."""
        return [key.decode() for key in self.sync.scan_iter(match=f"{space.base.replace('[', '?')}:*", count=1000)]

    async def _drain(
        self, worker: psutil.Popen, queue: str, tasks: int, left: Callable[[], int] | None = None
    ) -> dict[str, float]:
        left = left or (lambda: int(self.sync.xlen(queue)))  # type: ignore[arg-type]
        until = time.monotonic() + CAP_S
        began = cpu = server = now = 0.0
        started_with = tasks
        while time.monotonic() < until:
            rest = left()
            now = time.monotonic()
            if not began and rest < tasks:
                began, cpu, server, started_with = now, tree_cpu(worker), self.server_cpu(), rest
            if rest == 0:
                break
            await asyncio.sleep(0.004)
        else:
            raise RuntimeError(f"not drained in {CAP_S} s, see {self.errors.name}")
        n = max(1, started_with)
        out = {
            "rate": n / max(now - began, 1e-3),
            "worker_us": (tree_cpu(worker) - cpu) / n * 1e6,
            "server_us": (self.server_cpu() - server) / n * 1e6,
        }
        stop(worker)
        return out

    async def bare(self, tasks: int) -> dict[str, float]:
        self.sync.flushall()
        self.sync.xgroup_create("bare:jobs", "g", "0", mkstream=True)
        pipe = self.sync.pipeline(transaction=False)
        for i in range(tasks):
            pipe.xadd("bare:jobs", {"d": json.dumps(payload(f"j{i}"))})
        pipe.execute()
        worker = self.spawn("benchmarks.noop_worker")
        return await self._drain(worker, "", tasks, lambda: tasks - int(self.sync.xlen("bare:results")))  # type: ignore[arg-type]

    async def arq(self, tasks: int) -> dict[str, float]:
        from arq import create_pool
        from arq.connections import RedisSettings

        self.sync.flushall()
        pool = await create_pool(RedisSettings.from_dsn(self.url))
        for k in range(0, tasks, BATCH):
            await asyncio.gather(*(pool.enqueue_job("job", payload(f"j{i}")) for i in range(k, min(k + BATCH, tasks))))
        await pool.aclose()
        worker = self.spawn("arq", "benchmarks.noop_worker.arq_peer")
        return await self._drain(worker, "", tasks, lambda: int(self.sync.zcard("arq:queue")))  # type: ignore[arg-type]

    async def round_trips(self, times: int) -> dict[str, float]:
        """Dispatch -> delivery seen, one at a time, on an idle worker; and what the worker costs when idle."""
        self.sync.flushall()
        client, keys = connect(self.url), Keys()
        reader = connect(self.url, pool=2)
        log, streams, wake = RedisLog(client, keys), RoleStreams(client, keys), Wake(client, keys, reader=reader)
        await log.create("conv_000", meta={"kind": "session", "policy": "reassign"})
        worker = self.spawn("arq", "benchmarks.noop_worker.ours")
        while not self.sync.zcard(keys.workers):
            await asyncio.sleep(0.05)
        took: list[float] = []
        last = "0-0"
        cursor = await wake.now()
        for i in range(times + 5):
            name = f"task_{i:05d}"
            began = time.perf_counter()
            await log.append("conv_000", [assigned(name, "conv_000")])
            await streams.enqueue([Ref("noop", "conv_000", name, 1)])
            cursor, _ = await wake.listen(cursor, 2_000)
            page = await log.tail("conv_000", last, 10)
            assert page[-1][1].event == "task_completed", page[-1][1]
            took.append((time.perf_counter() - began) * 1000)
            last = page[-1][0]
        await asyncio.sleep(1.0)
        cpu = tree_cpu(worker)
        await asyncio.sleep(5.0)
        idle = (tree_cpu(worker) - cpu) / 5.0
        stop(worker)
        await client.aclose()
        await reader.aclose()
        some = sorted(took[5:])
        return {"p50_ms": some[len(some) // 2], "p99_ms": some[int(len(some) * 0.99)], "idle_cpu_share": idle}

    async def bare_round_trips(self, times: int) -> dict[str, float]:
        """The bare round trip: XADD -> a worker -> XADD of the result, read back."""
        self.sync.flushall()
        self.sync.xgroup_create("bare:jobs", "g", "0", mkstream=True)
        worker = self.spawn("benchmarks.noop_worker")
        client = connect(self.url, pool=2)
        took: list[float] = []
        last: Any = "0-0"
        for i in range(times + 5):
            began = time.perf_counter()
            await client.xadd("bare:jobs", {"d": json.dumps(payload(f"j{i}"))})
            got = await client.xread({"bare:results": last}, count=1, block=5_000)
            last = got[0][1][0][0]
            took.append((time.perf_counter() - began) * 1000)
        stop(worker)
        await client.aclose()
        some = sorted(took[5:])
        return {"p50_ms": some[len(some) // 2], "p99_ms": some[int(len(some) * 0.99)]}


def tree_cpu(process: psutil.Popen) -> float:
    """CPU seconds of a process and its children so far."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
            total += times.user + times.system
        except psutil.NoSuchProcess:
            pass
    return total


def stop(process: psutil.Popen) -> None:
    process.terminate()
    process.wait(20)


def median(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(r[key] for r in rounds), 2) for key in rounds[0]}


async def measure(tasks: int, rounds: int, round_trips: int, say: Callable[[str], None]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "server").mkdir()
        server = start_server(find_binary(), folder / "server", aof=False, password="bench")
        try:
            bench = Bench(server.url, folder)
            variants: dict[str, Callable[[], Awaitable[dict[str, float]]]] = {
                "bare batched": lambda: bench.bare(tasks),
                "arq": lambda: bench.arq(min(tasks, 2_000)),
                "one session": lambda: bench.ours(tasks, 1),
                "100 sessions": lambda: bench.ours(tasks, 100),
            }
            found: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
            for n in range(rounds):
                for name, run in variants.items():
                    found[name].append(await run())
                    say(f"round {n + 1}: {name}: {found[name][-1]['rate']:,.0f}/s")
            result: dict[str, Any] = {name: median(some) for name, some in found.items()}
            result["round trip"] = await bench.round_trips(round_trips)
            result["bare round trip"] = await bench.bare_round_trips(round_trips)
        finally:
            server.stop()
    one, many, bare, arq = (result[k] for k in ("one session", "100 sessions", "bare batched", "arq"))
    result["ratios"] = {
        "one session / arq": round(one["rate"] / arq["rate"], 2),
        "100 sessions / arq": round(many["rate"] / arq["rate"], 2),
        "one session / bare": round(one["rate"] / bare["rate"], 2),
        "100 sessions / bare": round(many["rate"] / bare["rate"], 2),
        "bytes / bare stream": round(one["bytes"] / one["bytes_bare"], 2),
        "round trip / bare": round(result["round trip"]["p50_ms"] / result["bare round trip"]["p50_ms"], 2),
    }
    return result


def table(result: dict[str, Any]) -> str:
    rows = ["| variant | tasks/s | worker CPU us/task | server CPU us/task | bytes left/task |"]
    rows.append("|---|---|---|---|---|")
    for name in ("bare batched", "arq", "one session", "100 sessions"):
        r = result[name]
        figures = (r["rate"], r["worker_us"], r["server_us"], r.get("bytes", 0))
        rows.append(f"| {name} | " + " | ".join(f"{figure:,.0f}" for figure in figures) + " |")
    rows.append("")
    rows += [f"{name}: {value}" for name, value in result["ratios"].items()]
    trip = result["round trip"]
    idle = f"idle worker {trip['idle_cpu_share']:.2%} of a core"
    rows.append(f"round trip p50 {trip['p50_ms']:.2f} ms, p99 {trip['p99_ms']:.2f} ms; {idle}")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--tasks", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--round-trips", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = asyncio.run(measure(args.tasks, args.rounds, args.round_trips, lambda line: print(line, file=sys.stderr)))
    print(json.dumps(result, indent=2) if args.json else table(result))


if __name__ == "__main__":
    main()
