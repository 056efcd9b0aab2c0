"""Skill folders on a path -> the skills there are, and which of them an agent may call.

Guarantees: a broken folder and a key found twice are reported by name while the rest load; the first of the path order
wins; tiers are enforced here, in code. Never imports or runs a skill.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from protocol.errors import SkillError
from protocol.kit.frontmatter import Problem
from workers.skills.manifest import INSTRUCTIONS, MANIFEST, Skill, read_skill


@dataclass(frozen=True, slots=True)
class Loaded:
    """Skills by key, what is wrong, and what is worth a line in the log."""

    skills: Mapping[str, Skill]
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()

    def need(self, key: str) -> Skill:
        """The skill, or a `SkillError` of one line: the known ones, or what is wrong with its folder."""
        skill = self.skills.get(key)
        if skill is not None and skill.is_active:
            return skill
        if skill is not None:
            raise SkillError(f"skill {key!r} is switched off", mend=f"set is_active in {skill.folder / MANIFEST}")
        for problem in self.problems:
            if key in (problem.path.name, problem.path.parent.name):
                raise SkillError(f"skill {key!r} is broken: {problem}", mend="mend that file")
        near = get_close_matches(key, self.skills, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SkillError(f"unknown skill {key!r}", mend=f"{hint}known: {', '.join(sorted(self.skills)) or 'none'}")

    def for_agent(self, tier: str, keys: Sequence[str]) -> tuple[list[Skill], list[str]]:
        """``(skills, refusals)``: of the ``keys`` that a role names, those that its tier may call."""
        allowed: list[Skill] = []
        refused: list[str] = []
        for key in dict.fromkeys(keys):
            try:
                skill = self.need(key)
            except SkillError as error:
                refused.append(str(error))
                continue
            if may_call(skill, tier):
                allowed.append(skill)
            else:
                named = ", ".join(skill.tiers) or "none"
                refused.append(f"skill {key!r} is not for tier {tier!r} (its tiers: {named}; 'sub' may call every one)")
        return allowed, refused


def may_call(skill: Skill, tier: str) -> bool:
    """``sub`` may call every skill, ``organize`` and ``main`` only those that name them."""
    return tier == "sub" or tier in skill.tiers


def shipped_skills_dir() -> Path:
    """The directory of the skills that ship."""
    return Path(__file__).resolve().parent / "shipped"


def load_skills(paths: Sequence[Path], *, shipped: bool = True) -> Loaded:
    """The skills below ``paths`` (each a directory of skill folders, or one skill folder), then the shipped ones."""
    skills: dict[str, Skill] = {}
    problems: list[Problem] = []
    warnings: list[str] = []
    folders: dict[Path, Path] = {}
    mine = len(paths)
    places: list[tuple[Path, bool]] = []
    for number, path in enumerate([*paths, *([shipped_skills_dir()] if shipped else [])]):
        new = [folder for folder in _folders(path, problems) if folders.setdefault(folder.resolve(), folder) is folder]
        places += [(folder, number >= mine) for folder in new]
    for folder, is_shipped in places:
        skill, faults, notes = read_skill(folder)
        problems += faults
        warnings += notes
        if skill is None:
            continue
        first = skills.setdefault(skill.key, skill)
        if first is not skill and is_shipped:
            warnings.append(f"{first.folder} takes the place of the shipped skill {skill.key!r}")
        elif first is not skill:
            problems.append(Problem(folder, 0, f"the key {skill.key!r} is taken by {first.folder}, which loads first"))
    return Loaded(skills, tuple(problems), tuple(warnings))


def _folders(path: Path, problems: list[Problem]) -> list[Path]:
    """The skill folders at ``path``: itself, or those right below it that hold one of the two files."""
    path = path.absolute()
    if _is_skill(path):
        return [path]
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        problems.append(Problem(path, 0, f"can't be read as a directory of skills: {error.strerror}"))
        return []
    return [path / name for name in names if not name.startswith((".", "_")) and _is_skill(path / name)]


def _is_skill(path: Path) -> bool:
    return (path / MANIFEST).is_file() or (path / INSTRUCTIONS).is_file()
