"""From an agent's last message to what a delivery's ``detail`` says.

Guarantees: without a schema the text is the result, whole; with one, the text goes through gate 1 and the schema before
it counts, also where the endpoint promised to constrain it. A verifier's delivery is a verdict. Raises GateRefused with
the path of what is wrong; never fills in what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from protocol.errors import GateRefused, TaskError
from protocol.gates import object_from_text, repair
from protocol.kit.rolefiles import RoleFile
from protocol.ports import Dispatch
from protocol.record import Json

VERDICTS: Final = ("confirmed", "rejected", "partial")
VERDICT_SCHEMA: Final[Mapping[str, Json]] = {
    "type": "object",
    "properties": {
        "verdict": {"type": "string", "enum": list(VERDICTS)},
        "reasons": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    },
    "required": ["verdict", "reasons"],
}
PROBLEMS_MAX: Final = 5


def schema_of(role: RoleFile, dispatch: Dispatch) -> Mapping[str, Json] | None:
    """The shape of the delivery: the task's own, else the role's; a verifier without one gives a verdict."""
    own = dispatch.detail.get("output_schema")
    if isinstance(own, dict) and own:
        return own
    if role.output_schema is not None:
        return role.output_schema
    return VERDICT_SCHEMA if isinstance(dispatch.detail.get("verifies"), str) else None


def detail_of(text: str, schema: Mapping[str, Json] | None, dispatch: Dispatch) -> tuple[dict[str, Json], list[str]]:
    """``result``, or ``verdict`` with ``verifies`` and ``reasons``; ``subtasks`` where the schema knows them. And what
    gate 1 repaired, in words."""
    verifies = dispatch.detail.get("verifies")
    if schema is None:
        return {"result": text}, []
    value, notes = _value(text, schema)
    check(value, schema)
    if isinstance(verifies, str):
        return _verdict(value, verifies), notes
    detail: dict[str, Json] = {"result": value}
    properties = schema.get("properties")
    if isinstance(value, dict) and isinstance(properties, dict) and "subtasks" in properties:
        subtasks = value.get("subtasks")
        if isinstance(subtasks, list) and subtasks:
            detail["subtasks"] = subtasks
    return detail, notes


def check(value: Json, schema: Mapping[str, Json]) -> None:
    """Raise GateRefused naming every path (five at most) where ``value`` does not fit ``schema``; TaskError where the
    schema itself is at fault."""
    from jsonschema import Draft202012Validator, SchemaError  # slow to import; only deliveries with a schema need it
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    nothing: Registry[Json] = Registry()  # a schema that refers to another document is not fetched
    try:
        Draft202012Validator.check_schema(dict(schema))
        validator = Draft202012Validator(dict(schema), registry=nothing)
        found = sorted(validator.iter_errors(value), key=lambda error: list(map(str, error.path)))
    except (SchemaError, Unresolvable) as error:
        words = f"the output_schema can't be used: {str(error).splitlines()[0]}"
        raise TaskError(words, kind="bad_schema", retryable=False, mend="mend it in the role or the task") from error
    if not found:
        return
    problems = tuple((_path(error.path), error.message) for error in found)
    words = "; ".join(f"{path}: {message[:300]}" for path, message in problems[:PROBLEMS_MAX])
    raise GateRefused(f"does not fit the schema: {words}", gate=4, path=problems[0][0], problems=problems)


def _value(text: str, schema: Mapping[str, Json]) -> tuple[Json, list[str]]:
    if schema.get("type") not in (None, "object"):
        return repair(text)
    required = schema.get("required")
    return object_from_text(text, required=tuple(required) if isinstance(required, list) else ())


def _path(parts: Iterable[str | int]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _verdict(value: Json, verifies: str) -> dict[str, Json]:
    given = value if isinstance(value, dict) else {}
    verdict, reasons = given.get("verdict"), given.get("reasons")
    if verdict not in VERDICTS:
        raise GateRefused(f"the verdict is {verdict!r}, not one of {', '.join(VERDICTS)}", gate=4, path="$.verdict")
    listed = reasons if isinstance(reasons, list) else [reasons] if isinstance(reasons, str) else []
    detail: dict[str, Json] = {"verdict": verdict, "verifies": verifies, "reasons": listed}
    if isinstance(given.get("items"), list):
        detail["items"] = given["items"]  # a verdict an item: the merge looks for them here
    rest = {key: kept for key, kept in given.items() if key not in ("verdict", "reasons", "verifies", "items")}
    if rest:
        detail["findings"] = rest
    return detail
