"""A real process is killed with SIGKILL at each point of a turn with three tool calls; another one takes the turn over.

What the tools did is counted outside both processes: nothing finished runs twice, nothing is lost, and at most one
model call more is made.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from protocol.keys import Keys
from protocol.record import Json
from protocol.stores.client import awaited, connect
from protocol.tasks import TaskState, pack
from tests.integration.endpoint import Answer, Endpoint, says, serving, stream

WANTED = (("c1", "pay", "甲"), ("c2", "look", "乙"), ("c3", "pay", "丙"))
LOST_RESULT = {"agent.after_tool_intent#1": "pay:甲", "agent.after_tool#1": "pay:甲", "agent.after_tool#3": "pay:丙"}
"""The points after which nobody can know whether a tool that must not be repeated has run."""
POINTS = (
    "agent.before_model#1", "agent.after_model_intent#1", "worker.after_model_call#1", "agent.after_model_saved#1",
    "agent.before_tool#1", "agent.after_tool_intent#1", "agent.after_tool#1", "agent.after_tool_saved#1",
    "agent.after_tool_intent#2", "agent.after_tool#2", "agent.after_tool#3", "agent.after_tool_saved#3",
    "agent.before_model#2", "worker.after_model_call#2", "agent.after_model_saved#2",
)  # fmt: skip


class ByHistory(Endpoint):
    """Asks for the three calls until it has their results, then delivers."""

    def choose(self, request: dict[str, Json]) -> Answer:
        results = [each["tool_call_id"] for each in request["messages"] if each["role"] == "tool"]
        if results:
            assert results == ["c1", "c2", "c3"], "each call has one result, in order"
            return says("完成")
        calls = [
            {"index": at, "id": call, "function": {"name": name, "arguments": json.dumps({"what": what})}}
            for at, (call, name, what) in enumerate(WANTED)
        ]
        return stream({"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": "tool_calls"}]})


class Turns:
    """Attempts of one task, each a process of its own."""

    def __init__(self, redis_url: str, prefix: str, env: dict[str, str], url: str, runs: Path) -> None:
        self._redis_url = redis_url
        self._prefix = prefix
        self._env = env
        self._url = url
        self.runs = runs
        self.attempt = 0

    async def run(self, crash_at: str = "", **detail: Json) -> Json:
        """The next attempt; None where it was killed."""
        self.attempt += 1
        owner = f"reviewer@h:{self.attempt}:a"
        client = connect(self._redis_url)
        state = pack(TaskState("processing", self.attempt, owner, "reviewer", "reviewer_1"))
        await awaited(client.hset(Keys(self._prefix).space("s1").tasks, "T1", state))
        await client.aclose()
        given = {
            "redis": self._redis_url, "prefix": self._prefix, "url": self._url, "runs": str(self.runs),
            "attempt": self.attempt, "owner": owner, "detail": {"prompt": "审阅", **detail},
        }  # fmt: skip
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.integration.turn_child", json.dumps(given),
            env=self._env | ({"ROLECALL_CRASH_AT": crash_at} if crash_at else {}),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await child.communicate()
        if crash_at:
            assert child.returncode == -signal.SIGKILL, f"{crash_at} was never reached"
            return None
        assert child.returncode == 0
        return json.loads(out)


@pytest.mark.chaos
@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_a_point_of_the_turn(
    point: str, redis_url: str, prefix: str, fleet_env: dict[str, str], tmp_path: Path
) -> None:
    async with serving(endpoint=ByHistory()) as endpoint:
        turns = Turns(redis_url, prefix, fleet_env, endpoint.url, tmp_path / "runs")
        await turns.run(point)
        outcome = await turns.run()
        if point in LOST_RESULT:
            assert outcome["about"] == "tool_in_doubt"
            outcome = await turns.run(answer={"question": outcome["question"], "text": "已确认"})
        assert outcome == {"kind": "Delivered", "result": "完成"}
    lines = turns.runs.read_text("utf-8").splitlines()
    expected = {"pay:甲": 1, "look:乙": 1, "pay:丙": 1}
    if point == "agent.after_tool_intent#1":
        expected["pay:甲"] = 0  # it had not run, and a person said that it is settled
    if point == "agent.after_tool#2":
        expected["look:乙"] = 2  # its tool says that it may
    assert {name: lines.count(name) for name in expected} == expected
    assert len(endpoint.requests) <= 3, "one model call more than without the crash, at most"
