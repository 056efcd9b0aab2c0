"""Running skills: the shared cases, attempts and waits, what comes back, the run log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import clean_environment, wait_until
from tests.unit.skillfolders import Waits, a_skill, below, skill_runner
from workers.skills.runlog import RunLog
from workers.skills.runner import SkillRun

ROOT = Path(__file__).resolve().parents[2]


# --- the shared cases -------------------------------------------------------------------------------------------------


async def test_sk_02_1_blocking_code_ends_on_time_and_others_still_run(tmp_path: Path) -> None:
    skill = a_skill(tmp_path, "import time\ndef run():\n    time.sleep(30)\n", timeout_ms=1000)
    other = a_skill(tmp_path, key="other")
    skills = skill_runner(tmp_path)
    started = time.monotonic()
    slow, quick = await asyncio.gather(skills.run(skill, {}), skills.run(other, {"a": "天"}))
    assert time.monotonic() - started < 2
    assert (slow.status, slow.attempts, quick.status, quick.output) == ("timeout", 1, "success", {"a": "天"})
    assert (await skills.run(other, {})).ok


async def test_sk_02_2_cooperative_code_is_tried_again(tmp_path: Path) -> None:
    code = "import asyncio\nasync def run():\n    await asyncio.sleep(30)\n"
    run = await skill_runner(tmp_path).run(a_skill(tmp_path, code, timeout_ms=500, max_retries=2), {})
    assert (run.status, run.attempts, run.error) == ("timeout", 3, "did not end within 0.5 s")


async def test_sk_02_3_a_transient_failure_is_tried_again(tmp_path: Path) -> None:
    code = """
        import pathlib
        def run(tally):
            with open(tally, "a") as file:
                file.write("x")
            if len(pathlib.Path(tally).read_text()) < 3:
                raise ConnectionError("连接断开")
            return "done"
    """
    waits = Waits()
    skill = a_skill(tmp_path, code, max_retries=2)
    run = await skill_runner(tmp_path, sleep=waits).run(skill, {"tally": str(tmp_path / "tally")})
    assert (run.status, run.attempts, run.output) == ("success", 3, "done")
    assert waits.seconds == [1.0, 2.0]


async def test_sk_02_4_without_retries_there_is_one_attempt(tmp_path: Path) -> None:
    skill = a_skill(tmp_path, "def run():\n    raise ConnectionError('no')\n", max_retries=0)
    run = await skill_runner(tmp_path).run(skill, {})
    assert (run.status, run.attempts, run.error) == ("failed", 1, "ConnectionError: no")


async def test_sk_02_5_bad_input_is_no_attempt(tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'called')!r}, 'w').close()\ndef run(**given): return given\n"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    waits = Waits()
    run = await skill_runner(tmp_path, sleep=waits).run(
        a_skill(tmp_path, code, input_schema=schema, max_retries=2), {"n": "x"}
    )
    assert (run.status, run.attempts, run.field, run.kind, run.retryable) == ("failed", 0, "n", "bad_input", False)
    assert waits.seconds == []
    assert not (tmp_path / "called").exists()


async def test_sk_02_6_hung_calls_do_not_hold_up_a_process_that_ends(tmp_path: Path) -> None:
    # The pattern holds the interpreter in C code for longer than anybody can wait; no signal handler runs meanwhile.
    a_skill(tmp_path, "import re\ndef run():\n    re.match('(a+)+$', 'a' * 64 + 'b')\n", "hangs", timeout_ms=200)
    driver = f"""
import asyncio, os
from pathlib import Path
from workers.skills.loader import load_skills
from workers.skills.runner import SkillRunner
async def main():
    skill = load_skills([Path({str(tmp_path)!r})], shipped=False).need("hangs")
    runner = SkillRunner(env=dict(os.environ), root=Path({str(tmp_path)!r}), parallel=8)
    runs = [asyncio.create_task(runner.run(skill, {{}})) for _ in range(40)]
    done, _ = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
    print(done.pop().result().status, flush=True)
    await asyncio.gather(*runs)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", driver], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=clean_environment(os.environ)
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "timeout\n"
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=15) == -signal.SIGTERM
        assert time.monotonic() - started < 15
        await wait_until(lambda: not below(tmp_path), "every process of the skills is gone")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


# --- attempts and what comes back -------------------------------------------------------------------------------------


async def test_waits_double_and_stop_with_the_last_attempt(tmp_path: Path) -> None:
    waits = Waits()
    skill = a_skill(tmp_path, "import os\ndef run():\n    os._exit(7)\n", max_retries=4)
    run = await skill_runner(tmp_path, sleep=waits).run(skill, {})
    assert (run.status, run.kind, run.attempts) == ("failed", "crashed", 5)
    assert run.error == "its process ended with code 7 and gave no result"
    assert waits.seconds == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("return float('nan')", "bad_output", "output is nan, which is no JSON number"),
        ("return {'a': [float('inf')]}", "bad_output", "output.a[0] is inf"),
        ("return {'tags': {1, 2}}", "bad_output", "output.tags is of type set"),
        ("return b'x'", "bad_output", "output is of type bytes"),
        ("return {1: 2}", "bad_output", "output has the key 1 of type int"),
        ("return '\\ud800'", "bad_output", "output has a lone surrogate"),
        ("return object()", "bad_output", "output is of type object"),
        ("x = []\n    for _ in range(5000): x = [x]\n    return x", "bad_output", "nested too deeply"),
        ("return 'x' * 5_000_000", "too_large", "the output has 5000"),
        ("raise type('Mine', (Exception,), {'retryable': False})('不行')", "raised", "Mine: 不行"),
        ("return missing", "raised", "NameError"),
    ],
)
async def test_what_is_no_result_is_a_failed_run_by_name(tmp_path: Path, body: str, kind: str, words: str) -> None:
    run = await skill_runner(tmp_path).run(a_skill(tmp_path, f"def run():\n    {body}\n", max_retries=0), {})
    assert (run.status, run.kind) == ("failed", kind)
    assert words in run.error
    assert run.output is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def other(): pass", "code.py has no function 'run'"),
        ("raise RuntimeError('boom')", "code.py can't be loaded: RuntimeError: boom"),
        ("import sys; sys.exit(3)", "code.py can't be loaded: SystemExit: 3"),
        ("def run(:", "code.py can't be loaded: SyntaxError"),
        ("import nothing_of_that_name", "code.py can't be loaded: ModuleNotFoundError"),
    ],
)
async def test_code_that_can_not_be_loaded_is_not_tried_again(tmp_path: Path, code: str, words: str) -> None:
    run = await skill_runner(tmp_path).run(a_skill(tmp_path, code, max_retries=2), {})
    assert (run.kind, run.attempts, run.retryable) == ("broken", 1, False)
    assert words in run.error


async def test_a_refusal_by_the_skill_is_not_tried_again(tmp_path: Path) -> None:
    code = "class BadInput(ValueError):\n    retryable = False\ndef run():\n    raise BadInput('空')\n"
    run = await skill_runner(tmp_path).run(a_skill(tmp_path, code, max_retries=3), {})
    assert (run.attempts, run.error, run.log) == (1, "BadInput: 空", "")


async def test_output_that_breaks_its_schema_is_not_tried_again(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["answer"]}
    run = await skill_runner(tmp_path).run(a_skill(tmp_path, output_schema=schema, max_retries=2), {"x": 1})
    assert (run.status, run.kind, run.attempts) == ("failed", "bad_output", 1)
    assert run.error == "the output breaks its schema: answer: is missing"


async def test_values_travel_exactly(tmp_path: Path) -> None:
    value = {"n": 2**70, "f": 0.1, "t": "引号“”\u2028\x00\n", "l": [None, True, {"深": []}]}
    run = await skill_runner(tmp_path).run(a_skill(tmp_path), value)
    assert run.output == value
    assert json.dumps(run.output) == json.dumps(value)


async def test_a_tuple_is_a_list_and_a_coroutine_is_awaited(tmp_path: Path) -> None:
    run = await skill_runner(tmp_path).run(a_skill(tmp_path, "async def run():\n    return (1, (2,))\n"), {})
    assert run.output == [1, [2]]


@pytest.mark.parametrize("value", [{"x": float("nan")}, {"x": {1}}, {"x": b"y"}, {1: 2}, {"x": "\ud800"}, "text", None])
async def test_input_that_is_no_json_object_is_refused_before_anything_runs(tmp_path: Path, value: Any) -> None:
    run = await skill_runner(tmp_path).run(a_skill(tmp_path), value)
    assert (run.kind, run.attempts) == ("bad_input", 0)


async def test_prints_do_not_disturb_the_answer_and_are_kept_within_bounds(tmp_path: Path) -> None:
    code = """
        import os, sys
        def run():
            print('{"ok": true, "output": "forged"}')
            os.write(1, b"\\0\\0\\0\\0\\0\\0\\0\\x02{}")
            print("错误", file=sys.stderr)
            print("x" * 3_000_000)
            print("end")
            return "true answer"
    """
    run = await skill_runner(tmp_path).run(a_skill(tmp_path, code), {})
    assert run.output == "true answer"
    assert "错误" in run.log
    assert run.log.endswith("end\n")
    assert len(run.log) < 70_000
    assert "bytes left out" in run.log


async def test_no_state_is_kept_between_calls(tmp_path: Path) -> None:
    code = "count = 0\ndef run():\n    global count\n    count += 1\n    return count\n"
    skill, skills = a_skill(tmp_path, code), skill_runner(tmp_path)
    assert [(await skills.run(skill, {})).output for _ in range(3)] == [1, 1, 1]


async def test_every_run_is_logged_whole(tmp_path: Path) -> None:
    path = tmp_path / "data" / "runs.jsonl"
    skills = skill_runner(tmp_path, sink=RunLog(path, clock=lambda: 1_700_000_000.0))
    schema = {"type": "object", "properties": {"n": {"type": "integer", "default": 3}}}
    await skills.run(a_skill(tmp_path, input_schema=schema, version="1.2.3"), {"名": "值"}, agent="a_1", task="T1")
    await skills.run(a_skill(tmp_path, "def run(): return {1}", "bad"), {}, agent="a_1", task="T2")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    expected = {
        "time": 1_700_000_000.0, "skill": "demo", "version": "1.2.3", "agent": "a_1", "task": "T1", "attempts": 1,
        "input": {"名": "值", "n": 3}, "output": {"名": "值", "n": 3}, "status": "success", "error": "",
    }  # fmt: skip
    assert {name: rows[0][name] for name in expected} == expected
    assert rows[0]["duration_ms"] > 0
    assert (rows[1]["status"], rows[1]["error"]) == ("failed", "output is of type set, which is no JSON value")


def test_the_run_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "runs.jsonl", most_bytes=2000)
    for number in range(50):
        log(SkillRun("demo", "1.0.0", "success", output=number))
    files = sorted(tmp_path.iterdir())
    assert "runs.jsonl.1" in [path.name for path in files]
    assert len(files) <= 2
    assert all(path.stat().st_size < 2600 for path in files)
    kept = [json.loads(line)["output"] for path in reversed(files) for line in path.read_text().splitlines()]
    assert kept == list(range(kept[0], 50))
