"""Puts scans and verdicts together. The entry point that ``skill.json`` names; everything else is in `review`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from review.digest import digest


def run(root: str, scans: list[Any], verdicts: list[Any]) -> dict[str, Any]:
    """``{"facts": [sentence, …], "counts": {…}, "worst": [finding with its code, …]}``."""
    return digest(root, scans, verdicts)
