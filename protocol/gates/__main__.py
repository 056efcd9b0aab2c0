"""Prints the published JSON Schema: ``python -m protocol.gates > protocol/schema/record.schema.json``. Nothing else."""

from __future__ import annotations

import sys

from protocol.gates.published import schema_text

sys.stdout.write(schema_text())
