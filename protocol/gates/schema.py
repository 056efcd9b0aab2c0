"""Gate 4: what the event table asks of ``detail``, its size, and the JSON Schema that a role or task declares for it.

Guarantees: nothing is fetched: a ``$ref`` that leaves the declared schema is refused. A declared schema is compiled
once. A record without one costs next to nothing here. Never changes anything.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import orjson

from protocol.errors import ConfigError, GateRefused
from protocol.record import (
    ATTEMPT_MAX,
    DETAIL_MAX_BYTES,
    REASONS,
    Json,
    Record,
    canonical,
    is_identifier,
    missing_detail,
)

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

VERDICTS: Final = ("confirmed", "partial", "rejected")
_CACHE_MAX: Final = 256
_PROBLEMS_MAX: Final = 20

Problems = list[tuple[str, str]]


def check_schema(
    record: Record, detail_schema: Mapping[str, Json] | None = None, *, detail_max_bytes: int = DETAIL_MAX_BYTES
) -> None:
    """Let ``record`` through gate 4, or raise GateRefused (gate 4) whose ``problems`` name every offending field.

    ``detail_max_bytes`` bounds the JSON of ``detail`` (then ``reason`` is ``too_large``). Raises ConfigError for a
    declared schema that is no schema, or that refers to another document.
    """
    try:
        size = len(canonical(record.detail))
    except ValueError as error:  # a record built by hand, past gate 3
        raise GateRefused(f"detail: {error}", gate=4, path="detail", kind="schema") from None
    if size > detail_max_bytes:
        raise GateRefused(
            f"detail: {size:,} bytes of JSON, at most {detail_max_bytes:,}",
            gate=4,
            path="detail",
            kind="too_large",
            reason="too_large",
            mend="put the content into the artifact store and name its digest and size",
        )
    problems: Problems = [(path, _missing(record, path)) for path in missing_detail(record)]
    _shapes(record, problems)
    if detail_schema is not None and not problems:
        problems += schema_problems(record.detail, detail_schema, path="detail")
    if problems:
        path, message = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise GateRefused(f"{path}: {message}{more}", gate=4, path=path, problems=tuple(problems), kind="schema")


def _missing(record: Record, path: str) -> str:
    names = path.removeprefix("detail.").split("|")
    return f"missing: a record {record.event!r} needs {' or '.join(f'`{name}`' for name in names)} in `detail`"


# -- the event table's shapes ----------------------------------------------------------------------------------------


def _shapes(record: Record, problems: Problems) -> None:
    detail, event = record.detail, record.event
    if "attempt" in detail:
        attempt = detail["attempt"]
        if type(attempt) is not int or not 1 <= attempt <= ATTEMPT_MAX:
            problems.append(("detail.attempt", f"{attempt!r} is not an integer from 1 to {ATTEMPT_MAX}"))
    check = _BY_EVENT.get(event)
    if check is not None:
        check(detail, problems)


def _text(detail: dict[str, Json], key: str, problems: Problems, *, null: bool = False) -> None:
    if key in detail and not (isinstance(detail[key], str) and detail[key]) and not (null and detail[key] is None):
        problems.append((f"detail.{key}", f"{detail[key]!r} is not text" + (" or null" if null else "")))


def _assigned(detail: dict[str, Json], problems: Problems) -> None:
    _text(detail, "role", problems)


def _pending(detail: dict[str, Json], problems: Problems) -> None:
    _text(detail, "role", problems)
    _text(detail, "waiting_for", problems, null=True)


def _processing(detail: dict[str, Json], problems: Problems) -> None:
    _text(detail, "worker", problems)


def _completed(detail: dict[str, Json], problems: Problems) -> None:
    if "verdict" not in detail:
        return
    if detail["verdict"] not in VERDICTS or not isinstance(detail["verdict"], str):
        problems.append(("detail.verdict", f"{detail['verdict']!r} is not one of {', '.join(VERDICTS)}"))
    verifies = detail.get("verifies")
    if not isinstance(verifies, str) or not is_identifier(verifies):
        problems.append(("detail.verifies", f"{verifies!r} is not the id of the verified task"))
    if not isinstance(detail.get("reasons"), list):
        problems.append(("detail.reasons", f"{detail.get('reasons')!r} is not a list of reasons"))


def _failed(detail: dict[str, Json], problems: Problems) -> None:
    if "error" not in detail:
        return
    error = detail["error"]
    if not isinstance(error, dict):
        problems.append(("detail.error", f"{error!r} is not an object with kind, message and retryable"))
        return
    for key in ("kind", "message"):
        if not isinstance(error.get(key), str):
            problems.append((f"detail.error.{key}", f"{error.get(key)!r} is not text"))
    if not isinstance(error.get("retryable"), bool):
        problems.append(("detail.error.retryable", f"{error.get('retryable')!r} is not true or false"))


def _retrying(detail: dict[str, Json], problems: Problems) -> None:
    delay = detail.get("delay_s", 0)
    if isinstance(delay, bool) or not isinstance(delay, int | float) or delay < 0:
        problems.append(("detail.delay_s", f"{delay!r} is not a number of seconds >= 0"))
    _text(detail, "reason", problems)


def _blocked(detail: dict[str, Json], problems: Problems) -> None:
    if detail.get("requires_human_intervention", True) is not True:
        problems.append(
            ("detail.requires_human_intervention", f"{detail['requires_human_intervention']!r} must be true")
        )
    _text(detail, "reason", problems)


def _lost(detail: dict[str, Json], problems: Problems) -> None:
    _text(detail, "agent", problems)


def _heartbeat(detail: dict[str, Json], problems: Problems) -> None:
    _text(detail, "current_task", problems, null=True)
    _text(detail, "status", problems)


def _decision(detail: dict[str, Json], problems: Problems) -> None:
    _text(detail, "action", problems)
    _text(detail, "by", problems)


def _violation(detail: dict[str, Json], problems: Problems) -> None:
    if "reason" in detail and detail["reason"] not in REASONS:
        problems.append(("detail.reason", f"{detail['reason']!r} is not one of {', '.join(REASONS)}"))


_BY_EVENT: Final = {
    "task_assigned": _assigned,
    "task_pending": _pending,
    "task_processing": _processing,
    "task_completed": _completed,
    "task_failed": _failed,
    "task_retrying": _retrying,
    "task_blocked": _blocked,
    "task_agent_lost": _lost,
    "heartbeat": _heartbeat,
    "decision": _decision,
    "protocol_violation": _violation,
}

# -- a declared schema -----------------------------------------------------------------------------------------------


class _Compiled:
    """Compiled validators by the canonical JSON of their schema: a memo of a pure function, bounded, thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, Draft202012Validator] = OrderedDict()

    def get(self, schema: Mapping[str, Json]) -> Draft202012Validator:
        key = canonical(dict(schema))
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        made = _compile(key)
        with self._lock:
            self._known[key] = made
            while len(self._known) > _CACHE_MAX:
                self._known.popitem(last=False)
        return made


_compiled: Final = _Compiled()


def compile_schema(schema: Mapping[str, Json]) -> None:
    """Check a schema of ``detail`` before it is used (when a role file is loaded). Raises ConfigError, as at gate 4."""
    try:
        _compiled.get(schema)
    except ValueError as error:
        raise ConfigError(f"the schema of detail is no JSON: {error}", mend="mend the role's schema") from None


def _compile(key: bytes) -> Draft202012Validator:
    from jsonschema import Draft202012Validator  # here: costs 60 ms that a fleet without declared schemas never pays
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    schema = orjson.loads(key)
    outside = next(iter(_outside(schema)), None)
    if outside is not None:
        raise ConfigError(
            f"the schema of detail refers to {outside!r}; nothing is fetched", mend="put it under `$defs`"
        )
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(f"the schema of detail is no JSON Schema: {error.message}", mend="mend it") from None
    except RecursionError:
        raise ConfigError("the schema of detail is nested too deeply", mend="make it flatter") from None
    empty: Registry[Json] = Registry()
    return Draft202012Validator(schema, registry=empty)


def _outside(schema: Json) -> list[str]:
    out: list[str] = []
    stack = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            for word in ("$ref", "$dynamicRef"):
                target = item.get(word)
                if isinstance(target, str) and not target.startswith("#"):
                    out.append(target)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return out


def schema_problems(value: Json, schema: Mapping[str, Json], *, path: str = "$") -> Problems:
    """``(path, message)`` wherever ``value`` does not fit ``schema``, the most telling first; at most 20.

    ``path`` is that of ``value`` itself. Raises ConfigError for a schema that is none, or that refers outside.
    """
    from jsonschema.exceptions import ValidationError, relevance
    from referencing.exceptions import Unresolvable

    compile_schema(schema)
    found: list[ValidationError] = []
    try:
        for error in _compiled.get(schema).iter_errors(value):
            found.append(error)
            if len(found) >= _PROBLEMS_MAX:
                break
    except Unresolvable as error:
        raise ConfigError(f"the schema of detail refers to nothing: {error}", mend="mend the reference") from None
    except RecursionError:
        return [(path, "too deep for its schema")]
    out: Problems = []
    for flaw in sorted(found, key=relevance, reverse=True):
        where = path + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in flaw.absolute_path)
        out.append((where, flaw.message if len(flaw.message) <= 300 else flaw.message[:300] + "…"))
    return out
