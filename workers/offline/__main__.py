"""``python -m workers.offline [--port N] [--delay-s S] [--piece-s S] [--parent PID]``: prints the url, then serves.

Guarantees: ends with the process named by ``--parent`` (checked every second), on SIGTERM and on Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from workers.offline.server import serve


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m workers.offline", description="a stand-in for a model endpoint")
    parser.add_argument("--port", type=int, default=0, help="port on loopback; 0 is any free one")
    parser.add_argument("--delay-s", type=float, default=0.0, help="seconds before each answer, as a slow model takes")
    parser.add_argument("--piece-s", type=float, default=0.0, help="seconds between the pieces of an answer")
    parser.add_argument("--parent", type=int, default=None, help="end when this is no longer the parent process")
    given = parser.parse_args()

    def alive() -> bool:
        return given.parent is None or os.getppid() == given.parent

    try:
        asyncio.run(serve(given.port, delay_s=given.delay_s, piece_s=given.piece_s, alive=alive))
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        sys.stderr.write(f"the offline stand-in can't listen on port {given.port}: {error.strerror}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
