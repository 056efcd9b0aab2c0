"""All four gates in a row: raw text -> repair -> normalise -> validate -> schema -> record.

Guarantees: a record comes out with a report of every repair and change, or GateRefused is raised with the report of
what the gates did up to there. Nothing is kept: the caller has the raw text and stores it on a `protocol_violation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocol.errors import GateRefused
from protocol.gates.normalise import normalise
from protocol.gates.repair import choose, repair
from protocol.gates.report import Problem, Report
from protocol.gates.schema import check_schema
from protocol.gates.validate import validate
from protocol.record import DETAIL_MAX_BYTES, Json, Record

_NO_DEFAULT = ("who", "event")


def pass_gates(
    raw: str | bytes | dict[str, Json],
    *,
    now: int,
    session: str,
    new_id: Callable[[str], str],
    strict: bool = False,
    detail_schema: Mapping[str, Json] | None = None,
    detail_max_bytes: int = DETAIL_MAX_BYTES,
) -> tuple[Record, Report]:
    """The record in ``raw`` and what each gate changed. A dict skips gate 1.

    ``now`` in Unix seconds, ``session`` the space's current session, ``new_id`` makes an id from a prefix. Of several
    objects in a text the one with `who` and `event` is taken. Raises GateRefused with ``report`` set; ConfigError for a
    declared schema that is unusable.
    """
    report = Report()
    try:
        value: Json = raw
        if not isinstance(raw, dict):
            value, report.repairs = one_record(raw)
        value, report.changes = normalise(value, now=now, session=session, new_id=new_id, strict=strict)
        record = validate(value)
        check_schema(record, detail_schema, detail_max_bytes=detail_max_bytes)
        return record, report
    except GateRefused as refusal:
        report.problems = [Problem(refusal.gate, path, message) for path, message in refusal.problems]
        report.refused_at = refusal.gate
        refusal.report = report
        raise


def one_record(raw: str | bytes) -> tuple[Json, list[str]]:
    """The one value in a text that is to be a record (of several objects the one with `who` and `event`), and what was
    repaired. Raises GateRefused (gate 1)."""
    try:
        return repair(raw)
    except GateRefused as refusal:
        if refusal.kind != "several":
            raise
    return choose(raw, _looks_like_record, _NO_DEFAULT)


def _looks_like_record(value: dict[str, Json]) -> bool:
    keys = {key.casefold() for key in value}
    return all(key in keys for key in _NO_DEFAULT)
