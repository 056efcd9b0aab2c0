"""The access rules that the security page shows: a worker can do its work under them, and not much else."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import redis

from protocol.keys import Keys
from protocol.kit.embedded import find_binary, start_server
from protocol.record import Record, Trace
from protocol.stores.client import connect
from protocol.stores.redis_dispatch import Ref, RoleStreams
from protocol.stores.redis_log import RedisLog
from tests.support import clean_environment, wait_until

ROOT = Path(__file__).resolve().parents[2]
SPACE = "conv_20300101_000000_001"
ROLE = "---\nid: reviewer\nname: 审阅\ndescription: 算一算。\nexecutor: skill\nskill: calculator\n---\n"
SECRET = "w" + secrets.token_hex(8)


def rules() -> list[str]:
    """The words of the ``ACL SETUSER`` command on the page."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    block = re.findall(r"<!-- acl -->\n```\n(.*?)```", page, re.DOTALL)[0]
    words: list[str] = block.replace(">PASSWORD", f">{SECRET}").split()
    assert words[:2] == ["ACL", "SETUSER"]
    return words[2:]


@pytest.fixture
def admin_url(tmp_path: Path) -> Iterator[str]:
    """A server of this test's own: users are a server's, not a prefix's."""
    server = start_server(
        find_binary(), tmp_path / "server", aof=False, password=secrets.token_urlsafe(8), die_with_parent=True
    )
    yield server.url
    server.stop()


@pytest.fixture
def worker_url(admin_url: str) -> str:
    admin = redis.Redis.from_url(admin_url)
    admin.execute_command("ACL", "SETUSER", *rules())
    admin.close()
    return re.sub(r"//:[^@]*@", f"//reviewer:{SECRET}@", admin_url)


async def test_a_worker_works_under_the_rules(admin_url: str, worker_url: str, tmp_path: Path) -> None:
    (tmp_path / "roles").mkdir()
    (tmp_path / "roles" / "reviewer.md").write_text(ROLE, encoding="utf-8")
    client = connect(admin_url)
    log, streams = RedisLog(client, Keys()), RoleStreams(client, Keys())
    await log.create(SPACE, meta={"kind": "session", "policy": "reassign", "session": SPACE})
    detail = {"role": "reviewer", "attempt": 1, "agent": "reviewer_1", "input": {"expression": "6 * 7"}}
    trace = Trace(parent_id=None, session_id=SPACE)
    assigned = Record(id="sum", who="leader", time=1, event="task_assigned", what="算", detail=detail, trace=trace)
    await log.append(SPACE, [assigned])
    await streams.enqueue([Ref("reviewer", SPACE, "sum", 1)])
    env = clean_environment(
        os.environ,
        {"REDIS_URL": worker_url, "ROLECALL_ROLES": str(tmp_path / "roles"), "ROLECALL_BEAT_S": "0.2",
         "ROLECALL_DEAD_S": "5", "ROLECALL_DATA": str(tmp_path / "data"), "PYTHONPATH": str(ROOT)}.items(),
    )  # fmt: skip
    with (tmp_path / "worker.log").open("wb") as out:
        worker = subprocess.Popen(
            [sys.executable, "-m", "arq", "workers.roles.reviewer"], env=env, cwd=tmp_path, stdout=out, stderr=out
        )
    try:

        async def done() -> bool:
            state = await log.task_state(SPACE, "sum")
            return state is not None and state.state == "completed"

        await wait_until(done, "the task is completed", 30)
        check = [sys.executable, "-m", "arq", "workers.roles.reviewer", "--check"]
        healthy = subprocess.run(check, env=env, cwd=tmp_path, capture_output=True, check=False)
        assert healthy.returncode == 0, healthy.stderr.decode()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    finally:
        worker.kill()
        worker.wait()
        await client.aclose()
    said = (tmp_path / "worker.log").read_text(encoding="utf-8")
    assert "NOPERM" not in said
    assert "refused" not in said


@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",),
        ("CONFIG", "GET", "requirepass"),
        ("ACL", "LIST"),
        ("KEYS", "*"),
        ("EVAL", "return 1", "0"),
        ("XLEN", "rc:role:other"),
        ("HGETALL", "rc:{handmade}:meta"),
        ("GET", "mine"),
    ],
    ids=" ".join,
)
def test_what_a_worker_has_no_use_for_is_refused(worker_url, command):
    worker = redis.Redis.from_url(worker_url)
    try:
        with pytest.raises(redis.exceptions.NoPermissionError):
            worker.execute_command(*command)
    finally:
        worker.close()


def test_what_the_page_says_that_rules_can_not_do_is_so(admin_url, worker_url):
    """A worker's credential can write past the script, into every session that it reaches."""
    worker = redis.Redis.from_url(worker_url)
    try:
        entry = cast("bytes", worker.xadd(f"rc:{{{SPACE}}}:log", {"id": "伪造"}))
        assert worker.hset(f"rc:{{{SPACE}}}:tasks", "T", "completed|1||||0|0||") == 1
    finally:
        worker.close()
    assert b"-" in entry
