"""``python -m tests.chaos.crash --rounds N``: every crash scenario N times, against one real server.

Prints a line a round; the exit code is 1 where any failed. Two scenarios run at once, each under a prefix and in a
folder of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from protocol.kit.embedded import find_binary, start_server
from tests.chaos.fleet import ChaosFleet
from tests.chaos.scenarios import SCENARIOS
from tests.conftest import fast_environment
from tests.support import clean_environment


async def once(point: str, url: str, place: Path) -> None:
    """One round of one point. Raises AssertionError where something did not hold."""
    folder = place / secrets.token_hex(4)
    folder.mkdir()
    env = clean_environment({}, fast_environment(url, f"rc{secrets.token_hex(4)}:", folder).items())
    fleet = ChaosFleet.make(folder / "fleet", env)
    try:
        await SCENARIOS[point](fleet, point)
    finally:
        await fleet.stop()


async def run(rounds: int, at_once: int, points: list[str]) -> int:
    failed: Counter[str] = Counter()
    done: Counter[str] = Counter()
    gate = asyncio.Semaphore(at_once)

    async def guarded(point: str, url: str, place: Path) -> None:
        async with gate:
            began = time.monotonic()
            try:
                await once(point, url, place)
            except AssertionError as error:
                failed[point] += 1
                print(f"FAILED {point}: {error}", file=sys.stderr)
            done[point] += 1
            print(f"{point} {done[point]}/{rounds} {time.monotonic() - began:.1f} s", flush=True)

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "server").mkdir()
        server = start_server(find_binary(), place / "server", aof=False, password=secrets.token_hex(8))
        try:
            await asyncio.gather(*(guarded(point, server.url, place) for _ in range(rounds) for point in points))
        finally:
            server.stop()
    passed = sum(done.values()) - sum(failed.values())
    print(f"{passed} passed, {sum(failed.values())} failed")
    return 1 if failed else 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Run every crash scenario many times.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("points", nargs="*", default=list(SCENARIOS))
    args = parser.parse_args()
    raise SystemExit(asyncio.run(run(args.rounds, args.at_once, args.points or list(SCENARIOS))))


if __name__ == "__main__":
    main()
