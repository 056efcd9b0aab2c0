"""Agents by the command line: listed, written to, ended; what is refused, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.cli.app import App
from coordinator.cli.store import Store
from protocol.ports import Dispatch, Mail
from protocol.stores.redis_claims import Claims
from protocol.stores.redis_conversations import RedisConversations
from protocol.stores.redis_dispatch import Ref
from tests.integration.cli_support import SPACE, Cli, in_store, record

OWNER = "reader@h:1:a"


@pytest.fixture
def space(cli: Cli, app: App) -> str:
    """A space in which ``reader_1`` runs, ``reader_2`` was cancelled by its task, ``scanner_1`` runs a skill."""
    cli("create-task-space", SPACE)
    for task, role, agent in (
        ("T1", "reader", "reader_1"),
        ("T2", "reader", "reader_2"),
        ("T3", "scanner", "scanner_1"),
    ):
        cli("add-record", "--space", SPACE, stdin=record("task_assigned", task, role=role, attempt=1, agent=agent))

    async def begin(store: Store) -> None:
        await store.roles.publish("reader", {"id": "reader", "executor": "model"}, "d")
        await store.roles.publish("scanner", {"id": "scanner", "executor": "skill"}, "d")
        conversations = RedisConversations(store.client, store.keys, store.scripts)
        claims = Claims(store.client, store.keys, store.scripts)
        for number, task in enumerate(("T1", "T2"), 1):
            [claimed] = await claims.claim([Ref("reader", SPACE, task, 1)], OWNER, now_s=1)
            assert isinstance(claimed, Dispatch)
            meta = {"status": "running", "role_id": "reader", "role_name": "读者", "task": task}
            await conversations.open(claimed).write(1, [("message", {"n": number})], meta=meta)

    in_store(app, begin)
    cli("task", "cancel", "T2", "--space", SPACE)
    return SPACE


def rows(cli: Cli, space: str) -> dict[str, Any]:
    return {row["agent"]: row for row in cli("agents", "--space", space, "--json").json}


def test_agents_are_listed_with_the_status_that_their_task_says(cli: Cli, space: str) -> None:
    found = rows(cli, space)
    assert list(found) == ["reader_1", "reader_2", "scanner_1"]
    assert [(r["agent_id"], r["display_name"], r["status"], r["worker"]) for r in found.values()] == [
        (1, "读者_1", "running", OWNER), (2, "读者_2", "terminated", ""), (None, "scanner_1", "idle", "")
    ]  # fmt: skip
    assert "读者_1" in cli("agents", "--space", space).out


@pytest.mark.parametrize("name", ["reader_1", "1", "读者_1"])
def test_a_message_finds_its_agent_by_name_number_or_display_name(name: str, cli: Cli, app: App, space: str) -> None:
    sent = cli("message", name, "-", "--space", space, "--as", "person_li", "--json", stdin="请看第二章\n").json
    assert (sent["agent"], sent["id"]) == ("reader_1", "msg_user_002")

    async def mail(store: Store) -> tuple[Mail, ...]:
        return await RedisConversations(store.client, store.keys, store.scripts).mail(space, "reader_1")

    [found] = in_store(app, mail)
    assert (found.id, found.sender, found.text, found.source, found.kind) == (
        "msg_user_002", "person_li", "请看第二章", "user", "message"
    )  # fmt: skip
    assert rows(cli, space)["reader_1"]["mail"] == 1
    on_record = cli("read-records", "--space", space, "--event", "info", "--json").json["records"][-1]
    assert (on_record["id"], on_record["who"], on_record["detail"]["to"]) == (
        "INFO_msg_user_002", "person_li", "reader_1"
    )  # fmt: skip
    assert cli("message", name, "再来", "--space", space, "--json").json["id"] == "msg_user_003"


@pytest.mark.parametrize(
    ("name", "text", "code", "words"),
    [
        ("reader_9", "喂", 2, "there is no agent 'reader_9'"),
        ("reader_2", "喂", 1, "terminated"),
        ("scanner_1", "喂", 1, "runs a skill"),
        ("reader_1", " \n", 1, "empty message"),
        ("reader_1", "长" * 70_000, 1, "70000 characters"),
    ],
)
def test_what_would_not_be_read_is_refused(name: str, text: str, code: int, words: str, cli: Cli, space: str) -> None:
    before = cli("read-records", "--space", space, "--limit", "1000", "--json").json["entries"]
    assert words in cli("message", name, text, "--space", space, expect=code).err
    assert cli("read-records", "--space", space, "--limit", "1000", "--json").json["entries"] == before


def test_terminate_cancels_the_task_and_is_one_thing_however_often(cli: Cli, space: str) -> None:
    done = cli("agent", "terminate", "1", "--space", space, "--as", "person_li", "--why", "跑题", "--json").json
    assert (done["agent"], done["outcome"], done["cancelled"]) == ("reader_1", "added", ["T1"])
    again = cli("agent", "terminate", "reader_1", "--space", space, "--json").json
    assert (again["outcome"], again["cancelled"]) == ("already", [])
    assert rows(cli, space)["reader_1"]["status"] == "terminated"
    decisions = cli("read-records", "--space", space, "--event", "decision", "--json").json["records"]
    mine = [(d["detail"]["action"], d["detail"]["why"]) for d in decisions if d["who"] == "person_li"]
    assert mine == [("cancel", "跑题"), ("terminate", "跑题")]


def test_say_is_refused_by_name_where_nobody_is_listening(cli: Cli, space: str) -> None:
    assert "no flow runs there" in cli("say", space, "大家好", expect=1).err
    assert "there is no space" in cli("say", "conv_none", "大家好", expect=2).err


def test_a_state_file_has_no_agents(cli: Cli, tmp_path: Any) -> None:
    said = cli("agents", "--state", str(tmp_path / "state.json"), expect=2)
    assert said.err.startswith("rolecall:")
