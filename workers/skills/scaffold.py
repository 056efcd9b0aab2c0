"""A new skill folder that runs as it is: ``skills new KEY``.

Guarantees: never overwrites anything; the folder that it makes passes ``skills check``.
"""

from __future__ import annotations

import json
from pathlib import Path

from protocol.errors import SkillError
from workers.skills.manifest import INSTRUCTIONS, KEY, MANIFEST

_INSTRUCTIONS = """\
---
name: {key}
description: One sentence that says what it does and when to use it.
---

# {title}

Say what it does.

## When to use it

- …

## When not

- …

## Input

- `text` (text): …
- `times` (whole number, 1 if left out): …

## Output

- `text` (text): …
"""

_CODE = '''\
"""Say what it does."""

from __future__ import annotations


class BadInput(ValueError):
    """Raise this for input that no further try can mend: the call fails at once."""

    retryable = False


def run(text: str, times: int) -> dict[str, object]:
    """Called with the input's fields; what it returns must be JSON. Runs in a process of its own."""
    if not text.strip():
        raise BadInput("text is blank")
    return {"text": text * times}
'''


def new_skill(key: str, parent: Path) -> Path:
    """Make ``parent/key``. Raises `SkillError` where the key is none or the folder is there already."""
    if not KEY.fullmatch(key):
        raise SkillError(f"{key!r} is no skill key", mend="use a-z 0-9 -, a letter or digit first, at most 64")
    folder = parent / key
    if folder.exists():
        raise SkillError(f"{str(folder)!r} is there already", mend="choose another key or remove it")
    title = key.replace("-", " ").capitalize()
    manifest = {
        "skill_key": key,
        "name": title,
        "description": "One sentence that says what it does and when to use it.",
        "category": "other",
        "version": "1.0.0",
        "entry_point": "skill.py:run",
        "timeout_ms": 30_000,
        "max_retries": 2,
        "idempotent": True,
        "input_schema": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "what to repeat"},
                "times": {"type": "integer", "minimum": 1, "maximum": 100, "default": 1},
            },
            "required": ["text"],
            "additionalProperties": False,
        },
        "output_schema": {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
    }
    files = {
        MANIFEST: json.dumps(manifest, indent=2, ensure_ascii=False) + "\n",
        INSTRUCTIONS: _INSTRUCTIONS.format(key=key, title=title),
        "skill.py": _CODE,
    }
    try:
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SkillError(f"{str(folder)!r} can't be made: {error.strerror}", mend="choose another directory") from None
    return folder
