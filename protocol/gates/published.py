"""The published JSON Schema of a record, generated from the model.

Guarantees: draft 2020-12, the same text for the same model; what the model lets through the schema lets through and the
other way round (one difference is the standard's: 1.0 is an integer to JSON Schema, the model wants 1). The keys that
an event needs in ``detail`` stand in it as an annotation (``x-detail``). Writes no file:
``python -m protocol.gates > protocol/schema/record.schema.json``.
"""

from __future__ import annotations

from typing import Final

import orjson

from protocol.record import EVENT_TABLE, Json, Record

SCHEMA_ID: Final = "urn:rolecall:record:1"
_END_ONLY: Final = r"(?!\n)"
"""``$`` ends a text in the model's engine and in ECMA's; some validators let one line break follow. Not with this."""


def record_schema() -> dict[str, Json]:
    """The JSON Schema of a record (draft 2020-12)."""
    made = Record.model_json_schema()
    out: dict[str, Json] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **made,
        "title": "Record",
        "description": "One record of the protocol: exactly seven fields.",
        "x-detail": {event: list(rule.needs) for event, rule in EVENT_TABLE.items() if rule.needs},
    }
    _tidy(out)
    return out


def _tidy(node: Json) -> None:
    """Close the patterns at the end of the text; leave out titles and what speaks of Python."""
    if isinstance(node, list):
        for child in node:
            _tidy(child)
        return
    if not isinstance(node, dict):
        return
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        node["pattern"] = pattern + _END_ONLY
    if isinstance(node.get("properties"), dict):
        for child in node["properties"].values():
            if isinstance(child, dict):
                child.pop("title", None)
    for child in node.values():
        _tidy(child)


def schema_text() -> str:
    """The schema as the file says it: indented by two, a line break at the end."""
    return orjson.dumps(record_schema(), option=orjson.OPT_INDENT_2).decode() + "\n"
