"""Conversations on a real server: fenced, whole, without holes, safe to send twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from protocol.errors import FenceLost, StoreFull, TaskError
from protocol.keys import Keys
from protocol.kit.modellist import ModelEntry
from protocol.ports import Delivered, Dispatch, Dropped, Mail
from protocol.stores.client import Client, awaited, connect
from protocol.stores.redis_conversations import RedisConversations
from protocol.stores.scripts import Scripts
from protocol.tasks import TaskState, pack
from tests.unit.agentkit import CountedTools, OpenFence, ScriptedModel, calls, role, says
from workers.agent import run_agent
from workers.stream import Reply

OWNER = "reviewer@host-1:7:ab"


class Place:
    """A space with one task, as a claim left it."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self.conversations = RedisConversations(client, keys, Scripts(client))

    async def claim(
        self, attempt: int = 1, owner: str = OWNER, task: str = "T1", state: str = "processing"
    ) -> Dispatch:
        packed = pack(TaskState(state, attempt, owner, "reviewer", "reviewer_1"))
        await awaited(self.client.hset(self.keys.space("s1").tasks, task, packed))
        detail = {"role": "reviewer", "attempt": attempt, "prompt": "审阅"}
        return Dispatch("s1", task, attempt, "reviewer", "reviewer_1", "s1", owner, 0, detail)


@pytest.fixture
async def place(redis_url: str, prefix: str) -> AsyncIterator[Place]:
    client = connect(redis_url)
    yield Place(client, Keys(prefix))
    await client.aclose()


async def test_what_was_written_is_read_back_whole(place: Place) -> None:
    conversation = place.conversations.open(await place.claim())
    entries = [("message", {"文": "你好🚀\u2028", "n": 12, "deep": [None, {"a": 1.5}]}), ("model", {})]
    await conversation.write(1, entries, meta={"status": "running", "pending_tool_calls": [{"a": "乙"}]})
    await conversation.write(3, [("reply", {"文": "嗯"})])
    loaded = await place.conversations.read("s1", "reviewer_1")
    assert [(e.n, e.kind, e.task, e.attempt, dict(e.body)) for e in loaded.entries] == [
        (1, "message", "T1", 1, entries[0][1]), (2, "model", "T1", 1, {}), (3, "reply", "T1", 1, {"文": "嗯"})
    ]  # fmt: skip
    assert all(entry.at_ms > 1_600_000_000_000 for entry in loaded.entries)
    assert loaded.meta["status"] == "running"
    assert loaded.meta["pending_tool_calls"] == [{"a": "乙"}]
    assert loaded.meta["agent_id"] == 1
    assert await place.conversations.agents("s1") == {"reviewer_1": 1}


async def test_a_conversation_longer_than_a_page(place: Place) -> None:
    conversation = place.conversations.open(await place.claim())
    for first in range(1, 2_300, 100):
        await conversation.write(first, [("note", {"n": first + at}) for at in range(100)])
    loaded = await conversation.load()
    assert [entry.n for entry in loaded.entries] == list(range(1, 2_301))
    assert [entry.body["n"] for entry in loaded.entries] == list(range(1, 2_301))


async def test_a_write_that_is_sent_again_is_one_write(place: Place) -> None:
    conversation = place.conversations.open(await place.claim())
    for _ in range(3):
        await conversation.write(1, [("message", {"a": 1}), ("model", {})])
    assert len((await conversation.load()).entries) == 2
    assert (await conversation.load()).meta["bytes"] == len('{"a":1}') + len("{}")


async def test_a_gap_is_refused_and_may_be_tried_again(place: Place) -> None:
    conversation = place.conversations.open(await place.claim())
    with pytest.raises(TaskError) as caught:
        await conversation.write(2, [("message", {})])
    assert caught.value.retryable
    assert (await conversation.load()).entries == ()


@pytest.mark.parametrize(
    ("attempt", "owner", "state"),
    [(2, "reviewer@host-2:8:cd", "processing"), (1, "reviewer@host-2:8:cd", "processing"), (1, OWNER, "cancelled"),
     (1, "", "lost"), (2, "", "assigned")],
)  # fmt: skip
async def test_every_write_of_a_zombie_is_refused(place: Place, attempt: int, owner: str, state: str) -> None:
    conversation = place.conversations.open(await place.claim())
    await conversation.write(1, [("message", {"a": 1})], meta={"status": "running"})
    await place.conversations.post("s1", "reviewer_1", Mail("m1", "王", "喂"))
    mail = await conversation.mail()
    await place.claim(attempt, owner, state=state)
    with pytest.raises(FenceLost):
        await conversation.write(2, [("reply", {})], meta={"status": "idle"}, taken=[mail[0].entry])
    loaded = await conversation.load()
    assert (len(loaded.entries), loaded.meta["status"], loaded.mail) == (1, "running", 1)


async def test_a_message_leaves_the_mailbox_in_the_step_in_which_it_is_saved(place: Place) -> None:
    conversation = place.conversations.open(await place.claim())
    sent = Mail("msg_user_001", "王先生", "快一点", source="user", sender_agent=3, at_s=1.5)
    assert await place.conversations.post("s1", "reviewer_1", sent)
    assert not await place.conversations.post("s1", "reviewer_1", replace(sent, text="别的")), "an id lies there once"
    assert await conversation.write(1, [("message", {})]) == 1
    found = await conversation.mail()
    assert found == (replace(sent, entry=found[0].entry),)
    assert await conversation.write(2, [("message", {"mail": "msg_user_001"})], taken=[found[0].entry]) == 0
    assert await conversation.mail() == ()


async def test_a_full_mailbox_and_a_full_conversation_refuse_by_name(place: Place) -> None:
    small = RedisConversations(place.client, place.keys, Scripts(place.client), max_bytes=40, mailbox_max=1)
    conversation = small.open(await place.claim())
    await small.post("s1", "reviewer_1", Mail("m1", "王", "一"))
    with pytest.raises(StoreFull, match="reviewer_1"):
        await small.post("s1", "reviewer_1", Mail("m2", "王", "二"))
    await conversation.write(1, [("message", {"a": "x" * 20})])
    with pytest.raises(StoreFull, match="40 bytes") as caught:
        await conversation.write(2, [("message", {"a": "x" * 20})])
    assert not caught.value.retryable, "waiting would not help"
    await conversation.write(2, [], meta={"status": "idle"})


async def test_agents_are_numbered_in_the_order_of_their_first_word(place: Place) -> None:
    for name in ("z-1", "b", "a_2", "b"):
        given = replace(await place.claim(), agent=name)
        await place.conversations.open(given).write(1, [("message", {})])
    assert await place.conversations.agents("s1") == {"z-1": 1, "b": 2, "a_2": 3}


async def test_a_zombie_turn_that_wakes_after_its_takeover_stores_nothing(place: Place) -> None:
    """Stopped in its model call, taken over and finished by another host, then it wakes with a tool call."""
    first = await place.claim()
    tools = CountedTools()

    async def rescue() -> None:
        second = await place.claim(2, "reviewer@host-2:8:cd")
        done = await run_agent(
            second, OpenFence(), role=role(), conversation=place.conversations.open(second),
            model=ScriptedModel([says("救回来了")]), tools=tools,
        )  # fmt: skip
        assert isinstance(done, Delivered)
        assert done.detail["result"] == "救回来了"

    class Stopped(ScriptedModel):
        async def complete(self, messages: object, **more: object) -> Reply:
            await rescue()
            return calls(("c1", "pay", {"what": "甲"}))

    outcome = await run_agent(
        first, OpenFence(), role=role(), conversation=place.conversations.open(first), model=Stopped([]), tools=tools
    )
    assert isinstance(outcome, Dropped)
    assert tools.runs == {}
    loaded = await place.conversations.read("s1", "reviewer_1")
    assert [e.attempt for e in loaded.entries if e.kind == "reply"] == [2]
    assert loaded.entries[-1].kind == "end"


async def test_a_whole_turn_on_the_real_store(place: Place) -> None:
    given = await place.claim()
    model = ScriptedModel([calls(("c1", "look", {"what": "甲"})), says("完成")], ModelEntry("main", "m"))
    outcome = await run_agent(
        given, OpenFence(), role=role(), conversation=place.conversations.open(given), model=model, tools=CountedTools()
    )
    assert isinstance(outcome, Delivered)
    meta = (await place.conversations.read("s1", "reviewer_1")).meta
    assert (meta["status"], meta["role_id"], meta["task"], meta["attempt"]) == ("completed", "reviewer", "T1", 1)
    again = replace(given, attempt=2, owner="reviewer@host-2:8:cd")
    await place.claim(2, again.owner)
    redelivered = await run_agent(
        again, OpenFence(), role=role(), conversation=place.conversations.open(again), model=ScriptedModel([]),
        tools=CountedTools(),
    )  # fmt: skip
    assert redelivered == outcome
