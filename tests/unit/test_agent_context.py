"""A long history and long outputs: what is pinned stays, what is spilled has a digest, both are said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.errors import StoreFull
from protocol.kit.modellist import ModelEntry
from protocol.ports import Delivered, Dispatch
from protocol.record import Json
from protocol.stores.redis_artifacts import ArtifactRef
from tests.unit.agentkit import CountedTools, ScriptedModel, Store, calls, run, says, strict
from workers.agent import Surroundings
from workers.compact import compaction, pins
from workers.history import History
from workers.messages import message, tokens_of
from workers.tools import ToolResult


@dataclass
class Shelf:
    """Port ``Spill`` in memory."""

    full: bool = False
    kept: dict[str, bytes] = field(default_factory=dict)
    named: list[str] = field(default_factory=list)

    async def put(self, space: str, data: bytes) -> ArtifactRef:
        if self.full:
            raise StoreFull("full", retryable=False)
        self.kept["ab12"] = data
        return ArtifactRef("ab12", len(data))

    async def name(self, space: str, ref: ArtifactRef, dispatch: Dispatch | None = None) -> None:
        assert dispatch is not None
        self.named.append(ref.sha256)


LONG = "输出" * 20_000


async def test_a_long_output_is_spilled_with_its_digest() -> None:
    shelf, model = Shelf(), ScriptedModel([calls(("c1", "look", {})), says("ok")])
    store = Store()
    await run(store, model, CountedTools(on_call=lambda n, a: ToolResult(True, LONG)), around=Surroundings(spill=shelf))
    shown = model.asked[1][-1]["content"]
    assert len(shown) < 33_000
    assert "ab12" in shown
    assert shelf.kept["ab12"].decode() == LONG
    assert shelf.named == ["ab12"]
    assert next(e.body["artifact"] for e in store.entries if e.kind == "result")["size"] == len(LONG.encode())


async def test_a_full_shelf_cuts_the_output_and_says_how_much() -> None:
    model = ScriptedModel([calls(("c1", "look", {})), says("ok")])
    tools = CountedTools(on_call=lambda n, a: ToolResult(True, LONG))
    await run(Store(), model, tools, around=Surroundings(spill=Shelf(full=True)))
    assert f"({len(LONG) - 32_000} characters are left out here)" in model.asked[1][-1]["content"]


async def test_a_history_that_outgrows_the_window_is_compacted_and_said_on_record() -> None:
    said: list[tuple[str, str, Mapping[str, Json]]] = []

    async def notice(kind: str, what: str, detail: Mapping[str, Json]) -> None:
        said.append((kind, what, detail))

    model = ScriptedModel(
        [calls((f"c{n}", "look", {"what": str(n)}), text="看看") for n in range(8)] + [says("完成")],
        ModelEntry("main", "m", "http://127.0.0.1:9/v1", context_window=6_000),
    )
    tools = CountedTools(on_call=lambda n, a: ToolResult(True, "字" * 1_000))
    store = Store()
    outcome = await run(store, model, tools, around=Surroundings(notice=notice), prompt="别忘了这个任务")
    assert isinstance(outcome, Delivered)
    assert {kind for kind, _, _ in said} == {"compaction"}
    assert all(detail["tokens_after"] < detail["tokens_before"] for _, _, detail in said)
    for asked in model.asked:
        strict(asked)
        assert tokens_of(asked) <= 6_000
        assert "别忘了这个任务" in asked[1]["content"], "the task stays whole"
    assert "left out to fit" in str(model.asked[-1])
    assert store.kinds().count("result") == 8, "nothing is removed from the store"


async def test_a_takeover_after_a_compaction_sees_the_same_messages() -> None:
    model = ScriptedModel(
        [calls((f"c{n}", "look", {"what": str(n)})) for n in range(8)] + [says("完成")],
        ModelEntry("main", "m", "http://127.0.0.1:9/v1", context_window=6_000),
    )
    store = Store()
    await run(store, model, CountedTools(on_call=lambda n, a: ToolResult(True, "字" * 1_000)))
    assert store.kinds().count("compact") >= 1
    again = History("T1").fold(store.entries)
    assert [each.get("content") for each in again.messages[:-1]] == [each["content"] for each in model.asked[-1][1:]]


def test_peoples_words_and_answers_stay_whole() -> None:
    history = [message("user", "任务" * 50, "task_T1", message_source="system")]
    history.append(message("user", "老板的话" * 40, "msg_user_001", message_source="user"))
    for n in range(30):
        made = message("assistant", "", f"out_r_{n:03d}")
        made["tool_calls"] = [{"id": "c", "type": "function", "function": {"name": "ask_master", "arguments": "{}"}}]
        answer = message("tool", f"第{n}个回答" * 60, f"msg_t_{n:03d}")
        answer["tool_call_id"] = "c"
        if n == 0:
            answer["metadata"] = {"answers": "ASK_r_1_001"}
        history += [made, answer]
    body = compaction(
        history, fixed=100, window=8_000, pinned=pins(history, "task_T1"), summary_id="msg_system_001", lang="zh"
    )
    assert body is not None
    assert body["pinned"] == ["task_T1", "msg_user_001"]
    assert "第0个回答" * 60 in body["message"]["content"]
    assert "第1个回答" * 60 not in body["message"]["content"]
    kept = next(each for each in history if each["message_id"] == body["keep"])
    assert kept["role"] == "assistant", "a result is never parted from its call"


def test_a_history_that_fits_is_left_alone() -> None:
    history = [message("user", "a", "task_T1"), message("assistant", "b", "out_001"), message("user", "c", "m")]
    assert compaction(history, fixed=10, window=1_000, pinned=["task_T1"], summary_id="s", lang="en") is None
