"""``export`` and ``import``: conversations as files, from a real store and back, equal to the letter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.app import App
from coordinator.cli.store import Store
from coordinator.session import Order, start
from protocol.ports import Delivered, Dispatch, Mail, Parked
from protocol.record import Record, Trace
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_conversations import RedisConversations
from tests.integration.cli_support import Cli, in_store
from tests.support import wait_until_sync
from tests.unit.agentkit import CountedTools, OpenFence, Say, ScriptedModel, calls, role, says
from workers.agent import run_agent

ROOT = Path(__file__).resolve().parents[2]
OWNER = "reviewer@h:1:a"
STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$")
ROLE = "---\nid: reviewer\nname: 审阅者\ndescription: 审阅\n---\n\n你审阅代码。\n"
SESSION_KEYS = {
    "id", "title", "created_at", "updated_at", "project_path", "model_key", "thinking_mode", "run_mode", "status",
    "agent_count", "agent_ids",
}  # fmt: skip
AGENT_KEYS = {
    "agent_id", "role_id", "display_name", "status", "created_at", "updated_at", "task_summary", "model_key",
    "thinking_mode", "pending_messages", "pending_tool_calls",
}  # fmt: skip


class Played:
    """A session played by hand: the log as a leader writes it, the conversations as a worker's turns write them."""

    def __init__(self, store: Store, space: str) -> None:
        self.store = store
        self.space = space
        self.conversations = RedisConversations(store.client, store.keys, store.scripts)

    @classmethod
    async def begin(cls, store: Store, goal: str) -> Played:
        order = Order(goal=goal, plan={"tasks": [{"id": "a", "role": "reviewer", "prompt": "审阅甲"}]})
        artifacts = Artifacts(store.client, store.keys)
        space = await start(order, log=store.log, artifacts=artifacts, bell=store.wake, who="person_li")
        return cls(store, space)

    async def write(self, event: str, name: str, who: str = "leader", /, **detail: Any) -> None:
        trace = Trace(parent_id=self.space, session_id=self.space)
        record = Record(id=name, who=who, time=1, event=event, what=f"{event} {name}", detail=detail, trace=trace)  # type: ignore[arg-type]
        outcome = (await self.store.log.append(self.space, [record], owner=OWNER if record.is_task else ""))[0]
        assert outcome.outcome == "added", outcome

    async def turn(self, task: str, agent: str, *script: Say) -> None:
        """One attempt of a task by its agent, delivered or parked."""
        given = {"role": "reviewer", "attempt": 1, "agent": agent, "prompt": f"审阅 {task}\n第二行"}
        await self.write("task_assigned", task, **given)
        await self.write("task_processing", task, agent, attempt=1, worker=OWNER)
        dispatch = Dispatch(self.space, task, 1, "reviewer", agent, self.space, OWNER, 0, given)
        outcome = await run_agent(
            dispatch, OpenFence(), role=role(), conversation=self.conversations.open(dispatch),
            model=ScriptedModel(script), tools=CountedTools(),
        )  # fmt: skip
        if isinstance(outcome, Delivered):
            await self.write("task_completed", task, agent, attempt=1, **outcome.detail)
        elif isinstance(outcome, Parked):
            asked = {"kind": "question", "text": outcome.text, "agent": agent, "task": task}
            await self.write("info", outcome.question, agent, **asked)
            await self.write("task_pending", task, agent, attempt=1, role="reviewer", waiting_for=outcome.question)


async def play(store: Store) -> str:
    """A session of two agents: one has delivered, one waits for a person; its id."""
    played = await Played.begin(store, "审阅两处\n第二行")
    tool = calls(("c1", "look", {"what": "甲 “引号”"}), text="先看看")
    await played.turn("a", "reviewer_1", tool, says("甲没有问题"))
    await played.turn("b", "reviewer_2", calls(("q1", "ask_master", {"question": "用哪一版？"})))
    mail = Mail("msg_user_002", "person_li", "快一点", source="user", at_s=1_800_000_000.25)
    await played.conversations.post(played.space, "reviewer_2", mail)
    return played.space


@pytest.fixture
def home(tmp_path: Path, fleet_env: dict[str, str]) -> Path:
    """Where the role file is, and directories may be."""
    (tmp_path / "roles").mkdir()
    (tmp_path / "roles" / "reviewer.md").write_text(ROLE, encoding="utf-8")
    fleet_env["ROLECALL_ROLES"] = str(tmp_path / "roles")
    return tmp_path


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()}


def doc(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


async def flush(store: Store) -> None:
    """From now on it is another, empty store."""
    await store.client.flushall()


def test_the_layout_and_what_stands_in_it(cli: Cli, app: App, home: Path) -> None:
    space = in_store(app, play)
    cli("export", space, "--to", str(home / "out"))
    files = tree(home / "out")
    assert sorted(files) == sorted(
        [
            "agents/reviewer.md", "conversations/index.json", "state.json",
            *(f"conversations/{space}/{name}" for name in (
                "metadata.json", "messages.json", "agents/1/metadata.json", "agents/1/messages.json",
                "agents/2/metadata.json", "agents/2/messages.json",
            )),
        ]
    )  # fmt: skip
    assert files["agents/reviewer.md"] == ROLE
    place = home / "out" / "conversations" / space
    metadata, messages = doc(place / "metadata.json"), doc(place / "messages.json")
    assert set(metadata) == SESSION_KEYS
    assert (metadata["title"], metadata["status"], metadata["agent_ids"]) == ("审阅两处", "active", [1, 2])
    assert (metadata["thinking_mode"], metadata["run_mode"]) == (False, "fast")
    assert STAMP.match(metadata["created_at"])
    assert STAMP.match(metadata["updated_at"])
    index = doc(home / "out" / "conversations" / "index.json")
    assert index == {space: {key: metadata[key] for key in ("title", "created_at", "updated_at", "agent_count")}}
    state = doc(home / "out" / "state.json")
    assert (state["version"], state["last_conversation_id"], state["agent_id_counter"]) == ("1.0", space, 2)
    assert set(state) == {"version", "last_conversation_id", "agent_id_counter", "created_at", "updated_at"}

    first, second = (doc(place / "agents" / n / "metadata.json") for n in "12")
    assert set(first) == set(second) == AGENT_KEYS
    assert (first["display_name"], first["status"], first["task_summary"]) == ("审阅者_1", "completed", "审阅 a")
    assert (second["status"], second["agent_id"]) == ("waiting", 2)
    assert second["pending_messages"] == [
        {
            "id": "msg_user_002", "source_display_name": "person_li", "source_agent_id": None,
            "message_type": "message", "content": "快一点", "created_at": 1_800_000_000.25,
        }
    ]  # fmt: skip
    [call] = second["pending_tool_calls"]
    assert (call["tool_call_id"], call["tool_name"]) == ("q1", "ask_master")
    assert call["question_id"] == "ASK_reviewer_2_001"
    assert isinstance(call["created_at"], float)

    said = doc(place / "agents" / "1" / "messages.json")
    assert [m["role"] for m in said["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert said["messages"][1]["tool_calls"][0]["function"]["name"] == "look"
    assert said["messages"][2]["tool_call_id"] == "c1"
    assert all(m["message_id"] for m in said["messages"])

    words = messages["messages"]
    assert words[0] == {
        "role": "user", "content": "审阅两处\n第二行", "message_id": "msg_user_001",
        "metadata": {"message_source": "user", "visibility": "chat", "starts_work": True},
    }  # fmt: skip
    report = next(m for m in words if m["message_id"] == "out_reviewer_001")
    assert report["content"] == "From 审阅者_1: completion report\nid: out_reviewer_001\n\n```text\n甲没有问题\n```"
    assert report["metadata"] == {
        "message_source": "sub_agent", "visibility": "compact", "starts_work": False, "task": "a", "agent_id": 1
    }  # fmt: skip
    question = next(m for m in words if m["message_id"] == "ask_reviewer_001")
    assert "用哪一版？" in question["content"]
    assert [m["message_id"] for m in words if m["role"] == "assistant"] == ["msg_leader_001", "msg_leader_002"]
    assert messages["token_statistics"]["total_tokens"] == 40
    assert '"content": "审阅两处\\n第二行"' in files[f"conversations/{space}/messages.json"], "no ASCII escapes"
    assert not list((home / "out").rglob(".*")), "nothing is left beside the files"


def test_a_round_trip_through_another_store_is_equal(cli: Cli, app: App, home: Path) -> None:
    space = in_store(app, play)
    cli("export", space, "--to", str(home / "one"))
    assert cli("import", str(home / "one"), "--json").json == [{"session": space, "outcome": "already"}], (
        "it lives here"
    )
    in_store(app, flush)
    assert cli("import", str(home / "one"), "--json").json == [{"session": space, "outcome": "imported"}]
    cli("export", space, "--to", str(home / "two"))
    assert tree(home / "two") == tree(home / "one")
    assert cli("import", str(home / "one"), "--json").json == [{"session": space, "outcome": "already"}]
    rows = cli("agents", "--session", space, "--json").json
    assert [(r["agent_id"], r["display_name"], r["status"]) for r in rows] == [
        (1, "审阅者_1", "completed"), (2, "审阅者_2", "waiting")
    ]  # fmt: skip
    listed = cli("session", "list", "--json").json
    assert [(row["session"], row["title"]) for row in listed] == [(space, "审阅两处")]
    assert in_store(app, lambda store: store.log.open_spaces()) == [], "nothing is to be done there"


def foreign(folder: Path) -> Path:
    """A directory as another program wrote it: keys that nobody here knows, zones, a system message, big numbers."""
    place = folder / "conversations" / "conv_20260711_210000_001"
    (place / "agents" / "7").mkdir(parents=True)
    (folder / "agents").mkdir()

    def put(path: Path, value: Any) -> None:
        path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    times = {"created_at": "2026-07-11T21:00:00", "updated_at": "2026-07-11T21:05:00+08:00"}
    put(folder / "state.json", {"version": "1.0", "theme": "深色", "last_conversation_id": "conv_old",
                                "agent_id_counter": 41, **times})  # fmt: skip
    put(
        folder / "conversations" / "index.json",
        {place.name: {"title": "旧题", **times, "agent_count": 1, "pinned": True}},
    )
    (folder / "agents" / "unused.md").write_text("---\nid: unused\n---\n无人使用。\n", encoding="utf-8")
    put(place / "metadata.json", {"id": place.name, "title": "旧题", **times, "project_path": "/srv/项目",
                                  "model_key": "m", "thinking_mode": True, "run_mode": "deep", "status": "archived",
                                  "agent_count": 1, "agent_ids": [7], "颜色": {"r": 2**70}})  # fmt: skip
    messages: list[Any] = [
        {"role": "system", "content": "规则", "message_id": "sys_1", "ts": 1.5},
        {"role": "user", "content": None, "message_id": "msg_user_001", "metadata": {"mood": "急"}},
        {"role": "assistant", "content": "", "message_id": "out_x_001",
         "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "坏{"}}]},
    ]  # fmt: skip
    put(place / "messages.json", {"id": place.name, "messages": messages, "title": "旧题", "after": [], **times,
                                  "metadata": {}, "token_statistics": {"cached": 3}})  # fmt: skip
    put(place / "agents" / "7" / "metadata.json", {"agent_id": 7, "role_id": "审阅", "display_name": "审阅_7",
                                                   "status": "idle", **times, "nick": "老七"})  # fmt: skip
    put(place / "agents" / "7" / "messages.json", {"agent_id": 7, "extra": None, "messages": messages * 400})
    return folder


def test_keys_that_nobody_knows_survive_the_way_in_and_out(cli: Cli, app: App, home: Path) -> None:
    given = foreign(home / "given")
    assert cli("import", str(given), "--json").json[0]["outcome"] == "imported"
    cli("export", "conv_20260711_210000_001", "--to", str(home / "out"))
    assert tree(home / "out") == tree(given)
    assert cli("session", "list", "--json").json == []
    assert [r["session"] for r in cli("session", "list", "--archived", "--json").json] == ["conv_20260711_210000_001"]
    space = in_store(app, play)
    cli("export", space, "--to", str(home / "new"))
    assert doc(home / "new" / "state.json")["agent_id_counter"] == 43, "numbers go on behind those that came in"


def test_what_others_wrote_into_the_directory_stays(cli: Cli, app: App, home: Path) -> None:
    space = in_store(app, play)
    out = home / "out"
    cli("export", space, "--to", str(out))
    place = out / "conversations" / space
    for path, change in (
        (place / "metadata.json", lambda d: d | {"favourite": True, "title": "别的题目"}),
        (place / "messages.json", lambda d: d | {"messages": [{**d["messages"][0], "stars": 5}, *d["messages"][1:]]}),
        (out / "conversations" / "index.json", lambda d: {k: v | {"pinned": 1} for k, v in d.items()} | {"别": {}}),
        (out / "state.json", lambda d: d | {"theme": "深色", "agent_id_counter": 90}),
    ):
        path.write_text(json.dumps(change(doc(path))), encoding="utf-8")
    (place / "notes.txt").write_text("我的", encoding="utf-8")
    cli("session", "rename", space, "新题")
    cli("export", space, "--to", str(out))
    metadata = doc(place / "metadata.json")
    assert (metadata["favourite"], metadata["title"]) == (True, "新题")
    assert doc(place / "messages.json")["messages"][0]["stars"] == 5
    index = doc(out / "conversations" / "index.json")
    assert (index["别"], index[space]["pinned"], index[space]["title"]) == ({}, 1, "新题")
    assert doc(out / "state.json")["theme"] == "深色"
    assert doc(out / "state.json")["agent_id_counter"] == 90
    assert (place / "notes.txt").read_text("utf-8") == "我的"
    before = {path: path.stat().st_ino for path in out.rglob("*")}
    assert cli("export", space, "--to", str(out), "--json").json["files"] == []
    assert {path: path.stat().st_ino for path in out.rglob("*")} == before, "what did not change was not touched"


def test_what_can_not_be_read_is_named_and_the_rest_comes_in(cli: Cli, home: Path) -> None:
    given = foreign(home / "given")
    good = given / "conversations" / "conv_20260711_210000_001"
    for name in ("torn", "数", "conv_2"):
        place = given / "conversations" / name
        place.mkdir()
        (place / "metadata.json").write_text('{"id": "x"}')
        (place / "messages.json").write_text('{"messages": [')
    said = cli("import", str(given), "--json", expect=1)
    outcomes = {row["session"]: row for row in said.json}
    assert outcomes[good.name]["outcome"] == "imported"
    assert "messages.json" in outcomes["torn"]["message"]
    assert "can't be a conversation's" in outcomes["数"]["message"]
    assert cli("import", str(home / "nothing"), expect=1).err.startswith("rolecall:")
    torn = given / "conversations" / "torn" / "messages.json"
    assert torn.read_text() == '{"messages": [', "left untouched"


def test_one_that_says_something_else_is_not_overwritten_without_a_word(cli: Cli, app: App, home: Path) -> None:
    space = in_store(app, play)
    cli("export", space, "--to", str(home / "one"))
    path = home / "one" / "conversations" / space / "metadata.json"
    path.write_text(json.dumps(doc(path) | {"title": "篡改"}), encoding="utf-8")
    assert "lives here" in cli("import", str(home / "one"), "--force", expect=1).err
    given = foreign(home / "given")
    cli("import", str(given))
    path = given / "conversations" / "conv_20260711_210000_001" / "messages.json"
    path.write_text(json.dumps(doc(path) | {"messages": []}), encoding="utf-8")
    assert "--force" in cli("import", str(given), expect=1).err
    cli("import", str(given), "--force")
    cli("export", "conv_20260711_210000_001", "--to", str(home / "out"))
    assert doc(home / "out" / "conversations" / "conv_20260711_210000_001" / "messages.json")["messages"] == []


def test_a_broken_file_in_the_place_is_refused_and_left_untouched(cli: Cli, app: App, home: Path) -> None:
    space = in_store(app, play)
    (home / "out").mkdir()
    (home / "out" / "state.json").write_text("我的笔记")
    assert "state.json" in cli("export", space, "--to", str(home / "out"), expect=1).err
    assert (home / "out" / "state.json").read_text() == "我的笔记"


def test_a_mirror_is_kept_up_to_date_until_the_session_is_over(
    cli: Cli, app: App, home: Path, fleet_env: dict[str, str]
) -> None:
    space = in_store(app, play)
    with subprocess.Popen(
        [sys.executable, "-m", "coordinator.cli", "export", space, "--to", str(home / "live"), "--follow", "--json"],
        env=os.environ | fleet_env, cwd=ROOT, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        try:
            assert child.stdout is not None
            assert json.loads(child.stdout.readline())["session"] == space
            place = home / "live" / "conversations" / space

            async def more(store: Store) -> None:
                await Played(store, space).turn("c", "reviewer_3", says("丙也好"))

            in_store(app, more)
            began = time.monotonic()
            wait_until_sync(
                lambda: (place / "agents" / "3" / "messages.json").exists()
                and "丙也好" in (place / "messages.json").read_text("utf-8"), "the mirror has the third agent", 10,
            )  # fmt: skip
            assert time.monotonic() - began < 2
            cli("session", "cancel", space)

            async def finish(store: Store) -> None:
                detail = {"action": "finish", "status": "cancelled", "by": {"flow": "plan"}, "why": "已取消"}
                await Played(store, space).write("decision", "DEC_finish", **detail)

            in_store(app, finish)
            assert child.wait(15) == 0, "it ends by itself"
        finally:
            child.kill()
    cli("export", space, "--to", str(home / "after"))
    assert tree(home / "live") == tree(home / "after")
