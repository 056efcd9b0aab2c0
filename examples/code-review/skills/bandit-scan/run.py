"""bandit on the files of one slice. The entry point that ``skill.json`` names; everything else is in `review`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from review.analysers import bandit


def run(root: str, files: list[str]) -> dict[str, Any]:
    """``{"items": [finding, …], "scanned": files read, "left_out": findings beyond the limit, "unread": [...]}``."""
    return dict(bandit(root, files))
