"""One attempt of a turn in a process of its own, to be killed: ``python -m tests.integration.turn_child JSON``.

The tools append a line to a file for each run: what really happened, whatever the process remembers.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from protocol.keys import Keys
from protocol.kit.modellist import ModelEntry
from protocol.kit.rolefiles import RoleFile
from protocol.ports import Delivered, Dispatch, Parked
from protocol.record import Json
from protocol.stores.client import connect
from protocol.stores.redis_conversations import RedisConversations
from protocol.stores.scripts import Scripts
from workers.agent import run_agent
from workers.model import ModelClient
from workers.tools import Tool, ToolResult


class FileTools:
    """``look`` is safe to repeat, ``pay`` is not."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def list(self) -> Sequence[Tool]:
        return (Tool("look", "looks", idempotent=True), Tool("pay", "pays"))

    async def call(self, name: str, args: Mapping[str, Json]) -> ToolResult:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{name}:{args['what']}\n")
        return ToolResult(True, "好")


class Open:
    async def check(self) -> None:
        return None


async def main(given: dict[str, Json]) -> None:
    client = connect(given["redis"])
    dispatch = Dispatch(
        "s1", "T1", given["attempt"], "reviewer", "reviewer_1", "s1", given["owner"], 0, given["detail"]
    )
    model = ModelClient(ModelEntry("main", "m", given["url"]), loopback_only=True)
    outcome = await run_agent(
        dispatch,
        Open(),
        role=RoleFile(id="reviewer", name="审阅者", description="d"),
        conversation=RedisConversations(client, Keys(given["prefix"]), Scripts(client)).open(dispatch),
        model=model,
        tools=FileTools(Path(given["runs"])),
    )
    await model.aclose()
    await client.aclose()
    shown: dict[str, Json] = {"kind": type(outcome).__name__}
    if isinstance(outcome, Delivered):
        shown["result"] = outcome.detail["result"]
    if isinstance(outcome, Parked):
        shown |= {"question": outcome.question, "about": outcome.detail["about"]}
    sys.stdout.write(json.dumps(shown))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
