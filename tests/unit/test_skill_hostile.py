"""What a hostile or broken skill can't do: to the worker, to its secrets, to the machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.kit.embedded import FOLDER
from tests.support import clean_environment, wait_until
from tests.unit.skillfolders import a_skill, below, skill_runner
from workers.skills.loader import load_skills
from workers.skills.process import Limits

ROOT = Path(__file__).resolve().parents[2]
SPACES = pytest.mark.parametrize("space", [True, False], ids=["process-space", "reaper"])


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
        skills = skill_runner(tmp_path, env={**os.environ, **secrets, "WANTED": "yes"}, process_space=space)
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
    skills = skill_runner(tmp_path, data_dir=tmp_path / "data", env={**os.environ, "ROLECALL_CONFIG": str(config)})
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
    skills = skill_runner(tmp_path, process_space=space)
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
    skills = skill_runner(tmp_path, process_space=space)
    run = await skills.run(a_skill(tmp_path, code, timeout_ms=1500), {"marks": str(marks)})
    assert run.status == "timeout"
    assert len(list(marks.iterdir())) == 3
    assert below(tmp_path) == []


@SPACES
async def test_what_a_skill_leaves_running_ends_with_its_call(tmp_path: Path, space: bool) -> None:
    code = """
        import subprocess, sys
        def run():
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            return "done"
    """
    run = await skill_runner(tmp_path, process_space=space).run(a_skill(tmp_path, code), {})
    assert run.output == "done"
    assert below(tmp_path) == []


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
    skills = skill_runner(tmp_path, process_space=space, limits=Limits(processes=40))
    for apart in (False, True):
        skill = a_skill(tmp_path, code, f"bomb-{int(apart)}", max_retries=2)
        run = await skills.run(skill, {"apart": apart})
        assert (run.status, run.kind, run.attempts) == ("failed", "limit", 1)
        assert run.error == "was stopped: more than 40 processes"
        assert below(tmp_path) == []
    assert (await skills.run(a_skill(tmp_path), {"a": 1})).ok


async def test_a_skill_that_takes_too_much_memory_is_stopped(tmp_path: Path) -> None:
    skills = skill_runner(tmp_path, limits=Limits(memory_bytes=200 * 1024**2))
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
    skills = skill_runner(tmp_path)
    run = await skills.run(skill, {})
    assert run.status == "failed"
    assert words in run.error
    assert (await skills.run(a_skill(tmp_path, key="after"), {"ok": 1})).output == {"ok": 1}


async def test_endless_output_is_bounded(tmp_path: Path) -> None:
    skills = skill_runner(tmp_path)
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
    run = await skill_runner(tmp_path).run(a_skill(tmp_path, code), {})
    scratch, home, mode, cwd = run.output
    assert (scratch, mode, cwd) == (home, "0o40700", str(tmp_path))
    assert not Path(scratch).exists()


async def test_a_cancelled_run_ends_its_process(tmp_path: Path) -> None:
    code = "import time\ndef run(mark):\n    open(mark, 'w').close()\n    time.sleep(600)\n"
    mark = tmp_path / "started"
    task = asyncio.create_task(
        skill_runner(tmp_path).run(a_skill(tmp_path, code, timeout_ms=600_000), {"mark": str(mark)})
    )
    await wait_until(mark.exists, "the skill runs")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert below(tmp_path) == []


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
        assert len(below(tmp_path)) >= 3
    finally:
        worker.kill()
        worker.wait()
    await wait_until(lambda: not below(tmp_path), "everything below the killed worker is gone")


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
    skill, skills = a_skill(tmp_path, code), skill_runner(tmp_path, parallel=2)
    runs = await asyncio.gather(*(skills.run(skill, {"folder": str(folder)}) for _ in range(6)))
    assert max(run.output for run in runs) <= 2


async def test_instructions_can_not_be_run(tmp_path: Path) -> None:
    folder = tmp_path / "howto"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: howto\ndescription: d\n---\nRead.")
    run = await skill_runner(tmp_path).run(load_skills([tmp_path], shipped=False).need("howto"), {})
    assert (run.kind, run.attempts) == ("broken", 0)


@pytest.mark.parametrize(
    "text", ['"; touch {mark}; "', "$(touch {mark})", "`touch {mark}`", "a\ntouch {mark}", "--help"]
)
async def test_sc_02_text_that_would_mean_something_to_a_shell_is_data(tmp_path: Path, text: str) -> None:
    mark = tmp_path / "sc02_pwned"
    text = text.replace("{mark}", str(mark))
    skills = skill_runner(tmp_path)
    run = await skills.run(a_skill(tmp_path), {"text": text, text: 1})
    assert run.output == {"text": text, text: 1}
    assert not mark.exists()
