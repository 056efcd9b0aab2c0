"""One skill folder -> one `Skill`, or what is wrong with it.

Guarantees: reads ``skill.json`` and ``SKILL.md`` and nothing else; never imports or runs the skill; an entry point that
leads out of the folder, a schema that is none, a default that breaks its own schema are found here and not at the first
call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from protocol.kit.frontmatter import Front, FrontError, Problem, decode, split
from protocol.record import Json
from workers.skills.schema import schema_fault

MANIFEST: Final = "skill.json"
INSTRUCTIONS: Final = "SKILL.md"
REQUIREMENTS: Final = "requirements.txt"

KEY: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_VERSION: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_ENTRY: Final = re.compile(r"(?P<file>[^:\0\\]+\.py):(?P<function>[A-Za-z_][A-Za-z0-9_]*)")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FLEET: Final = re.compile(r"(REDIS|ROLECALL|OPENAI|LD|DYLD|PYTHON)_?.*", re.IGNORECASE)
"""Variables that no skill may ask for: the fleet's own, and those that change what a process loads."""

CATEGORIES: Final = ("search", "file", "code", "data", "other")
TIERS: Final = ("main", "organize", "sub")
Tier = Literal["main", "organize", "sub"]
Fits = Callable[[Json], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill that can be called, or (``entry_file`` empty) instructions that an agent can read.

    ``env`` are the variables that its process sees besides the usual few. ``instructions`` is the text of SKILL.md.
    """

    key: str
    name: str
    description: str
    folder: Path
    category: str = "other"
    version: str = "1.0.0"
    entry_file: str = ""
    entry_function: str = ""
    timeout_ms: int = 30_000
    max_retries: int = 2
    input_schema: Mapping[str, Json] | None = None
    output_schema: Mapping[str, Json] | None = None
    tiers: tuple[Tier, ...] = ()
    idempotent: bool = False
    is_active: bool = True
    env: tuple[str, ...] = ()
    instructions: str = ""

    @property
    def callable(self) -> bool:
        """False for instructions only."""
        return bool(self.entry_file)

    @property
    def requirements(self) -> Path | None:
        """Its ``requirements.txt`` where it has one."""
        path = self.folder / REQUIREMENTS
        return path if self.callable and path.is_file() else None


def read_skill(folder: Path) -> tuple[Skill | None, list[Problem], list[str]]:
    """``(skill, problems, warnings)`` of one folder: a skill only where nothing is wrong."""
    reader = _Reader(folder)
    skill = reader.read()
    return (None if reader.problems else skill), reader.problems, reader.warnings


class _Reader:
    """Collects everything that is wrong with one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def read(self) -> Skill | None:
        manifest = self.folder / MANIFEST
        front = self._front()
        if not manifest.exists():
            return self._open_format(front) if front is not None else None
        fields = self._manifest(manifest)
        return self._with_code(fields, front, manifest) if fields is not None else None

    def _bad(self, file: str, message: str, line: int = 0) -> None:
        self.problems.append(Problem(self.folder / file, line, message))

    def _front(self) -> Front | None:
        """SKILL.md taken apart and checked by the rules of the open format."""
        try:
            front = split(decode((self.folder / INSTRUCTIONS).read_bytes()))
        except FileNotFoundError:
            self._bad(INSTRUCTIONS, "is missing: say there what the skill does, when to use it, when not")
            return None
        except OSError as error:
            self._bad(INSTRUCTIONS, f"can't be read: {error.strerror}")
            return None
        except FrontError as error:
            self._bad(INSTRUCTIONS, error.message, error.line)
            return None
        name, description = (front.text.get("name") or "").strip(), (front.text.get("description") or "").strip()
        if not KEY.fullmatch(name):
            self._bad(INSTRUCTIONS, f"name {name!r} is no key: use 1 to 64 of a-z 0-9 -", front.lines.get("name", 1))
        elif name != self.folder.name:
            self._bad(INSTRUCTIONS, f"name {name!r} is not the folder's, {self.folder.name!r}", front.lines["name"])
        if not 1 <= len(description) <= 1024:
            line = front.lines.get("description", 1)
            self._bad(INSTRUCTIONS, f"description has {len(description)} characters: give 1 to 1024", line)
        return front

    def _open_format(self, front: Front) -> Skill:
        return Skill(
            key=self.folder.name,
            name=(front.text.get("name") or "").strip(),
            description=(front.text.get("description") or "").strip(),
            folder=self.folder,
            instructions=front.body,
        )

    def _manifest(self, path: Path) -> dict[str, Json] | None:
        try:
            fields = json.loads(decode(path.read_bytes()), parse_constant=_no_constant)
        except FrontError as error:
            self._bad(MANIFEST, error.message, error.line)
        except json.JSONDecodeError as error:
            self._bad(MANIFEST, f"is no JSON: {error.msg}", error.lineno)
        except (OSError, ValueError, RecursionError) as error:
            self._bad(MANIFEST, f"can't be read: {error}")
        else:
            if isinstance(fields, dict):
                return fields
            self._bad(MANIFEST, "is no JSON object")
        return None

    def _with_code(self, fields: dict[str, Json], front: Front | None, path: Path) -> Skill | None:
        key = fields.get("skill_key")
        if not isinstance(key, str) or not KEY.fullmatch(key):
            self._bad(MANIFEST, f"skill_key {key!r} is no key: use a-z 0-9 -, a letter or digit first, at most 64")
        elif key != self.folder.name:
            self._bad(MANIFEST, f"skill_key {key!r} is not the folder's name, {self.folder.name!r}")
        texts: dict[str, Json] = {name: self._text(fields, name) for name in ("name", "description")}
        entry = _ENTRY.fullmatch(str(fields.get("entry_point")))
        if entry is None:
            self._bad(MANIFEST, f"entry_point {fields.get('entry_point')!r} is not of the form 'file.py:function'")
        else:
            self._entry(entry["file"])
        env = self._list(fields, "env", lambda item: isinstance(item, str) and bool(_VARIABLE.fullmatch(item)))
        for name in env:
            if _FLEET.fullmatch(name):
                self._bad(MANIFEST, f"env {name!r} is the fleet's own: no skill sees it")
        tiers = self._list(fields, "tiers", lambda item: item in TIERS)
        schemas = {name: self._schema(fields, name) for name in ("input_schema", "output_schema")}
        values = {
            "category": self._one_of(fields, "category", CATEGORIES, "other"),
            "version": self._version(fields),
            "timeout_ms": self._whole(fields, "timeout_ms", 30_000, 1, 3_600_000),
            "max_retries": self._whole(fields, "max_retries", 2, 0, 10),
            "idempotent": self._switch(fields, "idempotent", False),
            "is_active": self._switch(fields, "is_active", True),
        }
        known = {"skill_key", "entry_point", "env", "tiers", *texts, *schemas, *values}
        unknown = [name for name in fields if name not in known]
        if unknown:
            self.warnings.append(f"{path}: unknown keys are passed over: {', '.join(map(repr, unknown))}")
        if self.problems or entry is None or front is None:
            return None
        return Skill(
            key=str(key), folder=self.folder, entry_file=entry["file"], entry_function=entry["function"],
            env=tuple(env), tiers=tuple(tier for tier in TIERS if tier in tiers), instructions=front.body,
            **texts, **schemas, **values,
        )  # fmt: skip

    def _entry(self, file: str) -> None:
        inside = self.folder.resolve()
        target = (self.folder / file).resolve()
        if not target.is_relative_to(inside):
            self._bad(MANIFEST, f"entry_point {file!r} is not inside the folder")
        elif not target.is_file():
            self._bad(MANIFEST, f"entry_point {file!r}: there is no such file")

    def _text(self, fields: Mapping[str, Json], name: str) -> str:
        value = fields.get(name)
        if not isinstance(value, str) or not value.strip() or len(value) > 1024:
            self._bad(MANIFEST, f"{name} {value!r}: give 1 to 1024 characters of text")
            return ""
        return value.strip()

    def _one_of(self, fields: Mapping[str, Json], name: str, words: tuple[str, ...], default: str) -> Json:
        value = fields.get(name, default)
        if value not in words:
            self._bad(MANIFEST, f"{name} {value!r}: must be one of {', '.join(words)}")
        return value

    def _version(self, fields: Mapping[str, Json]) -> Json:
        value = fields.get("version", "1.0.0")
        if not isinstance(value, str) or not _VERSION.fullmatch(value):
            self._bad(MANIFEST, f"version {value!r} is no semantic version such as '1.0.0'")
        return value

    def _whole(self, fields: Mapping[str, Json], name: str, default: int, least: int, most: int) -> Json:
        value = fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self._bad(MANIFEST, f"{name} {value!r}: must be a whole number from {least} to {most}")
        return value

    def _switch(self, fields: Mapping[str, Json], name: str, default: bool) -> Json:
        value = fields.get(name, default)
        if not isinstance(value, bool):
            self._bad(MANIFEST, f"{name} {value!r}: must be true or false")
        return value

    def _list(self, fields: Mapping[str, Json], name: str, fits: Fits) -> list[str]:
        value = fields.get(name, [])
        if not isinstance(value, list) or not all(fits(item) for item in value):
            what = f"of {', '.join(TIERS)}" if name == "tiers" else "of names of variables"
            self._bad(MANIFEST, f"{name} {value!r}: must be a list {what}")
            return []
        return value

    def _schema(self, fields: Mapping[str, Json], name: str) -> Json:
        value = fields.get(name)
        if value is None:
            return None
        fault = schema_fault(value, arguments=name == "input_schema")
        if fault:
            self._bad(MANIFEST, f"{name} {fault}")
        return value


def _no_constant(word: str) -> Json:
    raise ValueError(f"{word} is no JSON number")
