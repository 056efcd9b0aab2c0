"""ruff on the files of one slice. The entry point that ``skill.json`` names; everything else is in `review`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from review.analysers import BUGS, SECURITY, ruff

_SELECT = {"security": SECURITY, "bugs": BUGS}


def run(root: str, files: list[str], rules: str) -> dict[str, Any]:
    """``rules`` is ``security`` or ``bugs``; the result has the form of bandit-scan's."""
    return dict(ruff(root, files, _SELECT[rules]))
