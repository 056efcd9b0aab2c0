"""Arguments and results against JSON Schema: defaults, exact coercion of text, errors by field.

Guarantees: a value that is handed on is valid and is what the caller meant: text becomes a number, a truth value or an
object only where the schema asks for exactly that and the text is its one spelling (``"false"`` is false, never true);
everything else is refused by the name of its field. Inputs are never changed in place. A schema never makes this
process fetch anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from protocol.record import Json, canonical

_WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]{0,307})")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,307})(\.[0-9]{1,300})?([eE][+-]?[0-9]{1,3})?")
_SHOWN: Final = 120

Fault = tuple[str, str]
"""``(field, words)``: the field as ``a.b[0]``, or ``$`` for the whole."""


def schema_fault(schema: Json, *, arguments: bool) -> str:
    """What is wrong with a schema of arguments or of a result, as words; "" if nothing is.

    A schema of arguments is one of an object, refers to nothing outside itself, and its defaults are valid.
    """
    if not isinstance(schema, dict):
        return "is no JSON Schema, that is an object"
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"is no JSON Schema: {error.message} (at {_path(error.absolute_path)})"
    except RecursionError:
        return "is nested too deeply"
    for ref in _refs(schema):
        if not isinstance(ref, str) or not ref.startswith("#"):
            return f"refers to {ref!r}: only references inside the schema ('#/…') are followed"
    if not arguments:
        return ""
    if schema.get("type") != "object":
        return 'must have "type": "object": a skill is called with named arguments'
    for name, part in schema.get("properties", {}).items():
        if isinstance(part, dict) and "default" in part:
            faults = check({"type": "object", "properties": {name: part}}, {name: part["default"]})
            if faults:
                return f"has a default that breaks it: {faults[0][0]}: {faults[0][1]}"
    return ""


def fill(schema: Mapping[str, Json] | None, value: Json) -> Json:
    """``value`` with its text coerced exactly and defaults filled in; parts of other shapes are left as they are."""
    return value if schema is None else _fill(schema, value)


def check(schema: Mapping[str, Json] | None, value: Json) -> list[Fault]:
    """Everything that is wrong with ``value``; empty if it is valid."""
    if schema is None:
        return []
    try:
        errors = sorted(_validator(canonical(schema)).iter_errors(value), key=lambda error: list(map(str, error.path)))
    except Unresolvable as error:
        return [("$", f"the schema refers to {error.ref!r}, which is not in it")]
    except RecursionError:
        return [("$", "is nested too deeply")]
    return [_fault(error) for error in errors]


def arguments(schema: Mapping[str, Json] | None, given: Json) -> tuple[dict[str, Json], list[Fault]]:
    """What a skill is called with: ``(arguments, faults)``. Not an object: one fault at ``$``."""
    if not isinstance(given, dict):
        return {}, [("$", f"must be an object of named arguments, not {_short(given)}")]
    filled = fill(schema, given)
    return filled, check(schema, filled)


def _fill(schema: Mapping[str, Json], value: Json) -> Json:
    kind = schema.get("type")
    if isinstance(value, str) and isinstance(kind, str):
        value = _coerce(kind, value)
    elif kind == "integer" and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)  # 5.0 is a whole number to JSON Schema; the skill shall see the int that it asked for
    if isinstance(value, dict):
        parts = schema.get("properties")
        if not isinstance(parts, dict):
            return value
        out = {
            key: _fill(parts[key], inner) if isinstance(parts.get(key), dict) else inner for key, inner in value.items()
        }
        for key, part in parts.items():
            if key not in out and isinstance(part, dict) and "default" in part:
                out[key] = _fill(part, json.loads(json.dumps(part["default"])))  # a copy: the schema is shared
        return out
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [_fill(schema["items"], inner) for inner in value]
    return value


def _coerce(kind: str, text: str) -> Json:
    """The one value of that kind which ``text`` spells, or ``text`` itself."""
    if kind == "integer" and _WHOLE.fullmatch(text):
        return int(text)
    if kind == "number" and _NUMBER.fullmatch(text):
        number = json.loads(text)
        return number if isinstance(number, int) or number not in (float("inf"), float("-inf")) else text
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    if kind in ("object", "array"):
        try:
            inner = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return inner if isinstance(inner, dict if kind == "object" else list) else text
    return text


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Draft202012Validator:
    # An empty registry: without it the library would fetch what a `$ref` names.
    return Draft202012Validator(json.loads(schema), registry=Registry())


def _fault(error: ValidationError) -> Fault:
    path: list[str | int] = list(error.absolute_path)
    if error.validator == "required" and isinstance(error.instance, dict) and isinstance(error.validator_value, list):
        missing = [name for name in error.validator_value if name not in error.instance]
        name = next((name for name in missing if error.message.startswith(repr(name))), missing[0])
        return _path([*path, name]), "is missing"
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
        extra = next((name for name in error.instance if name not in known), None)
        if extra is not None and error.validator_value is False:
            return _path([*path, extra]), f"is not known; known: {', '.join(known) or 'none'}"
    if error.validator == "type":
        wanted = error.validator_value
        words = " or ".join(wanted) if isinstance(wanted, list) else wanted
        return _path(path), f"is {_short(error.instance)}: must be of type {words}"
    message = error.message if len(error.message) <= 300 else f"{error.message[:300]}…"
    return _path(path), message


def _path(parts: Sequence[str | int]) -> str:
    out = ""
    for part in parts:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out or "$"


def _short(value: Json) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def _refs(schema: Any) -> Iterator[object]:
    if isinstance(schema, dict):
        for key, inner in schema.items():
            if key in ("$ref", "$dynamicRef"):
                yield inner
            elif key not in ("const", "enum", "default", "examples"):
                yield from _refs(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _refs(inner)
