"""The keys of a role file, one check each: what is allowed, and the words for what is not.

Guarantees: a check returns a value of the role's type or raises `Wrong` with words that follow the key's name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from protocol.record import Json

STAGES: Final[tuple[Literal["present", "discuss", "summarize"], ...]] = ("present", "discuss", "summarize")
UNSET: Final = object()
"""Given but empty: the default stands."""

SKILL_KEY: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Wrong(Exception):
    """What is wrong with a value, as words that follow the key's name."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value as YAML reads it, and as it was written where it is a single one."""

    value: Json
    text: str | None


Check = Callable[[Given], object]


def _text(most: int, *, required: bool = False) -> Check:
    def check(given: Given) -> object:
        if given.text is None:
            if given.value is None and not required:
                return UNSET
            raise Wrong("is empty: write some text" if given.value is None else "must be one line of text")
        text = given.text.strip()
        if required and not text:
            raise Wrong("is empty: write some text")
        if _CONTROL.search(text):
            raise Wrong("must be one line of text, without control characters")
        if len(text) > most:
            raise Wrong(f"has {len(text)} characters, at most {most} are allowed")
        return text or UNSET

    return check


def _word(words: tuple[str, ...], also: Mapping[str, str] | None = None) -> Check:
    def check(given: Given) -> object:
        if given.value is None:
            return UNSET
        text = (given.text or "").strip()
        text = (also or {}).get(text.casefold(), text.casefold())
        if text not in words:
            shown = given.text if given.text is not None else given.value
            raise Wrong(f"is {shown!r}: must be one of {', '.join(words)}")
        return text

    return check


def _whole(least: int, most: int) -> Check:
    def check(given: Given) -> object:
        value = given.value
        if value is None:
            return UNSET
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise Wrong(f"is {value!r}: must be a whole number from {least} to {most}")
        return value

    return check


def _seconds(most: int) -> Check:
    def check(given: Given) -> object:
        value = given.value
        if value is None:
            return UNSET
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not 0 < value <= most:
            raise Wrong(f"is {value!r}: must be a number of seconds above 0, at most {most}")
        return float(value)

    return check


def _switch(given: Given) -> object:
    if given.value is None:
        return UNSET
    if not isinstance(given.value, bool):
        raise Wrong(f"is {given.value!r}: must be true or false")
    return given.value


def _key(given: Given) -> object:
    if given.value is None:
        return UNSET
    return _skill_key(given.text)


def _skill_key(value: object) -> str:
    if not isinstance(value, str) or not SKILL_KEY.fullmatch(value):
        raise Wrong(f"has {value!r}, which is no skill key: use a-z 0-9 -, a letter or digit first, at most 64")
    return value


def _keys(given: Given) -> object:
    if given.value is None:
        return UNSET
    if not isinstance(given.value, list):
        raise Wrong("must be a list of skill keys")
    keys = [_skill_key(key) for key in given.value]
    if len(set(keys)) != len(keys):
        raise Wrong("names a skill twice")
    return tuple(keys)


def _names(given: Given) -> object:
    value = [given.value] if isinstance(given.value, str) else given.value
    if value is None:
        return UNSET
    if not isinstance(value, list) or not value or not all(isinstance(name, str) and name.strip() for name in value):
        raise Wrong("must be a list of field names")
    if len(set(value)) != len(value):
        raise Wrong("names a field twice")
    return tuple(value)


def _stages(given: Given) -> object:
    value = [given.value] if isinstance(given.value, str) else given.value
    if value is None:
        return UNSET
    if not isinstance(value, list) or not value:
        raise Wrong(f"must be a list of {', '.join(STAGES)}")
    for stage in value:
        if stage not in STAGES:
            raise Wrong(f"has {stage!r}: must be of {', '.join(STAGES)}")
    return tuple(stage for stage in STAGES if stage in value)


def _schema(given: Given) -> object:
    if given.value is None:
        return UNSET
    if not isinstance(given.value, dict):
        raise Wrong("must be a JSON Schema, that is a mapping")
    # Imported here: it is slow to import, few role files have a schema, and `--help` reads none.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(given.value)
    except SchemaError as error:
        where = "".join(f".{part}" for part in error.absolute_path)
        raise Wrong(f"is no JSON Schema: {error.message}{f' (at {where[1:]})' if where else ''}") from None
    return given.value


REQUIRED: Final = ("id", "name", "description")
CHECKS: Final[Mapping[str, Check]] = {
    "id": _text(64, required=True),
    "name": _text(200, required=True),
    "description": _text(1_000, required=True),
    "model": _text(64),
    "thinking_mode": _word(("fast", "thinking")),
    "kind": _word(("master", "verifier")),
    "tier": _word(("main", "organize", "sub"), {"organise": "organize"}),
    "executor": _word(("model", "skill")),
    "skill": _key,
    "skills": _keys,
    "concurrency": _whole(1, 10_000),
    "timeout_s": _seconds(86_400),
    "max_turns": _whole(1, 10_000),
    "output_schema": _schema,
    "merge_key": _names,
    "title": _text(200),
    "priority": _whole(-1_000_000, 1_000_000),
    "stages": _stages,
    "is_final_decider": _switch,
}
"""Every key that is understood, in the order in which it is shown."""
