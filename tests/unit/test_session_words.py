"""A session's own conversation, read from its log: who said what, in which form, the same however it is folded."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.conversations import SessionWords, Speaker, agent_docs, local
from protocol.ports import Loaded, Saved
from protocol.record import Record, Trace

SPACE = "conv_20260711_210000_001"
FLOW = {"flow": "plan"}
SPEAKERS = {"reviewer_1": Speaker("审阅者_7", 7)}


def record(event: str, name: str, who: str = "leader", what: str = "一句话", **detail: Any) -> Record:
    trace = Trace(parent_id=None, session_id=SPACE)
    return Record(id=name, who=who, time=1, event=event, what=what, detail=detail, trace=trace)  # type: ignore[arg-type]


LOG = [
    record("task_started", SPACE, "person_li", goal="写一份报告\n要短", flow="plan"),
    record("task_pending", "a", role="reviewer", by=FLOW),
    record("task_assigned", "a", what="a goes to reviewer_1", role="reviewer", attempt=1, agent="reviewer_1",
           prompt="审阅", by=FLOW),
    record("task_processing", "a", "reviewer_1", attempt=1, worker="w@h:1:a"),
    record("info", "ASK_reviewer_1_001", "reviewer_1", "哪一版？", kind="question", text="哪一版？\n```", task="a",
           agent="reviewer_1", usage={"total_tokens": 5, "calls": 1}),
    record("decision", "DEC_answer_1", "person_li", action="answer", task="a", question="ASK_reviewer_1_001",
           answer="第二版", by="person_li", why="answered"),
    record("info", "INFO_msg_user_002", "person_li", kind="message", to="reviewer_1", text="快点",
           message_id="msg_user_002", by="person_li"),
    record("heartbeat", "HB_1", "reviewer_1", current_task="a", status="running", progress=""),
    record("task_agent_lost", "a", "manager", "丢了", agent="reviewer_1", last_seen=1, attempt=1, by={}),
    record("task_completed", "a", "reviewer_1", attempt=2, result={"结论": "好"},
           usage={"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10, "calls": 2}),
    record("task_completed", "a.verify", "checker_1", attempt=1, verdict="confirmed", verifies="a", reasons=["对"]),
    record("task_blocked", "b", "manager", "b 等人", attempt=1, requires_human_intervention=True, reason="坏"),
    record("decision", "DEC_retry_1", "person_li", "retry b", action="retry", task="b", by="person_li", why="修好了"),
    record("decision", "DEC_finish", what="the session is through", action="finish", by=FLOW, why="完"),
    record("task_merged", "MERGE_1", "manager", "1 results merged", markdown={"sha256": "ab", "size": 1}, by={}),
]  # fmt: skip


def folded(words: SessionWords, log: list[Record], first: int = 0) -> SessionWords:
    for at, each in enumerate(log, first):
        words.fold(f"{1_783_774_800_000 + at * 1000}-0", each)
    return words


def test_each_word_has_its_author_and_its_form() -> None:
    words = folded(SessionWords(SPACE), LOG)
    assert words.wants == {"ab"}
    found = words.messages(SPEAKERS, {"ab": "# 报告"})
    by_id = {m["message_id"]: m for m in found}
    assert len(by_id) == len(found)
    assert list(by_id) == [
        "msg_user_001", "msg_leader_001", "ask_reviewer_001", "msg_person_001", "msg_user_002", "msg_leader_002",
        "out_reviewer_001", "out_checker_001", "msg_leader_003", "msg_person_002", "msg_leader_004", "msg_leader_005",
    ]  # fmt: skip
    assert by_id["msg_user_001"]["content"] == "写一份报告\n要短"
    assert by_id["msg_leader_001"]["content"] == "a goes to reviewer_1\n\n审阅"
    assert by_id["ask_reviewer_001"]["content"] == (
        "From 审阅者_7: message\nid: ask_reviewer_001\n\n````text\n哪一版？\n```\n````"
    )
    assert by_id["msg_person_001"] == {
        "role": "user", "content": "第二版", "message_id": "msg_person_001",
        "metadata": {
            "message_source": "user", "visibility": "chat", "starts_work": True, "answers": "ASK_reviewer_1_001"
        },
    }  # fmt: skip
    report = by_id["out_reviewer_001"]
    assert (report["role"], report["metadata"]["agent_id"], report["metadata"]["visibility"]) == ("user", 7, "compact")
    assert report["content"].startswith("From 审阅者_7: completion report\nid: out_reviewer_001\n\n```json\n{")
    verdict = by_id["out_checker_001"]
    assert '"verdict": "confirmed"' in verdict["content"]
    assert verdict["metadata"]["agent_id"] is None, "it has no conversation"
    assert by_id["msg_person_002"]["content"] == "retry b: 修好了"
    assert (by_id["msg_leader_005"]["role"], by_id["msg_leader_005"]["content"]) == ("assistant", "# 报告")
    assert dict(words.tokens) == {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 15, "calls": 3}


def test_an_artifact_that_is_gone_leaves_the_words_of_its_record() -> None:
    assert folded(SessionWords(SPACE), LOG).messages(SPEAKERS, {})[-1]["content"] == "1 results merged"


@pytest.mark.parametrize("at", range(len(LOG) + 1))
def test_folded_in_two_pieces_is_folded_whole(at: int) -> None:
    whole, parts = folded(SessionWords(SPACE, "zh"), LOG), folded(SessionWords(SPACE, "zh"), LOG[:at])
    parts.messages(SPEAKERS, {})
    folded(parts, LOG[at:], at)
    assert parts.messages(SPEAKERS, {}) == whole.messages(SPEAKERS, {})
    assert (parts.first_ms, parts.last_ms, parts.tokens) == (whole.first_ms, whole.last_ms, whole.tokens)
    assert "来自 审阅者_7：完成报告" in str(whole.messages(SPEAKERS, {}))


def test_an_agents_messages_leave_out_what_counted_for_nothing() -> None:
    def saved(n: int, kind: str, /, **body: Any) -> Saved:
        return Saved(n, kind, "a", 1, 0, body)

    said = {"role": "assistant", "content": "好", "message_id": "out_reviewer_001", "自定": [1]}
    loaded = Loaded(
        (
            saved(1, "model"), saved(2, "reply", message={**said, "content": "半"}, taken=False),
            saved(3, "reply", message=said), saved(4, "compact", message={"role": "user", "content": "摘要"}),
            saved(5, "note", kind="endpoint"),
        ),
        {"role_id": "reviewer", "pending_tool_calls": [{"question_id": "ASK"}], "created_ms": 1, "updated_ms": 2},
    )  # fmt: skip
    docs = agent_docs(loaded, (), number=7, name="审阅者_7", role="reviewer", status="completed")
    assert docs.messages["messages"] == [said]
    assert docs.metadata["pending_tool_calls"] == [], "whoever has delivered waits for nothing"
    assert (docs.metadata["thinking_mode"], docs.metadata["task_summary"]) == ("fast", "")


@pytest.fixture
def shanghai() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Shanghai"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("shanghai")
def test_times_are_local_without_a_zone() -> None:
    assert local(1_783_774_800_999) == "2026-07-11T21:00:00"
