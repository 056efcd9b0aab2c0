"""Verifies every finding of a scan. The entry point that ``skill.json`` names; everything else is in `review`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from review.verify import verify


def run(
    verifies: str, input: dict[str, Any], delivery: dict[str, Any], role: str = "", prompt: str = ""
) -> dict[str, Any]:
    """``input`` is the scan's, ``delivery`` its result. ``role`` and ``prompt`` are what the scanner was told: the
    method does not depend on them."""
    return {"verifies": verifies, **verify(input["root"], delivery["items"])}
