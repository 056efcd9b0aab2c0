"""Role files: one Markdown file a role, front matter and prompt. Both rooms read them here.

Guarantees: a bad file is named with its line and what is wrong, and the others load; two roles that could be mistaken
for each other (the same id but for case, or the same ``workers.roles.`` name) are both refused by name; unknown keys
are kept and named once; a user's role takes the place of a shipped one of that name, and that is said. Never imports
or runs anything that a role file names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from protocol.errors import RoleError
from protocol.kit import rolefields as f
from protocol.kit.frontmatter import FrontError, Problem, decode, split
from protocol.record import Json, digest, is_name

Stage = Literal["present", "discuss", "summarize"]

MAX_TURNS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFile:
    """One role. The defaults are those of a front matter with only ``id``, ``name`` and ``description``.

    ``concurrency`` and ``timeout_s`` None: the default of whoever runs the turns. ``digest`` is of the whole file, so
    that two hosts can tell whether they know the same role; ``extra`` are the keys that nobody here knows, handed on to
    flows.
    """

    id: str
    name: str
    description: str
    model: str = ""
    thinking_mode: Literal["", "fast", "thinking"] = ""
    kind: Literal["master", "verifier"] = "master"
    tier: Literal["main", "organize", "sub"] = "sub"
    tiered: bool = False
    """True where the file itself names the tier."""
    executor: Literal["model", "skill"] = "model"
    skill: str = ""
    skills: tuple[str, ...] = ()
    concurrency: int | None = None
    timeout_s: float | None = None
    max_turns: int = MAX_TURNS
    output_schema: Mapping[str, Json] | None = None
    merge_key: tuple[str, ...] = ()
    title: str = ""
    priority: int = 999
    stages: tuple[Stage, ...] = f.STAGES
    is_final_decider: bool = False
    extra: Mapping[str, Json] = field(default_factory=dict)
    body: str = field(default="", repr=False)
    digest: str = ""
    path: Path = Path()

    @property
    def module_name(self) -> str:
        """The name after ``workers.roles.``: the id with ``_`` for ``-``."""
        return module_name(self.id)

    def front(self) -> dict[str, Json]:
        """The front matter as plain JSON, defaults filled in: what is published for leaders and people."""
        known: dict[str, Json] = {}
        for key in f.CHECKS:
            value = getattr(self, key)
            known[key] = list(value) if isinstance(value, tuple) else value
        return {**self.extra, **known, "tiered": self.tiered}


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was found: roles by id, what is wrong, and what is worth a line in the log."""

    roles: Mapping[str, RoleFile]
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()

    def get(self, name: str) -> RoleFile | None:
        """The role by its id or its ``workers.roles.`` name, without regard to case."""
        wanted = _same(name)
        return next((role for role in self.roles.values() if _same(role.id) == wanted), None)

    def need(self, name: str) -> RoleFile:
        """The role, or a `RoleError` of one line: the known ones, or what is wrong with its file."""
        role = self.get(name)
        if role is not None:
            return role
        for problem in self.problems:
            if _same(problem.path.stem) == _same(name):
                raise RoleError(f"role {name!r} has a broken file: {problem}", mend="mend that line")
        known = sorted(self.roles)
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise RoleError(f"unknown role {name!r}", mend=f"{hint}known: {', '.join(known) or 'none'}")


def module_name(role_id: str) -> str:
    """``code-reviewer`` -> ``code_reviewer``."""
    return role_id.replace("-", "_")


def shipped_roles_dir() -> Path:
    """The directory of the roles that ship."""
    return Path(__file__).resolve().parents[2] / "workers" / "roles"


def load_roles(paths: Sequence[Path], *, shipped: Path | None = None) -> Loaded:
    """The roles in ``paths`` (directories, or single files) and in ``shipped`` (None: those that ship).

    The user's take the place of shipped ones of that name, also where the user's file is broken: a half-edited role
    must not turn into another one. Pass ``shipped=Path()`` for none.
    """
    mine = _read_all(paths)
    directory = shipped_roles_dir() if shipped is None else shipped
    theirs = _read_all([directory]) if directory != Path() else _Read({}, [], [], {})
    roles = dict(mine.roles)
    warnings = mine.warnings + theirs.warnings
    for role in theirs.roles.values():
        other = mine.taken.get(_same(role.id))
        if other is None:
            roles[role.id] = role
        else:
            warnings.append(f"{other} takes the place of the shipped role {role.id!r}")
    return Loaded(roles, (*mine.problems, *theirs.problems), tuple(warnings))


def load_role(path: Path) -> RoleFile:
    """One file. Raises `RoleError` naming it, the line and what is wrong."""
    role, problems, _ = _read_file(path)
    if role is None:
        raise RoleError("; ".join(str(problem) for problem in problems), mend="mend the role file")
    return role


def role_from_text(text: str, path: Path) -> RoleFile:
    """A role from its file's text; ``path`` gives its name. Raises `RoleError`."""
    role, problems, _ = parse_role(text, path)
    if role is None:
        raise RoleError("; ".join(str(problem) for problem in problems), mend="mend the role file")
    return role


def parse_role(text: str, path: Path) -> tuple[RoleFile | None, list[Problem], list[str]]:
    """``(role, problems, warnings)``: a role only where nothing is wrong."""
    try:
        front = split(text)
    except FrontError as error:
        return None, [Problem(path, error.line, error.message)], []
    problems: list[Problem] = []
    values: dict[str, Json] = {}
    for key, check in f.CHECKS.items():
        if key not in front.values:
            if key in f.REQUIRED:
                problems.append(Problem(path, 1, f"{key!r} is missing from the front matter"))
            continue
        try:
            value = check(f.Given(front.values[key], front.text.get(key)))
        except f.Wrong as wrong:
            problems.append(Problem(path, front.lines[key], f"{key} {wrong}"))
            continue
        if value is not f.UNSET:
            values[key] = value
    problems += [Problem(path, front.lines.get(key, 1), words) for key, words in _whole(values, front.lines, path)]
    if problems:
        return None, sorted(problems, key=lambda problem: problem.line), []
    extra = {key: value for key, value in front.values.items() if key not in f.CHECKS}
    warnings = []
    if extra:
        names = ", ".join(repr(key) for key in extra)
        near = [(key, match[0]) for key in extra if (match := get_close_matches(key, f.CHECKS, n=1, cutoff=0.8))]
        hint = "".join(f"; did you mean {known!r} by {key!r}?" for key, known in near)
        warnings.append(f"{path}: unknown keys are kept and handed to flows: {names}{hint}")
    role = RoleFile(
        **values, tiered="tier" in front.values, extra=extra, body=front.body, digest=digest(text), path=path
    )
    return role, [], warnings


def _whole(values: Mapping[str, Json], lines: Mapping[str, int], path: Path) -> Iterable[tuple[str, str]]:
    """What no single key can know, as ``(key, words)``."""
    role_id = values.get("id")
    if isinstance(role_id, str):
        if not is_name(role_id):
            yield "id", f"id {role_id!r} is no name: use 1 to 64 of A-Z a-z 0-9 _ -"
        elif module_name(role_id).startswith("_"):
            yield "id", f"id {role_id!r} would be a private name of Python: begin it with a letter or digit"
        elif role_id.casefold() != path.stem.casefold():
            yield "id", f"id {role_id!r} is not the file's name: call the file {role_id + '.md'!r}"
    executor = values.get("executor", "model")
    if executor == "skill" and "skill" not in values and "skill" not in lines:
        yield "executor", "executor is 'skill' but no skill is named: add 'skill: <key>'"
    if executor == "model" and values.get("skill"):
        yield "skill", "skill names one that does the work, but executor is 'model': add 'executor: skill'"


@dataclass(slots=True)
class _Read:
    """The files of one side (the user's, or the shipped): ``taken`` has every name that is spoken for."""

    roles: dict[str, RoleFile]
    problems: list[Problem]
    warnings: list[str]
    taken: dict[str, Path]


def _read_all(paths: Sequence[Path]) -> _Read:
    found = _Read({}, [], [], {})
    by_name: dict[str, list[RoleFile]] = {}
    files: dict[Path, Path] = {}  # the same file by two ways is one; its name as given stays (it may be a link)
    for path in paths:
        for file in _files(path, found.problems):
            files.setdefault(file.resolve(), file)
    for file in files.values():
        role, problems, warnings = _read_file(file)
        found.problems += problems
        found.warnings += warnings
        found.taken.setdefault(_same(file.stem), file)
        if role is not None:
            by_name.setdefault(_same(role.id), []).append(role)
    for same in by_name.values():
        if len(same) == 1:
            found.roles[same[0].id] = same[0]
            continue
        for role in same:
            others = ", ".join(f"{other.id!r} in {other.path}" for other in same if other is not role)
            name = f"workers.roles.{role.module_name}"
            found.problems.append(
                Problem(role.path, 0, f"role {role.id!r} and {others} would both be {name}: rename all but one")
            )
    return found


def _files(path: Path, problems: list[Problem]) -> list[Path]:
    """The role files at ``path``; names that begin with ``.`` or ``_``, and a README, are none."""
    if path.is_file():
        return [path]
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        problems.append(Problem(path, 0, f"can't be read as a directory of roles: {error.strerror}"))
        return []
    chosen = (name for name in names if name.endswith(".md") and not name.startswith((".", "_")))
    return [path / name for name in chosen if name.casefold() != "readme.md" and (path / name).is_file()]


def _read_file(path: Path) -> tuple[RoleFile | None, list[Problem], list[str]]:
    try:
        text = decode(path.read_bytes())
    except OSError as error:
        return None, [Problem(path, 0, f"can't be read: {error.strerror}")], []
    except FrontError as error:
        return None, [Problem(path, error.line, error.message)], []
    return parse_role(text, path)


def _same(name: str) -> str:
    return module_name(name).casefold()
