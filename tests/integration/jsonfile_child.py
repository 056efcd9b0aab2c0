"""A real process at a state file: ``python -m tests.integration.jsonfile_child MODE FILE NAME [N]``.

Modes: ``append`` N records one by one, trying again where the file is held too long; ``hold`` the lock in the middle
of an append (says ``held``; it is to be killed or stopped); ``hold-write`` the same, but a line on stdin lets it finish
its write.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from protocol.errors import StoreUnreachable
from protocol.record import Record
from protocol.stores.jsonfile import JsonFile
from protocol.stores.ledger import Ledger

WAIT_S = 0.5


def info(name: str) -> Record:
    return Record(
        id=name, who="master_a", time=1, event="info", what="一条记录", detail={"text": "内容"},
        trace={"parent_id": None, "session_id": "S"},  # type: ignore[arg-type]
    )  # fmt: skip


async def append(log: JsonFile, name: str, count: int) -> None:
    for n in range(count):
        while True:
            try:
                outcome = (await log.append("S", [info(f"INFO_{name}_{n}")]))[0]
                say(f"{outcome.outcome} {outcome.entry}")
                break
            except StoreUnreachable as held:
                say(f"waited {held.message}")
    say("done")


async def hold(log: JsonFile, name: str, *, write: bool) -> None:
    def work(ledger: Ledger) -> tuple[Any, bool]:
        out = ledger.admit([info(f"INFO_{name}")], now_ms=log.now())
        say("held")
        sys.stdin.readline()
        return out, write

    await log.change("S", work)
    say("done")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    mode, path, name, *rest = sys.argv[1:]
    log = JsonFile(Path(path), wait_s=WAIT_S)
    if mode == "append":
        asyncio.run(append(log, name, int(rest[0])))
    else:
        asyncio.run(hold(log, name, write=mode == "hold-write"))


if __name__ == "__main__":
    main()
