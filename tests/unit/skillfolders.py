"""Skill folders for tests: one call makes a folder with its manifest, its instructions and its code."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

from workers.skills.loader import load_skills
from workers.skills.manifest import Skill

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
