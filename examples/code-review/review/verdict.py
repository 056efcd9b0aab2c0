"""What a context rule answers: a verdict with its reason, or None where it has nothing to add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from review.source import Source

Verdict = Literal["confirmed", "partial", "rejected"]
Answer = tuple[Verdict, str] | None
Rule = Callable[[Source, int, str], Answer]
"""From the file, the line and the rule's name to the answer. Pure."""
