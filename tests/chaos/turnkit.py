"""What crash tests of an agent's turn share: a role that calls a model, two skills that count their runs, the model.

Guarantees: the model is a real HTTP server that decides by the history that it is sent alone, so that it may be asked
by any worker at any time; it refuses (loudly) a history that a strict endpoint would refuse.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.session import Order, start
from protocol.ports import Loaded
from protocol.record import Json, Record
from protocol.stores.client import awaited
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_conversations import RedisConversations
from protocol.stores.redis_wake import Wake
from protocol.stores.scripts import Scripts
from protocol.tasks import TaskState
from tests.chaos.fleet import ROOT, ChaosFleet
from tests.integration.endpoint import Answer, Endpoint, error, says, stream
from tests.support import wait_until

ROLE = "thinker"
SKILL = '''"""Appends a line to a file each time it really runs, then does as told."""
import time

def run(what, sleep=0):
    with open({log!r}, "a", encoding="utf-8") as file:
        file.write("{name}:" + what + "\\n")
    time.sleep(sleep)
    return "完成 " + what
'''
WANTED = (("pay", "甲"), ("look", "乙"), ("pay", "丙"))
"""The three calls of a turn: ``look`` is safe to repeat, ``pay`` is not."""
ONCE = {"pay:甲": 1, "look:乙": 1, "pay:丙": 1}


def add_thinker(fleet: ChaosFleet, url: str) -> None:
    """The role ``thinker`` with the skills ``look`` and ``pay``; its model is at ``url``."""
    for name in ("look", "pay"):
        folder = fleet.folder / "skills" / name
        folder.mkdir()
        (folder / "run.py").write_text(SKILL.format(log=str(fleet.folder / "ran"), name=name), encoding="utf-8")
        manifest = {
            "skill_key": name, "name": name, "description": f"{name}s", "category": "other",
            "entry_point": "run.py:run", "max_retries": 0, "idempotent": name == "look", "input_schema": {
                "type": "object", "required": ["what"],
                "properties": {"what": {"type": "string"}, "sleep": {"type": "number"}},
            },
        }  # fmt: skip
        (folder / "skill.json").write_text(json.dumps(manifest))
        (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {name}s\n---\nFor tests.\n")
    (fleet.folder / "roles" / f"{ROLE}.md").write_text(
        f"---\nid: {ROLE}\nname: 思考者\ndescription: thinks\nskills: [look, pay]\nconcurrency: 1\n---\n想。\n"
    )
    fleet.env |= {"OPENAI_BASE_URL": url, "OPENAI_MODEL": "m", "OPENAI_API_KEY": "k"}


def calls(*wanted: tuple[str, Mapping[str, Json]], first: int = 1) -> Answer:
    """An answer that asks for tools: (name, arguments) each; ids count from ``first``."""
    asked = [
        {"index": at, "id": f"c{at + first}", "function": {"name": name, "arguments": json.dumps(args)}}
        for at, (name, args) in enumerate(wanted)
    ]
    return stream({"choices": [{"index": 0, "delta": {"tool_calls": asked}, "finish_reason": "tool_calls"}]})


def asks(question: str) -> Answer:
    """An answer that puts a question to a person."""
    return calls(("ask_master", {"question": question}))


def strict(messages: Sequence[Mapping[str, Json]]) -> str:
    """Why a strict endpoint would refuse these messages; empty where it would not: each call has exactly one result,
    right behind the answer that made it, in order."""
    open_: list[str] = []
    for each in messages:
        if each["role"] == "tool":
            if not open_ or each.get("tool_call_id") != open_.pop(0):
                return f"a result for {each.get('tool_call_id')!r} that nobody waits for, or out of order"
            continue
        if open_:
            return f"no result for {open_}"
        open_ = [call["id"] for call in each.get("tool_calls") or ()]
    return f"no result for {open_}" if open_ else ""


class Scripted(Endpoint):
    """A strict endpoint. Subclasses give `reply`; ``held`` is what it holds back until `let_go` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: list[str] = []
        self._free = asyncio.Event()
        self._free.set()
        self.holding = 0

    def hold(self) -> None:
        """From now on no answer is given."""
        self._free.clear()

    def let_go(self) -> None:
        self._free.set()

    def choose(self, request: dict[str, Json]) -> Answer:
        why = strict(request["messages"])
        if why:
            self.refusals.append(why)
            return error(400, why)
        return self.reply(request["messages"])

    def reply(self, messages: Sequence[Mapping[str, Json]]) -> Answer:
        """Three calls, and a delivery once their results are there."""
        results = [each for each in messages if each["role"] == "tool"]
        return says("完成") if results else calls(*((name, {"what": what}) for name, what in WANTED))

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._free.is_set():
            self.holding += 1
            await self._free.wait()
            self.holding -= 1
        await super().__call__(reader, writer)


def told(messages: Sequence[Mapping[str, Json]]) -> str:
    """Everything that the messages from outside say, for a model that decides by words."""
    return "\n".join(str(each.get("content")) for each in messages if each["role"] in ("user", "tool"))


def thinking(*names: str, **more: Any) -> dict[str, Any]:
    """A plan: independent tasks of the role ``thinker``."""
    return {"tasks": [{"id": name, "role": ROLE, "prompt": f"任务 {name}", **more} for name in names]}


async def begin(fleet: ChaosFleet, *names: str) -> str:
    """Start a session of ``thinker`` tasks once the role is known; its id."""

    async def known() -> bool:
        return bool(await awaited(fleet.client.hexists(fleet.keys.roles, ROLE)))

    await wait_until(known, f"the role is published\n{fleet.logs()}", 60, every=0.05)
    return await start(
        Order(goal="想一想", plan=thinking(*names)),
        log=fleet.log,
        artifacts=Artifacts(fleet.client, fleet.keys),
        bell=Wake(fleet.client, fleet.keys),
        who="person_test",
    )


async def state(fleet: ChaosFleet, space: str, task: str) -> TaskState:
    """The task's state now; one of no state where nothing is on record."""
    return (await fleet.log.task_states(space)).get(task) or TaskState("", 0)


async def until_state(fleet: ChaosFleet, space: str, task: str, wanted: str, timeout: float = 30) -> TaskState:
    """Wait until a task is in a state."""

    async def there() -> TaskState | None:
        found = await state(fleet, space, task)
        return found if found.state == wanted else None

    try:
        found = await wait_until(there, f"{task} is {wanted}", timeout, every=0.02)
    except AssertionError as failed:
        raise AssertionError(f"{failed}\n{await fleet.story(space)}\n{fleet.logs()}") from None
    assert found is not None
    return found


async def conversation(fleet: ChaosFleet, space: str, agent: str) -> Loaded:
    """All that is saved of an agent."""
    return await RedisConversations(fleet.client, fleet.keys, Scripts(fleet.client)).read(space, agent)


def messages_of(loaded: Loaded) -> list[Mapping[str, Json]]:
    """The messages among the entries, in order."""
    return [entry.body["message"] for entry in loaded.entries if "message" in entry.body]


def deliveries(records: Sequence[tuple[str, Record]], task: str) -> list[Record]:
    return [record for _, record in records if record.event == "task_completed" and record.id == task]


async def command(fleet: ChaosFleet, *argv: str, expect: int = 0, crash_at: str = "") -> tuple[str, str]:
    """Run one command line as a process of its own; (stdout, stderr). ``crash_at``: it must die there."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "coordinator.cli", *argv,
        env=fleet.env | ({"ROLECALL_CRASH_AT": crash_at} if crash_at else {}),
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode == (-9 if crash_at else expect), f"{argv}: {child.returncode}\n{out.decode()}{err.decode()}"
    return out.decode(), err.decode()


def ran(fleet: ChaosFleet) -> dict[str, int]:
    """How often each tool call really ran."""
    return dict(fleet.runs(Path(fleet.folder / "ran")))
