"""Running skills: the shared cases, attempts and waits, what a skill can and can't do to the worker."""

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

import psutil
import pytest

from protocol.kit.embedded import FOLDER
from tests.support import clean_environment, wait_until
from tests.unit.skillfolders import a_skill
from workers.skills.process import Limits
from workers.skills.runlog import RunLog
from workers.skills.runner import SkillRun, SkillRunner

ROOT = Path(__file__).resolve().parents[2]
SPACES = pytest.mark.parametrize("space", [True, False], ids=["process-space", "reaper"])


class Waits:
    """Stands in for sleep: notes the waits and does not wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def runner(tmp_path: Path, **more: Any) -> SkillRunner:
    more.setdefault("sleep", Waits())
    more.setdefault("env", dict(os.environ))
    return SkillRunner(root=tmp_path, **more)


def alive(pid: int) -> bool:
    """False too for a process that is dead and only waits to be collected."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def below(marker: str) -> list[int]:
    """Processes of this user whose environment carries the marker in its PATH: what a call left behind."""
    found = []
    for process in psutil.process_iter():
        try:
            if marker in process.environ().get("SKILL_ROOT", "") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


# --- the shared cases -------------------------------------------------------------------------------------------------


async def test_sk_02_1_blocking_code_ends_on_time_and_others_still_run(tmp_path: Path) -> None:
    skill = a_skill(tmp_path, "import time\ndef run():\n    time.sleep(30)\n", timeout_ms=1000)
    other = a_skill(tmp_path, key="other")
    skills = runner(tmp_path)
    started = time.monotonic()
    slow, quick = await asyncio.gather(skills.run(skill, {}), skills.run(other, {"a": "天"}))
    assert time.monotonic() - started < 2
    assert (slow.status, slow.attempts, quick.status, quick.output) == ("timeout", 1, "success", {"a": "天"})
    assert (await skills.run(other, {})).ok


async def test_sk_02_2_cooperative_code_is_tried_again(tmp_path: Path) -> None:
    code = "import asyncio\nasync def run():\n    await asyncio.sleep(30)\n"
    run = await runner(tmp_path).run(a_skill(tmp_path, code, timeout_ms=500, max_retries=2), {})
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
    run = await runner(tmp_path, sleep=waits).run(skill, {"tally": str(tmp_path / "tally")})
    assert (run.status, run.attempts, run.output) == ("success", 3, "done")
    assert waits.seconds == [1.0, 2.0]


async def test_sk_02_4_without_retries_there_is_one_attempt(tmp_path: Path) -> None:
    skill = a_skill(tmp_path, "def run():\n    raise ConnectionError('no')\n", max_retries=0)
    run = await runner(tmp_path).run(skill, {})
    assert (run.status, run.attempts, run.error) == ("failed", 1, "ConnectionError: no")


async def test_sk_02_5_bad_input_is_no_attempt(tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'called')!r}, 'w').close()\ndef run(**given): return given\n"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    waits = Waits()
    run = await runner(tmp_path, sleep=waits).run(
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
        await wait_until(lambda: not below(str(tmp_path)), "every process of the skills is gone")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


# --- attempts and what comes back -------------------------------------------------------------------------------------


async def test_waits_double_and_stop_with_the_last_attempt(tmp_path: Path) -> None:
    waits = Waits()
    skill = a_skill(tmp_path, "import os\ndef run():\n    os._exit(7)\n", max_retries=4)
    run = await runner(tmp_path, sleep=waits).run(skill, {})
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
    run = await runner(tmp_path).run(a_skill(tmp_path, f"def run():\n    {body}\n", max_retries=0), {})
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
    run = await runner(tmp_path).run(a_skill(tmp_path, code, max_retries=2), {})
    assert (run.kind, run.attempts, run.retryable) == ("broken", 1, False)
    assert words in run.error


async def test_a_refusal_by_the_skill_is_not_tried_again(tmp_path: Path) -> None:
    code = "class BadInput(ValueError):\n    retryable = False\ndef run():\n    raise BadInput('空')\n"
    run = await runner(tmp_path).run(a_skill(tmp_path, code, max_retries=3), {})
    assert (run.attempts, run.error, run.log) == (1, "BadInput: 空", "")


async def test_output_that_breaks_its_schema_is_not_tried_again(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["answer"]}
    run = await runner(tmp_path).run(a_skill(tmp_path, output_schema=schema, max_retries=2), {"x": 1})
    assert (run.status, run.kind, run.attempts) == ("failed", "bad_output", 1)
    assert run.error == "the output breaks its schema: answer: is missing"


async def test_values_travel_exactly(tmp_path: Path) -> None:
    value = {"n": 2**70, "f": 0.1, "t": "引号“”\u2028\x00\n", "l": [None, True, {"深": []}]}
    run = await runner(tmp_path).run(a_skill(tmp_path), value)
    assert run.output == value
    assert json.dumps(run.output) == json.dumps(value)


async def test_a_tuple_is_a_list_and_a_coroutine_is_awaited(tmp_path: Path) -> None:
    run = await runner(tmp_path).run(a_skill(tmp_path, "async def run():\n    return (1, (2,))\n"), {})
    assert run.output == [1, [2]]


@pytest.mark.parametrize("value", [{"x": float("nan")}, {"x": {1}}, {"x": b"y"}, {1: 2}, {"x": "\ud800"}, "text", None])
async def test_input_that_is_no_json_object_is_refused_before_anything_runs(tmp_path: Path, value: Any) -> None:
    run = await runner(tmp_path).run(a_skill(tmp_path), value)
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
    run = await runner(tmp_path).run(a_skill(tmp_path, code), {})
    assert run.output == "true answer"
    assert "错误" in run.log
    assert run.log.endswith("end\n")
    assert len(run.log) < 70_000
    assert "bytes left out" in run.log


async def test_no_state_is_kept_between_calls(tmp_path: Path) -> None:
    code = "count = 0\ndef run():\n    global count\n    count += 1\n    return count\n"
    skill, skills = a_skill(tmp_path, code), runner(tmp_path)
    assert [(await skills.run(skill, {})).output for _ in range(3)] == [1, 1, 1]


async def test_every_run_is_logged_whole(tmp_path: Path) -> None:
    path = tmp_path / "data" / "runs.jsonl"
    skills = runner(tmp_path, sink=RunLog(path, clock=lambda: 1_700_000_000.0))
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


# --- what a hostile skill can't do ------------------------------------------------------------------------------------


@SPACES
async def test_a_skill_sees_no_secret_of_the_fleet(tmp_path: Path, space: bool) -> None:
    code = """
        import os
        def run():
            readable, seen = [], {}
            for pid in filter(str.isdigit, os.listdir("/proc")):
                for name in ("environ", "mem"):
                    try:
                        with open(f"/proc/{pid}/{name}", "rb") as file:
                            data = file.read(1_000_000) if name == "environ" else b"?"
                    except OSError:
                        continue
                    if pid != os.readlink("/proc/self"):
                        readable.append(f"{pid}/{name}")
                    seen[pid] = data.decode("utf-8", "replace")
            found = [pid for pid, text in seen.items() if "s3cret" in text]
            return {"env": dict(os.environ), "readable": readable, "found": found}
    """
    secrets = dict.fromkeys(("REDIS_URL", "OPENAI_API_KEY", "ROLECALL_X", "AWS_SECRET_ACCESS_KEY"), "s3cret")
    # This process carries the secret where a skill could look for it: in an environment that /proc shows.
    holder = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, **secrets})
    try:
        skills = runner(tmp_path, env={**os.environ, **secrets, "WANTED": "yes"}, process_space=space)
        run = await skills.run(a_skill(tmp_path, code, env=["WANTED"]), {})
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdin is not None
        holder.stdin.close()
    assert run.ok, run.error
    assert set(run.output["env"]) <= {
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "SKILL_ROOT",
        "WANTED",
    }
    assert run.output["env"]["WANTED"] == "yes"
    assert run.output["found"] == []
    assert run.output["readable"] == []


async def test_files_with_the_fleets_passwords_are_out_of_sight(tmp_path: Path) -> None:
    code = """
        import os, pathlib, subprocess
        def run(folder, config):
            subprocess.run(["umount", folder], capture_output=True)
            return {"listed": os.listdir(folder), "config": pathlib.Path(config).read_text()}
    """
    server, config = tmp_path / "data" / FOLDER, tmp_path / "mine.toml"
    server.mkdir(parents=True)
    (server / "server.conf").write_text("requirepass s3cret")
    config.write_text("redis_url = 's3cret'")
    skills = runner(tmp_path, data_dir=tmp_path / "data", env={**os.environ, "ROLECALL_CONFIG": str(config)})
    run = await skills.run(a_skill(tmp_path, code), {"folder": str(server), "config": str(config)})
    hidden, seen = {"listed": [], "config": ""}, {"listed": ["server.conf"], "config": "redis_url = 's3cret'"}
    assert run.output == (hidden if os.geteuid() == 0 else seen), run.error  # only root can hide files
    assert (server / "server.conf").read_text() == "requirepass s3cret"


@SPACES
async def test_a_skill_can_signal_nobody_outside(tmp_path: Path, space: bool) -> None:
    code = """
        import os
        def run(victims):
            tried = {}
            for pid in victims:
                try:
                    os.kill(pid, 0)
                    tried[str(pid)] = "reached"
                except OSError as error:
                    tried[str(pid)] = type(error).__name__
            return tried
    """
    skills = runner(tmp_path, process_space=space)
    run = await skills.run(a_skill(tmp_path, code), {"victims": [os.getpid(), os.getppid()]})
    assert run.ok, run.error
    assert "reached" not in run.output.values()


@SPACES
async def test_a_timeout_ends_children_and_those_that_left_the_group(tmp_path: Path, space: bool) -> None:
    code = """
        import os, subprocess, sys, time
        def run(marks):
            sleeper = "import os,sys,time; open(sys.argv[1],'w').close(); time.sleep(600)"
            for number in range(2):
                subprocess.Popen([sys.executable, "-c", sleeper, f"{marks}/{number}"], start_new_session=number == 1)
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    open(f"{marks}/2", "w").close()
                    time.sleep(600)
                os._exit(0)
            time.sleep(600)
    """
    marks = tmp_path / "marks"
    marks.mkdir()
    skills = runner(tmp_path, process_space=space)
    run = await skills.run(a_skill(tmp_path, code, timeout_ms=1500), {"marks": str(marks)})
    assert run.status == "timeout"
    assert len(list(marks.iterdir())) == 3
    assert below(str(tmp_path)) == []


@SPACES
async def test_what_a_skill_leaves_running_ends_with_its_call(tmp_path: Path, space: bool) -> None:
    code = """
        import subprocess, sys
        def run():
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            return "done"
    """
    run = await runner(tmp_path, process_space=space).run(a_skill(tmp_path, code), {})
    assert run.output == "done"
    assert below(str(tmp_path)) == []


@SPACES
async def test_a_fork_bomb_is_stopped(tmp_path: Path, space: bool) -> None:
    code = """
        import os, time
        def run(apart):
            for _ in range(8):  # bounded on purpose: 256 processes at the very most, should the limit fail
                if os.fork() == 0 and apart:
                    os.setsid()
            time.sleep(60)
    """
    skills = runner(tmp_path, process_space=space, limits=Limits(processes=40))
    for apart in (False, True):
        skill = a_skill(tmp_path, code, f"bomb-{int(apart)}", max_retries=2)
        run = await skills.run(skill, {"apart": apart})
        assert (run.status, run.kind, run.attempts) == ("failed", "limit", 1)
        assert run.error == "was stopped: more than 40 processes"
        assert below(str(tmp_path)) == []
    assert (await skills.run(a_skill(tmp_path), {"a": 1})).ok


async def test_a_skill_that_takes_too_much_memory_is_stopped(tmp_path: Path) -> None:
    skills = runner(tmp_path, limits=Limits(memory_bytes=200 * 1024**2))
    code = "def run():\n    kept = []\n    while True:\n        kept.append(bytearray(b'x' * 1_000_000))\n"
    run = await skills.run(a_skill(tmp_path, code, max_retries=2), {})
    assert (run.kind, run.attempts) == ("limit", 1)
    assert "bytes of memory" in run.error


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("os._exit(0)", "ended with code 0 and gave no result"),
        ("os.kill(os.getpid(), 9)", "ended by signal 9"),
        ("os.abort()", "ended by signal 6"),
        ("sys.exit('bye')", "called sys.exit('bye')"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import ctypes; ctypes.string_at(0)", "ended by signal 11"),
        ("os.closerange(0, 1000); os._exit(0)", "ended with code 0 and gave no result"),
        ("sys.setrecursionlimit(10**9); f = lambda: f(); f()", ""),
    ],
)
async def test_no_way_to_end_harms_the_worker(tmp_path: Path, body: str, words: str) -> None:
    skill = a_skill(tmp_path, f"import os, sys\ndef run():\n    {body}\n", max_retries=0)
    skills = runner(tmp_path)
    run = await skills.run(skill, {})
    assert run.status == "failed"
    assert words in run.error
    assert (await skills.run(a_skill(tmp_path, key="after"), {"ok": 1})).output == {"ok": 1}


async def test_endless_output_is_bounded(tmp_path: Path) -> None:
    skills = runner(tmp_path)
    run = await skills.run(a_skill(tmp_path, "def run():\n    while True: print('行' * 1000)\n", timeout_ms=700), {})
    assert run.status == "timeout"
    assert len(run.log) < 70_000


async def test_the_scratch_directory_is_private_and_goes_with_the_call(tmp_path: Path) -> None:
    code = """
        import os, pathlib, tempfile
        def run():
            pathlib.Path(tempfile.mkdtemp(), "left").write_text("x")
            return [os.environ["TMPDIR"], os.environ["HOME"], oct(os.stat(os.environ["TMPDIR"]).st_mode), os.getcwd()]
    """
    run = await runner(tmp_path).run(a_skill(tmp_path, code), {})
    scratch, home, mode, cwd = run.output
    assert (scratch, mode, cwd) == (home, "0o40700", str(tmp_path))
    assert not Path(scratch).exists()


async def test_a_cancelled_run_ends_its_process(tmp_path: Path) -> None:
    code = "import time\ndef run(mark):\n    open(mark, 'w').close()\n    time.sleep(600)\n"
    mark = tmp_path / "started"
    task = asyncio.create_task(runner(tmp_path).run(a_skill(tmp_path, code, timeout_ms=600_000), {"mark": str(mark)}))
    await wait_until(mark.exists, "the skill runs")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert below(str(tmp_path)) == []


@SPACES
async def test_a_killed_worker_takes_its_skills_with_it(tmp_path: Path, space: bool) -> None:
    code = """
        import os, subprocess, sys, time
        def run(mark):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            open(mark, "w").close()
            time.sleep(600)
    """
    a_skill(tmp_path, code, "sleeper", timeout_ms=600_000)
    mark = tmp_path / "started"
    driver = f"""
import asyncio, os
from pathlib import Path
from workers.skills.loader import load_skills
from workers.skills.runner import SkillRunner
skill = load_skills([Path({str(tmp_path)!r})], shipped=False).need("sleeper")
runner = SkillRunner(env=dict(os.environ), root=Path({str(tmp_path)!r}), process_space={space})
asyncio.run(runner.run(skill, {{"mark": {str(mark)!r}}}))
"""
    worker = subprocess.Popen([sys.executable, "-c", driver], cwd=ROOT, env=clean_environment(os.environ))
    try:
        await wait_until(mark.exists, "the skill runs")
        assert len(below(str(tmp_path))) >= 3
    finally:
        worker.kill()
        worker.wait()
    await wait_until(lambda: not below(str(tmp_path)), "everything below the killed worker is gone")


async def test_at_most_so_many_run_at_once(tmp_path: Path) -> None:
    code = """
        import os, time
        def run(folder):
            mine = f"{folder}/{os.environ['TMPDIR'].rpartition('/')[2]}"
            open(mine, "w").close()
            time.sleep(0.1)
            count = len(os.listdir(folder))
            os.unlink(mine)
            return count
    """
    folder = tmp_path / "now"
    folder.mkdir()
    skill, skills = a_skill(tmp_path, code), runner(tmp_path, parallel=2)
    runs = await asyncio.gather(*(skills.run(skill, {"folder": str(folder)}) for _ in range(6)))
    assert max(run.output for run in runs) <= 2


async def test_instructions_can_not_be_run(tmp_path: Path) -> None:
    folder = tmp_path / "howto"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: howto\ndescription: d\n---\nRead.")
    from workers.skills.loader import load_skills

    run = await runner(tmp_path).run(load_skills([tmp_path], shipped=False).need("howto"), {})
    assert (run.kind, run.attempts) == ("broken", 0)


@pytest.mark.parametrize(
    "text", ['"; touch {mark}; "', "$(touch {mark})", "`touch {mark}`", "a\ntouch {mark}", "--help"]
)
async def test_sc_02_text_that_would_mean_something_to_a_shell_is_data(tmp_path: Path, text: str) -> None:
    mark = tmp_path / "sc02_pwned"
    text = text.replace("{mark}", str(mark))
    skills = runner(tmp_path)
    run = await skills.run(a_skill(tmp_path), {"text": text, text: 1})
    assert run.output == {"text": text, text: 1}
    assert not mark.exists()
