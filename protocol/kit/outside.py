"""The loop's text: the prompt of an agent that joins by commands, and the base prompt of a fleet's workers.

Guarantees: one source for both, in Markdown files that ship beside this module; what is for the other kind of agent is
left out. Each file is read once. Never puts anything of a user's into a prompt.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Final

from protocol.envelope import Lang
from protocol.errors import ConfigError, Refused

KINDS: Final = ("master", "verifier", "manager")
NAME: Final = "rolecall-protocol"
_HOME: Final = Path(__file__).with_name("outside")
FOLDER: Final = _HOME / NAME
"""The skill's folder, in the open Agent Skills format."""


@cache
def prompt(kind: str, *, fleet: bool, lang: Lang = "en") -> str:
    """The prompt of an agent of ``kind`` (``master``, ``verifier``, ``manager``).

    ``fleet``: what a worker's model is told first: the loop's rules, those of the fleet, its part; in ``lang``. Else
    the rules and the workflow in commands, in English. Raises ConfigError for a kind that there is not.
    """
    if kind not in KINDS or (fleet and kind == "manager"):
        known = ", ".join(KINDS[:2] if fleet else KINDS)
        raise ConfigError(f"there is no prompt for {kind!r}", mend=f"known: {known}")
    if not fleet:
        return f"{_loop()}\n\n{_page(kind)}"
    if lang == "zh":
        rules, *parts = _read(_HOME / "fleet.zh.md").split("\n## ")
        part = next(part for part in parts if part.startswith(f"{kind}\n"))
        return f"{rules.strip()}\n\n{part.partition(chr(10))[2].strip()}"
    rules = _loop().partition("\n")[2].strip()
    part = _page(kind).partition("\n")[2].partition("\n## ")[0].strip()
    return f"{rules}\n{_read(_HOME / 'fleet.md')}\n\n{part}"


def copy_to(directory: Path) -> Path:
    """Put the skill's folder into ``directory`` (a place such as ``.claude/skills``), over an older copy of it; where
    it is now. Raises Refused where a folder of that name is something else, ConfigError where it can't be written."""
    target = directory / NAME
    if target.exists() and not (target / "SKILL.md").is_file():
        raise Refused(f"{str(target)!r} is there and is no copy of the skill", reason="exists", mend="move it away")
    try:
        shutil.copytree(FOLDER, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as error:
        raise ConfigError(f"{str(target)!r} can't be written: {error}", mend="name a place you may write") from None
    return target


def _loop() -> str:
    return _read(FOLDER / "reference" / "loop.md")


def _page(kind: str) -> str:
    return _read(FOLDER / "reference" / f"{kind}.md")


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
