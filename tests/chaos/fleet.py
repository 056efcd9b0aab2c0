"""A fleet of real processes for crash tests: leader, manager, workers, each killed and started by name.

Guarantees: everything is started from here and ended by pid from here; a process that dies is started again without its
crash point, as a supervisor would; the end state is read from the log, never from a process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.session import Order, start
from protocol.keys import Keys
from protocol.record import Record
from protocol.stores.client import Client, awaited, connect
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_wake import Wake
from protocol.stores.redis_workers import Workers
from tests.support import dies_with_test, wait_until

ROOT = Path(__file__).resolve().parents[2]
STEP = '''"""A skill for crash tests: appends a line to a file each time it really runs, then does as told."""
import os, time

def run(name, log, sleep=0, fail_first=0, exit_first=0):
    with open(log, "a") as file:
        file.write(name + "\\n")
    with open(log) as file:
        runs = file.read().split().count(name)
    if sleep:
        time.sleep(sleep)
    if runs <= exit_first:
        os._exit(137)
    if runs <= fail_first:
        raise RuntimeError(f"fails on purpose ({runs})")
    return {"name": name, "text": "完成 " + name}
'''
SKILL = {
    "skill_key": "step",
    "name": "step",
    "description": "does as told",
    "category": "other",
    "entry_point": "run.py:run",
    "max_retries": 0,
    "input_schema": {
        "type": "object",
        "required": ["name", "log"],
        "properties": {
            "name": {"type": "string"},
            "log": {"type": "string"},
            "sleep": {"type": "number"},
            "fail_first": {"type": "integer"},
            "exit_first": {"type": "integer"},
        },
    },
}


def write_files(folder: Path) -> None:
    """The role ``stepper`` with its skill ``step``."""
    skill = folder / "skills" / "step"
    skill.mkdir(parents=True)
    (folder / "roles").mkdir()
    (skill / "run.py").write_text(STEP)
    (skill / "skill.json").write_text(json.dumps(SKILL))
    (skill / "SKILL.md").write_text("---\nname: step\ndescription: does as told\n---\nFor tests.\n")
    (folder / "roles" / "stepper.md").write_text(
        "---\nid: stepper\nname: 步行者\ndescription: does as told\nexecutor: skill\nskill: step\nconcurrency: 2\n---\n"
    )


@dataclass
class Child:
    """One process of the fleet: how it is started, and how often it was."""

    name: str
    argv: list[str]
    env: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0


@dataclass
class ChaosFleet:
    """Processes of one test on one server under one prefix."""

    folder: Path
    env: dict[str, str]
    client: Client
    keys: Keys
    log: RedisLog
    workers: Workers
    children: dict[str, Child] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, env: dict[str, str]) -> ChaosFleet:
        folder.mkdir()
        write_files(folder)
        full = {
            **env,
            "ROLECALL_ROLES": str(folder / "roles"),
            "ROLECALL_SKILLS": str(folder / "skills"),
            "PYTHONPATH": str(ROOT),
        }
        return cls.view(folder, full)

    @classmethod
    def view(cls, folder: Path, env: dict[str, str]) -> ChaosFleet:
        """A client's view of a fleet whose files and processes are there already."""
        client, keys = connect(env["REDIS_URL"]), Keys(env["ROLECALL_PREFIX"])
        return cls(folder, env, client, keys, RedisLog(client, keys), Workers(client, keys))

    def start(self, name: str, *, crash_at: str = "", module: str = "", **more: str) -> subprocess.Popen[bytes]:
        """Start a process: ``leader…``, ``manager…`` or ``<role>…`` (the name up to ``.``)."""
        kind = name.partition(".")[0]
        argv = (
            ["coordinator.cli", kind] if kind in ("leader", "manager") else ["arq", module or f"workers.roles.{kind}"]
        )
        child = self.children.setdefault(name, Child(name, argv, {}))
        child.env = {**self.env, **more, **({"ROLECALL_CRASH_AT": crash_at} if crash_at else {})}
        return self._spawn(child)

    def _spawn(self, child: Child) -> subprocess.Popen[bytes]:
        with (self.folder / f"{child.name}.log").open("ab") as out:
            child.process = subprocess.Popen(
                [sys.executable, "-m", *child.argv],
                env=child.env,
                cwd=self.folder,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=dies_with_test(),
            )
        child.starts += 1
        return child.process

    def revive(self) -> list[str]:
        """Start again whoever is dead, without crash points; the names."""
        dead = [c for c in self.children.values() if c.process is not None and c.process.poll() is not None]
        for child in dead:
            child.env.pop("ROLECALL_CRASH_AT", None)
            self._spawn(child)
        return [c.name for c in dead]

    def kill(self, name: str, sign: signal.Signals = signal.SIGKILL) -> int:
        process = self.children[name].process
        assert process is not None
        os.kill(process.pid, sign)
        if sign == signal.SIGKILL:
            process.wait(10)
        return process.pid

    async def until_dead(self, name: str) -> None:
        """Wait until a process died by SIGKILL: its crash point was reached."""
        process = self.children[name].process
        assert process is not None
        await wait_until(lambda: process.poll() is not None, f"{name} dies at its crash point\n{self.logs()}", 20)
        assert process.returncode == -signal.SIGKILL, f"{name} ended with {process.returncode}\n{self.logs()}"

    async def stop(self) -> None:
        """End every process that is left, by pid."""
        for child in self.children.values():
            if child.process is not None and child.process.poll() is None:
                os.kill(child.process.pid, signal.SIGCONT)
                child.process.kill()
                child.process.wait(10)
        await self.client.aclose()

    async def run(self, plan: dict[str, Any], goal: str = "走几步") -> str:
        """Start a session with a plan once the role is known; its id."""

        async def known() -> bool:
            return bool(await awaited(self.client.hexists(self.keys.roles, "stepper")))

        await wait_until(known, f"the role is published\n{self.logs()}", 60)
        return await start(
            Order(goal=goal, plan=plan),
            log=self.log,
            artifacts=Artifacts(self.client, self.keys),
            bell=Wake(self.client, self.keys),
            who="person_test",
        )

    async def records(self, space: str) -> list[tuple[str, Record]]:
        out: list[tuple[str, Record]] = []
        last = "0-0"
        while page := await self.log.tail(space, last):
            out += page
            last = page[-1][0]
        return out

    async def merged(self, space: str) -> bool:
        return bool((await self.log.meta(space)).get("merged"))

    async def until_merged(self, space: str, timeout: float = 30.0, *, revive: bool = True) -> None:
        async def look() -> bool:
            if revive:
                self.revive()
            return await self.merged(space)

        try:
            await wait_until(look, f"{space} is merged", timeout, every=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.story(space)}\n{self.logs()}") from None

    async def story(self, space: str) -> str:
        return "\n".join(f"{e} {r.event} {r.id} {r.who} {r.detail}"[:300] for e, r in await self.records(space))

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))

    async def scrape(self, name: str) -> str:
        """What a process that was started with a metrics port serves."""
        log = self.folder / f"{name}.log"

        def port() -> str:
            return next((w.partition("=")[2] for w in log.read_text().split() if w.startswith("port=")), "")

        at = await wait_until(port, f"{name} serves metrics\n{self.logs()}", 20)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with await asyncio.to_thread(opener.open, f"http://127.0.0.1:{at}/metrics", None, 5) as answer:
            text: str = answer.read().decode()
        return text

    def runs(self, path: Path) -> Counter[str]:
        """How often each step really ran."""
        return Counter(path.read_text().split()) if path.exists() else Counter()


def delivered_once(records: list[tuple[str, Record]], tasks: list[str]) -> None:
    """Each task has exactly one delivery, there is exactly one merge, no identity is doubled."""
    completed = Counter(r.id for _, r in records if r.event == "task_completed")
    assert completed == Counter(tasks), completed
    assert len([r for _, r in records if r.event == "task_merged"]) == 1
    identities = Counter(
        (r.id, r.event, r.attempt if r.is_task else 0, r.detail.get("waiting_for")) for _, r in records
    )
    assert not [i for i, n in identities.items() if n > 1], [i for i, n in identities.items() if n > 1]


def steps(log: Path, *, names: tuple[str, ...] = ("a", "b", "c"), **first: Any) -> dict[str, Any]:
    """A plan: the first step with ``first``, then the others on it."""
    return {
        "tasks": [
            {
                "id": name,
                "role": "stepper",
                "prompt": name,
                "input": {"name": name, "log": str(log), **(first if i == 0 else {})},
                "depends_on": [names[0]] if i else [],
            }
            for i, name in enumerate(names)
        ]
    }
