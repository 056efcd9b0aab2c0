"""The short benchmark: ``make bench`` or ``python -m benchmarks [--json]``.

Drain and round trip beside arq and the bare batched limit, the small costs, and the merge. One run, one machine: the
ratios count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from typing import Any

from benchmarks import drain, merge, small


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description="The short benchmark: ratios of one run.")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--tasks", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 2)},
        "drain": asyncio.run(drain.measure(args.tasks, args.rounds, 200, lambda line: print(line, file=sys.stderr))),
        "small": small.measure(),
        "merge": merge.run(10_000, ["overlaps"]),
    }
    if args.json:
        print(json.dumps(result, indent=2))
        return
    print(drain.table(result["drain"]))
    print(small.table(result["small"]))
    for row in result["merge"]:
        print("merge: " + ", ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
