"""Skill folders for tests, a runner that does not wait between attempts, and what a call left running."""

from __future__ import annotations

import json
import os
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil

from workers.skills.loader import load_skills
from workers.skills.manifest import Skill
from workers.skills.runner import SkillRunner

ECHO = "def run(**given):\n    return given\n"


def skill_folder(parent: Path, key: str = "demo", code: str = ECHO, **more: Any) -> Path:
    """Make ``parent/key``; ``more`` are keys of its skill.json (None leaves one out)."""
    folder = parent / key
    folder.mkdir(parents=True)
    manifest = {
        "skill_key": key,
        "name": f"技能 {key}",
        "description": "For a test.",
        "entry_point": "code.py:run",
        "max_retries": 0,
        "timeout_ms": 20_000,
        **more,
    }
    kept = {name: value for name, value in manifest.items() if value is not None}
    (folder / "skill.json").write_text(json.dumps(kept, ensure_ascii=False), encoding="utf-8")
    (folder / "SKILL.md").write_text(f"---\nname: {key}\ndescription: 用于测试。\n---\n# {key}\n", encoding="utf-8")
    (folder / "code.py").write_text(dedent(code), encoding="utf-8")
    return folder


def a_skill(parent: Path, code: str = ECHO, key: str = "demo", **more: Any) -> Skill:
    """The loaded skill of a new folder."""
    return load_skills([skill_folder(parent, key, code, **more)], shipped=False).need(key)


class Waits:
    """Stands in for sleep: notes the waits and does not wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def skill_runner(root: Path, **more: Any) -> SkillRunner:
    """A runner with this process's environment whose skills work in ``root``."""
    more.setdefault("sleep", Waits())
    more.setdefault("env", dict(os.environ))
    return SkillRunner(root=root, **more)


def below(root: Path) -> list[int]:
    """Living processes of skills that work in ``root`` (or below it): what a call left behind."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("SKILL_ROOT", "").startswith(str(root))
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
