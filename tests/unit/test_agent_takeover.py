"""A turn that is killed anywhere is taken over by the next attempt: nothing finished runs again, nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from protocol.ports import Delivered, Parked
from protocol.record import Json
from tests.unit.agentkit import CountedTools, Killed, ScriptedModel, Store, calls, run, says
from workers.tools import ToolResult

THREE = calls(("c1", "pay", {"what": "甲"}), ("c2", "look", {"what": "乙"}), ("c3", "pay", {"what": "丙"}))
WRITES = 12
"""begin, model, reply, (call, result) three times, model, reply, end."""


def _model(asked_before: int) -> ScriptedModel:
    return ScriptedModel([THREE, says("完成")][asked_before:])


@pytest.mark.parametrize("write", range(1, WRITES + 1))
async def test_killed_before_any_write(write: int) -> None:
    """The write with this number never happens. Each non-idempotent tool runs once at most without a person's word."""
    store, tools = Store(), CountedTools()
    with pytest.raises(Killed):
        await run(store, ScriptedModel([THREE, says("完成")]), tools, kill_at=write)
    replies = store.kinds().count("reply")
    outcome = await run(store, _model(replies), tools, attempt=2)
    if write in (5, 9):  # the tool ran, its result was never saved: nobody knows
        paid = "pay:甲" if write == 5 else "pay:丙"
        assert isinstance(outcome, Parked)
        assert outcome.detail["about"] == "tool_in_doubt"
        assert tools.runs[paid] == 1, "not repeated"
        outcome = await run(
            store, _model(1), tools, attempt=3, answer={"question": outcome.question, "text": "付款成功"}
        )
        assert tools.runs[paid] == 1
    assert isinstance(outcome, Delivered)
    assert outcome.detail["result"] == "完成"
    assert tools.runs["pay:甲"] == tools.runs["pay:丙"] == 1
    assert tools.runs["look:乙"] == (2 if write == 7 else 1), "only what is safe to repeat is repeated"
    ends = [entry for entry in store.entries if entry.kind == "end"]
    assert len(ends) == 1


async def test_killed_during_a_tool_that_is_safe_to_repeat() -> None:
    store, tools = Store(), CountedTools()
    tools.on_call = lambda name, args: Killed() if tools.runs["look:甲"] == 1 else None
    with pytest.raises(Killed):
        await run(store, ScriptedModel([calls(("c1", "look", {"what": "甲"}))]), tools)
    outcome = await run(store, ScriptedModel([says("ok")]), tools, attempt=2)
    assert isinstance(outcome, Delivered)
    assert tools.runs["look:甲"] == 2


async def test_killed_in_the_model_call_costs_that_call_and_nothing_else() -> None:
    store = Store()
    with pytest.raises(Killed):
        await run(store, ScriptedModel([calls(("c1", "look", {})), Killed()]))
    model = ScriptedModel([says("ok")])
    outcome = await run(store, model, attempt=2)
    assert isinstance(outcome, Delivered)
    assert [each["role"] for each in model.asked[0]] == ["system", "user", "assistant", "tool"]
    usage = outcome.detail["usage"]
    assert (usage["attempt"], usage["calls"], usage["task"]["calls"]) == (2, 1, 2), "its own, and the task's with it"


async def test_the_word_repeat_runs_a_doubtful_call_again() -> None:
    store, tools = Store(), CountedTools()
    with pytest.raises(Killed):
        await run(store, ScriptedModel([calls(("c1", "pay", {"what": "甲"}))]), tools, kill_at=5)
    asked = await run(store, ScriptedModel([]), tools, attempt=2)
    assert isinstance(asked, Parked)
    assert "甲" in asked.text
    answer = {"question": asked.question, "text": "“重复”。"}
    outcome = await run(store, ScriptedModel([says("ok")]), tools, attempt=3, answer=answer)
    assert isinstance(outcome, Delivered)
    assert tools.runs["pay:甲"] == 2
    assert outcome.detail["evidence"]["tool_runs"] == [{"tool": "pay", "call": "c1", "ok": True}]


async def test_a_delivery_that_was_reached_is_delivered_again_without_a_model() -> None:
    store = Store()
    first = await run(store, ScriptedModel([says("结论")]))
    again = await run(store, ScriptedModel([]), attempt=2)
    assert isinstance(first, Delivered)
    assert again == first


async def test_a_delivery_that_was_refused_outside_is_worked_on_again() -> None:
    store = Store()
    for attempt in (1, 2):
        await run(store, ScriptedModel([says("结论")] if attempt == 1 else []), attempt=attempt)
    model = ScriptedModel([says("更好的结论")])
    outcome = await run(store, model, attempt=3)
    assert isinstance(outcome, Delivered)
    assert outcome.detail["result"] == "更好的结论"
    assert "refused" in model.asked[0][-1]["content"]


async def test_a_second_task_of_the_same_agent_goes_on_with_its_conversation() -> None:
    store = Store()
    await run(store, ScriptedModel([says("第一")]))
    model = ScriptedModel([says("第二")])
    outcome = await run(store, model, task="T2")
    assert isinstance(outcome, Delivered)
    assert outcome.detail["usage"]["calls"] == 1, "usage is the task's own"
    assert [each["role"] for each in model.asked[0]] == ["system", "user", "assistant", "user"]


async def test_calls_that_a_cancelled_task_left_open_get_one_result_each() -> None:
    store, tools = Store(), CountedTools(on_call=lambda name, args: Killed())
    with pytest.raises(Killed):
        await run(store, ScriptedModel([calls(("c1", "pay", {}), ("c2", "look", {}), ("c3", "pay", {}))]), tools)
    model, after = ScriptedModel([says("ok")]), CountedTools()
    outcome = await run(store, model, after, task="T2")
    assert isinstance(outcome, Delivered)
    assert after.runs == {}
    results = [each for each in model.asked[0] if each["role"] == "tool"]
    assert [each["tool_call_id"] for each in results] == ["c1", "c2", "c3"]
    assert ["not run" in each["content"] for each in results] == [False, True, True], "the first may have run"


async def test_a_turn_that_is_stopped_by_a_cancelled_task_closes_its_open_calls() -> None:
    store, running = Store(), asyncio.Event()

    class Slow(CountedTools):
        async def call(self, name: str, args: Mapping[str, Json]) -> ToolResult:
            running.set()
            await asyncio.Event().wait()
            raise AssertionError

    asked = calls(("c1", "pay", {"what": "甲"}), ("c2", "pay", {"what": "乙"}))
    turn = asyncio.create_task(run(store, ScriptedModel([asked]), Slow()))
    await running.wait()
    store.cancelled = True
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    results = [entry.body for entry in store.entries if entry.kind == "result"]
    assert [(body["call"], body["ok"], "not run" in body["message"]["content"]) for body in results] == [
        ("c1", False, False), ("c2", False, True)
    ]  # fmt: skip
    assert len({body["message"]["message_id"] for body in results}) == 2
    assert store.entries[-1].body == {"outcome": "cancelled"}
    assert store.meta["status"] == "terminated"


async def test_a_turn_that_is_stopped_for_another_reason_leaves_its_calls_to_the_next_attempt() -> None:
    store, tools = Store(), CountedTools(on_call=lambda name, args: asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await run(store, ScriptedModel([calls(("c1", "look", {"what": "甲"}))]), tools)
    assert store.kinds()[-1] == "call"
    outcome = await run(store, ScriptedModel([says("ok")]), attempt=2)
    assert isinstance(outcome, Delivered)


async def test_ids_that_an_endpoint_gives_again_in_every_answer_do_not_mix() -> None:
    store, tools = Store(), CountedTools()
    script = [calls(("call_0", "look", {"what": name})) for name in "甲乙丙"]
    outcome = await run(store, ScriptedModel([*script, says("ok")]), tools)
    assert isinstance(outcome, Delivered)
    assert tools.runs == {"look:甲": 1, "look:乙": 1, "look:丙": 1}


async def test_after_a_failure_the_next_attempt_has_all_its_turns_and_is_told_why() -> None:
    store = Store()
    bad = [says("半", finish="length"), says("半", finish="length")]
    await run(store, ScriptedModel(bad))
    model = ScriptedModel([says("半", finish="length"), says("整")])
    outcome = await run(store, model, attempt=2)
    assert isinstance(outcome, Delivered), "the count of cut off answers began anew"
