"""The four gates that every record passes before it is stored: repair, normalise, validate, schema.

Guarantees: pure; each gate reports what it changed or why it refused, with the path of the offending field; whatever
comes in, GateRefused is the only exception that the data can cause. Gate 3 judges the seven fields, the 17 events and
the limits; the keys that an event needs in ``detail`` are judged at gate 4, so a record with any event and an empty
``detail`` passes gates 2 and 3. Never stores, never fetches, never asks a clock.
"""

from protocol.gates.chain import pass_gates
from protocol.gates.normalise import default_new_id, normalise
from protocol.gates.published import record_schema, schema_text
from protocol.gates.repair import object_from_text, repair
from protocol.gates.report import Change, Problem, Report
from protocol.gates.schema import check_schema, compile_schema, schema_problems
from protocol.gates.validate import validate

__all__ = [
    "Change",
    "Problem",
    "Report",
    "check_schema",
    "compile_schema",
    "default_new_id",
    "normalise",
    "object_from_text",
    "pass_gates",
    "record_schema",
    "repair",
    "schema_problems",
    "schema_text",
    "validate",
]
