"""The executor `skill` and a role's skills as tools: outcomes, verdicts, tiers, text as data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import FenceLost
from protocol.kit.rolefiles import RoleFile
from protocol.ports import Delivered, Dispatch, Failed, Outcome
from tests.unit.skillfolders import ECHO, skill_folder
from workers.skills.executor import run_skill_task
from workers.skills.loader import load_skills
from workers.skills.runner import SkillRunner
from workers.skills.tools import SkillTools

ROLE = RoleFile(id="analyst", name="分析", description="d", executor="skill", skill="demo")
VERIFIER = replace(ROLE, id="checker", kind="verifier")
HOSTILE = ['"; touch {mark}; "', "$(touch {mark})", "`touch {mark}`", "a\ntouch {mark}", "--help"]


class Fence:
    """Mine, until it is lost."""

    def __init__(self, *, lost: bool = False) -> None:
        self.lost = lost
        self.checks = 0

    async def check(self) -> None:
        self.checks += 1
        if self.lost:
            raise FenceLost("taken over")


def dispatch(detail: Mapping[str, Any], **more: Any) -> Dispatch:
    given = {"space": "S", "task": "T1", "attempt": 1, "role": "analyst", "agent": "analyst_1", "session": "S"}
    return Dispatch(**{**given, "owner": "analyst@h:1:x", "tries": 0, "detail": detail, **more})


async def run(
    tmp_path: Path, code: str, detail: Mapping[str, Any], role: RoleFile = ROLE, *, manifest: Any = None, **more: Any
) -> Outcome:
    """One task of a role whose skill has this code."""
    if not (tmp_path / "demo").exists():
        skill_folder(tmp_path, "demo", code, **(manifest or {}))
    skills = load_skills([tmp_path], shipped=False)
    runner = SkillRunner(env=dict(os.environ), root=tmp_path)
    return await run_skill_task(dispatch(detail, **more), Fence(), role=role, skills=skills, runner=runner)


async def test_the_input_is_the_arguments_and_the_output_the_result(tmp_path: Path) -> None:
    outcome = await run(tmp_path, ECHO, {"input": {"文件": "a.py"}}, manifest={"version": "2.1.0"})
    assert isinstance(outcome, Delivered)
    assert outcome.detail["result"] == {"文件": "a.py"}
    skill = outcome.detail["skill"]
    assert (skill["key"], skill["version"], skill["attempts"]) == ("demo", "2.1.0", 1)
    assert skill["duration_ms"] > 0


async def test_no_input_is_an_empty_one(tmp_path: Path) -> None:
    outcome = await run(tmp_path, ECHO, {})
    assert isinstance(outcome, Delivered)
    assert outcome.detail["result"] == {}


async def test_a_skill_gets_the_context_that_its_schema_names(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"results": {"type": "object"}, "goal": {"type": "string"}}}
    detail = {"input": {"goal": "own"}, "goal": "the session's", "results": {"T0": {"result": 1}}, "prompt": "p"}
    outcome = await run(tmp_path, ECHO, detail, manifest={"input_schema": schema})
    assert isinstance(outcome, Delivered)
    assert outcome.detail["result"] == {"goal": "own", "results": {"T0": {"result": 1}}}


@pytest.mark.parametrize(
    ("code", "detail", "manifest", "kind", "retryable"),
    [
        (ECHO, {"input": {"n": "x"}}, {"input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
         "bad_input", False),
        (ECHO, {"input": "text"}, {}, "bad_input", False),
        ("def run(): return {1}", {}, {}, "bad_output", False),
        (ECHO, {"input": {"a": 1}}, {"output_schema": {"type": "object", "required": ["b"]}}, "bad_output", False),
        ("import os\ndef run(): os._exit(3)", {}, {}, "crashed", True),
        ("import time\ndef run(): time.sleep(60)", {}, {"timeout_ms": 300}, "timeout", True),
        ("def run(): raise ConnectionError('x')", {}, {}, "raised", True),
        ("def other(): pass", {}, {}, "broken", False),
    ],
)  # fmt: skip
async def test_failures_say_whether_another_try_can_help(
    tmp_path: Path, code: str, detail: Any, manifest: Any, kind: str, retryable: bool
) -> None:
    outcome = await run(tmp_path, code, detail, manifest=manifest)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.retryable) == (kind, retryable)
    assert outcome.message.startswith("skill 'demo': ")
    assert outcome.detail["skill"]["key"] == "demo"


async def test_a_failure_carries_what_the_skill_printed(tmp_path: Path) -> None:
    outcome = await run(tmp_path, "def run():\n    print('读到第三行')\n    raise OSError('x')\n", {})
    assert isinstance(outcome, Failed)
    assert "读到第三行" in outcome.detail["log"]


async def test_a_verifier_delivers_a_verdict(tmp_path: Path) -> None:
    code = """
        def run(verifies, delivery):
            items = [{"line": 3, "verdict": "rejected"}]
            return {"verdict": "partial", "reasons": ["第三行有 noqa"], "items": items, "seen": delivery}
    """
    detail = {"verifies": "T0", "input": {"verifies": "T0", "delivery": {"x": 1}}}
    outcome = await run(tmp_path, code, detail, VERIFIER)
    assert isinstance(outcome, Delivered)
    assert {name: outcome.detail[name] for name in ("verdict", "verifies", "reasons", "items", "findings")} == {
        "verdict": "partial", "verifies": "T0", "reasons": ["第三行有 noqa"],
        "items": [{"line": 3, "verdict": "rejected"}], "findings": {"seen": {"x": 1}},
    }  # fmt: skip
    assert "result" not in outcome.detail


async def test_what_a_verifier_verifies_is_the_parent_task_where_nothing_else_is_said(tmp_path: Path) -> None:
    code = "def run(): return {'verdict': 'confirmed', 'reasons': 'seen'}"
    outcome = await run(tmp_path, code, {}, VERIFIER, parent="T7")
    assert isinstance(outcome, Delivered)
    assert (outcome.detail["verifies"], outcome.detail["reasons"]) == ("T7", ["seen"])
    nothing = await run(tmp_path, code, {}, VERIFIER)
    assert isinstance(nothing, Failed)
    assert (nothing.kind, nothing.retryable) == ("bad_input", False)


@pytest.mark.parametrize("output", ["'confirmed'", "{}", "{'verdict': 'CONFIRMED'}", "{'verdict': '不充分'}", "None"])
async def test_a_verdict_is_one_of_three_words_or_a_failure(tmp_path: Path, output: str) -> None:
    outcome = await run(tmp_path, f"def run(): return {output}", {"verifies": "T0"}, VERIFIER)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.retryable) == ("bad_output", False)


async def test_subtasks_travel_only_where_the_output_schema_knows_them(tmp_path: Path) -> None:
    code = "def run(): return {'subtasks': [{'id': 'a', 'role': 'worker'}], 'n': 1}"
    schema = {"type": "object", "properties": {"subtasks": {"type": "array"}}}
    plain = await run(tmp_path / "plain", code, {})
    known = await run(tmp_path / "known", code, {}, manifest={"output_schema": schema})
    assert isinstance(plain, Delivered)
    assert isinstance(known, Delivered)
    assert "subtasks" not in plain.detail
    assert known.detail["subtasks"] == [{"id": "a", "role": "worker"}]


async def test_a_lost_fence_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    skill_folder(tmp_path, "demo", f"def run(): open({str(mark)!r}, 'w').close()")
    skills = load_skills([tmp_path], shipped=False)
    runner = SkillRunner(env=dict(os.environ), root=tmp_path)
    with pytest.raises(FenceLost):
        await run_skill_task(dispatch({}), Fence(lost=True), role=ROLE, skills=skills, runner=runner)
    assert not mark.exists()


async def test_a_role_whose_skill_is_unknown_or_not_for_its_tier_fails_for_good(tmp_path: Path) -> None:
    unknown = await run(tmp_path, ECHO, {}, replace(ROLE, skill="demos"))
    upward = await run(tmp_path, ECHO, {}, replace(ROLE, tier="main"))
    for outcome, words in ((unknown, "did you mean 'demo'?"), (upward, "not for tier 'main'")):
        assert isinstance(outcome, Failed)
        assert (outcome.kind, outcome.retryable) == ("no_skill", False)
        assert words in outcome.message


async def test_a_role_may_shorten_the_time_of_its_skill(tmp_path: Path) -> None:
    code = "import time\ndef run(): time.sleep(60)"
    outcome = await run(tmp_path, code, {}, replace(ROLE, timeout_s=0.3))
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.message) == ("timeout", "skill 'demo': did not end within 0.3 s")


@pytest.mark.parametrize("text", HOSTILE)
async def test_sc_02_task_text_is_data(tmp_path: Path, text: str) -> None:
    mark = tmp_path / "sc02_pwned"
    text = text.replace("{mark}", str(mark))
    outcome = await run(tmp_path, ECHO, {"input": {"text": text}, "prompt": text})
    assert isinstance(outcome, Delivered)
    assert outcome.detail["result"] == {"text": text}
    assert not mark.exists()


# --- as tools ---------------------------------------------------------------------------------------------------------


def tools(tmp_path: Path, *keys: str, tier: Any = "sub") -> SkillTools:
    role = replace(ROLE, executor="model", skill="", skills=keys, tier=tier)
    runner = SkillRunner(env=dict(os.environ), root=tmp_path)
    return SkillTools(load_skills([tmp_path], shipped=False), role, runner, agent="a_1", task="T1")


async def test_an_agent_sees_what_its_role_names_and_its_tier_may_call(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    skill_folder(tmp_path, "one", input_schema=schema, idempotent=True, description="数一数")
    skill_folder(tmp_path, "two", tiers=["main"])
    skill_folder(tmp_path, "three")
    assert [tool.name for tool in tools(tmp_path, "two", "one").list()] == ["two", "one"]
    (first,) = tools(tmp_path, "one").list()
    assert (first.description, first.input_schema, first.idempotent) == ("数一数", schema, True)
    main = tools(tmp_path, "one", "two", "nothing", tier="main")
    assert [tool.name for tool in main.list()] == ["two"]
    assert len(main.refused) == 2
    refused = await main.call("one", {"n": 1})
    assert (refused.ok, refused.error) == (False, "there is no tool 'one' for this agent; there is: two")


async def test_a_call_gives_the_output_or_a_failed_result(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    skill_folder(tmp_path, "one", "def run(n):\n    return 10 // n\n", input_schema=schema)
    called = tools(tmp_path, "one")
    assert (await called.call("one", {"n": "5"})).content == 2
    bad = await called.call("one", {})
    assert (bad.ok, bad.content, bad.error) == (False, None, "failed: bad input: n: is missing")
    zero = await called.call("one", {"n": 0})
    assert zero.error.startswith("failed: ZeroDivisionError")


async def test_instructions_are_read_and_nothing_outside_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "howto"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: howto\ndescription: 怎么做\n---\n先读 reference/a.md。")
    (folder / "reference").mkdir()
    (folder / "reference/a.md").write_text("细节")
    (folder / "link").symlink_to("/etc/hostname")
    (tmp_path / "secret").write_text("x")
    called = tools(tmp_path, "howto")
    (tool,) = called.list()
    assert tool.idempotent
    assert (await called.call("howto", {})).content == "先读 reference/a.md。"
    assert (await called.call("howto", {"file": "reference/a.md"})).content == "细节"
    for path in ("../secret", "/etc/hostname", "link", "reference", "missing", "a\0b"):
        result = await called.call("howto", {"file": path})
        assert not result.ok, path
        assert result.content is None
