"""The fleet by the command line on a real server: what a person settles, what is shown, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coordinator.cli.app import App
from coordinator.cli.store import Store
from protocol.kit.settings import Settings
from protocol.record import Record, Trace
from tests.integration.cli_support import SPACE, Cli, in_store, record


def block(cli: Cli, app: App, role: str = "reader") -> None:
    """A task of a fleet role that was tried once and is blocked."""
    cli("create-task-space", SPACE)

    async def publish(store: Store) -> None:
        for name in (role, "writer"):
            await store.roles.publish(name, {"id": name, "name": name, "description": name}, "d")

    in_store(app, publish)
    for step in (
        record("task_assigned", role=role, attempt=1, agent="reader_1", prompt="读", prefix="T1"),
        record("task_processing", attempt=1, worker="w"),
        record("task_failed", attempt=1, error={"kind": "schema", "message": "坏", "retryable": False}),
        record("task_blocked", attempt=1, requires_human_intervention=True, reason="坏"),
    ):
        cli("add-record", "--space", SPACE, stdin=step)


def test_retry_is_a_decision_and_a_new_assignment_with_the_same_work(cli: Cli, app: App) -> None:
    block(cli, app)
    done = cli("task", "retry", "T1", "--space", SPACE, "--why", "密钥补上了", "--as", "person_li", "--json").json
    assert (done["action"], done["outcome"], done["attempt"], done["role"]) == ("retry", "added", 2, "reader")
    decision, assigned = cli("read-records", "--space", SPACE, "--who", "person_li").json["records"]
    assert decision["detail"] | {"why": "密钥补上了", "by": "person_li", "task": "T1"} == decision["detail"]
    assert assigned["event"] == "task_assigned"
    assert assigned["detail"]["prompt"] == "读"
    assert assigned["detail"]["agent"] == "reader_1"
    queued = in_store(app, lambda store: store.streams.backlog(["reader"]))
    assert queued == {"reader": 1}
    assert cli("check-status", "--space", SPACE, "--json").json["tasks"] == {"assigned": 1}
    refused = cli("task", "retry", "T1", "--space", SPACE, "--as", "person_li", expect=1)
    assert "'assigned'" in refused.err
    assert len(cli("read-records", "--space", SPACE, "--who", "person_li").json["records"]) == 2


def test_reassign_gives_the_task_to_another_role_and_refuses_an_unknown_one(cli: Cli, app: App) -> None:
    block(cli, app)
    said = cli("task", "reassign", "T1", "--role", "审校", "--space", SPACE, expect=2)
    assert "known: reader, writer" in said.err
    done = cli("task", "reassign", "T1", "--role", "writer", "--space", SPACE, "--json").json
    assert (done["attempt"], done["role"]) == (2, "writer")
    assert in_store(app, lambda store: store.streams.backlog(["reader", "writer"])) == {"reader": 0, "writer": 1}


def test_accept_completes_a_task_by_hand_once(cli: Cli, app: App) -> None:
    block(cli, app)
    done = cli("task", "accept", "T1", "--result", '{"结论": 3}', "--space", SPACE, "--json").json
    assert done["outcome"] == "added"
    page = cli("read-records", "--space", SPACE, "--event", "decision").json
    assert page["records"][0]["detail"]["result"] == {"结论": 3}
    assert cli("check-status", "--space", SPACE, "--json").json["phase"] == "ready_to_merge"
    cli("task", "cancel", "T1", "--space", SPACE, expect=1)


def test_cancel_ends_a_task(cli: Cli, app: App) -> None:
    block(cli, app)
    assert "added" in cli("task", "cancel", "T1", "--space", SPACE).out
    assert cli("check-status", "--space", SPACE, "--json").json["phase"] == "cancelled"


def test_a_task_that_is_not_there_is_named(cli: Cli) -> None:
    cli("create-task-space", SPACE)
    assert "'T9'" in cli("task", "retry", "T9", "--space", SPACE, expect=2).err


def ask(cli: Cli, app: App) -> None:
    """An agent that waits for an answer."""
    block(cli, app)
    cli("task", "retry", "T1", "--space", SPACE)

    async def park(store: Store) -> None:
        owner = "reader@host:1:a"
        trace = Trace(parent_id=None, session_id=SPACE)

        def made(event: str, **detail: Any) -> Record:
            what = "提问" if event == "task_pending" else event
            return Record.model_validate(
                {
                    "id": "T1",
                    "who": "reader_1",
                    "time": 1,
                    "event": event,
                    "what": what,
                    "detail": detail,
                    "trace": trace,
                }
            )

        steps = [made("task_processing", attempt=2, worker=owner)]
        steps.append(made("task_pending", role="reader", attempt=2, waiting_for="ASK_reader_001"))
        outcomes = await store.log.append(SPACE, steps, owner=owner)
        assert [outcome.outcome for outcome in outcomes] == ["added", "added"], outcomes

    in_store(app, park)


def test_an_answer_goes_to_the_agent_that_asked_and_only_the_first_counts(cli: Cli, app: App) -> None:
    ask(cli, app)
    waits = cli("check-status", "--space", SPACE, "--json").json["waiting_for_person"]
    assert waits[0]["question"] == "ASK_reader_001"
    done = cli("answer", "ASK_reader_001", "用第二版", "--space", SPACE, "--as", "person_li", "--json").json
    assert (done["attempt"], done["role"]) == (3, "reader")
    assigned = cli("read-records", "--space", SPACE, "--event", "task_assigned").json["records"][-1]
    assert assigned["detail"]["agent"] == "reader_1"
    assert assigned["detail"]["answer"] == {"question": "ASK_reader_001", "text": "用第二版", "by": "person_li"}
    late = cli("answer", "ASK_reader_001", "用第一版", "--space", SPACE, expect=1)
    assert "not open" in late.err


def test_workers_are_shown_live_stalled_and_dead(cli: Cli, app: App) -> None:
    async def beat(store: Store) -> None:
        for number, loop_age in ((1, 0.1), (2, 31.0), (3, 0.0)):
            info = {"role": "reader", "host": "h", "pid": number, "loop_age_s": loop_age, "in_hand": number}
            await store.workers.beat(f"reader@h:{number}:x", info)
        await store.workers.bury("reader@h:3:x", "child was killed by SIGKILL")

    in_store(app, beat)
    rows = cli("workers", "--json").json
    assert [(row["worker"], row["state"], row["in_hand"]) for row in rows] == [
        ("reader@h:1:x", "live", 1), ("reader@h:2:x", "stalled", 2), ("reader@h:3:x", "dead", 3)
    ]  # fmt: skip
    keys = {"worker", "role", "host", "pid", "state", "last_beat_s", "loop_age_s", "in_hand"}
    assert all(keys <= set(row) for row in rows)
    assert "SIGKILL" in cli("workers").out


def test_status_has_its_four_parts_and_watch_repeats_it(cli: Cli, app: App) -> None:
    block(cli, app)
    found = cli("status", "--json").json
    assert set(found) == {"sessions", "tasks", "workers", "waiting_for_person"}
    assert found["tasks"] == {"blocked": 1}
    assert found["waiting_for_person"][0]["task"] == "T1"
    assert "waiting for a person" in cli("status").out
    lines = cli("watch", "--json", "--every", "0.2", "--times", "2").out.splitlines()
    assert [set(json.loads(line)) for line in lines] == [set(found)] * 2


def test_roles_shows_what_was_published(cli: Cli, app: App) -> None:
    assert "rolecall up" in cli("roles").out
    block(cli, app)
    assert [(row["role"], row["workers"], row["backlog"]) for row in cli("roles", "--json").json] == [
        ("reader", 0, 0), ("writer", 0, 0)
    ]  # fmt: skip


def test_run_says_at_once_that_no_leader_is_alive_and_starts_nothing(cli: Cli) -> None:
    said = cli("run", "审查代码", "--role", "reader", expect=3)
    assert "no leader is alive" in said.err
    assert cli("session", "list", "--json").json == []


def test_run_refuses_an_unknown_role_and_a_bad_plan(cli: Cli, app: App, tmp_path: Path) -> None:
    block(cli, app)
    assert "known: reader, writer" in cli("run", "目标", "--role", "审校", "--detach", expect=2).err
    plan = tmp_path / "plan.yaml"
    plan.write_text("tasks:\n- {id: a, role: reader, prompt: 读}\n- {id: b, role: nobody}\n", encoding="utf-8")
    said = cli("run", "目标", "--plan", str(plan), "--detach", expect=2)
    assert "'nobody'" in said.err
    assert "reader, writer" in said.err
    cycle = "tasks:\n- {id: a, role: reader, depends_on: [b]}\n- {id: b, role: reader, depends_on: [a]}\n"
    plan.write_text(cycle, encoding="utf-8")
    said = cli("run", "目标", "--plan", str(plan), "--detach", expect=1)
    assert "a -> b -> a" in said.err
    assert cli("session", "list", "--json").json == []
    assert "meeting" in cli("run", "目标", "--flow", "meeting", expect=2).err


def test_a_detached_session_waits_and_can_be_renamed_archived_and_cancelled(cli: Cli, app: App) -> None:
    block(cli, app)
    session = cli("run", "总结三条结论", "--role", "reader", "--detach").out.strip()
    row = cli("session", "list", "--json").json[0]
    assert (row["session"], row["phase"], row["title"]) == (session, "planning", "总结三条结论")
    cli("session", "rename", session, "新的标题")
    assert cli("session", "show", session, "--json").json["title"] == "新的标题"
    assert cli("read-records", "--json").json["records"][0]["detail"]["goal"] == "总结三条结论"
    assert "总结三条结论" in cli("session", "log").out
    assert "not finished" in cli("session", "resume", session, expect=1).err
    assert cli("session", "cancel", session, "--json").json["outcome"] == "added"
    assert cli("session", "show", session, "--json").json["phase"] == "cancelled"
    cli("session", "archive", session)
    assert cli("session", "list", "--json").json == []
    assert cli("session", "list", "--archived", "--json").json[0]["session"] == session


def test_a_wrong_password_and_an_unreachable_server_are_one_clear_message(cli: Cli, settings: Settings) -> None:
    assert settings.redis_url is not None
    head, _, tail = settings.redis_url.partition("@")
    wrong = cli("status", expect=3, env={"REDIS_URL": f"redis://:falsch@{tail}"})
    assert "password" in wrong.err
    assert "falsch" not in wrong.err
    assert len(wrong.err.splitlines()) <= 2
    gone = cli("status", expect=3, env={"REDIS_URL": f"{head}@127.0.0.1:1/0"})
    assert "can't be reached" in gone.err
    assert len(gone.err.splitlines()) <= 2


def test_doctor_names_what_is_wrong_with_the_mend(cli: Cli) -> None:
    found = cli("doctor", "--json", expect=1).json
    assert all(set(row) == {"check", "ok", "mend"} for row in found)
    bad = {row["check"]: row["mend"] for row in found if not row["ok"]}
    assert "rolecall leader" in bad["a leader is alive"]
    assert "a manager is alive" in bad
    good = [row["check"] for row in found if row["ok"]]
    assert "maxmemory-policy: noeviction" in good
    assert "gates: self test" in good


def test_doctor_without_a_server_looks_at_the_installation(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "roles").mkdir()
    (tmp_path / "roles" / "bad.md").write_text("no front matter", encoding="utf-8")
    env = {"REDIS_URL": "", "ROLECALL_ROLES": str(tmp_path / "roles")}
    found = cli("doctor", "--json", expect=1, env=env).json
    roles = next(row for row in found if row["check"].startswith("roles:"))
    assert not roles["ok"]
    assert "bad.md" in roles["mend"]
    assert any(row["check"].startswith("embedded server: not running") for row in found)
