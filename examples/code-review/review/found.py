"""A finding as the review reports it: one place and rule, everyone who found it, what the verifiers say.

Guarantees: pure; the order is total, so that the five worst are the same five every time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

SEVERITIES = ("high", "medium", "low")
VERDICTS = ("confirmed", "partial", "unverified", "rejected")
"""From the best to the worst: of several verdicts on one finding the best counts."""

Key = tuple[str, int, str]


@dataclass(slots=True)
class Found:
    """One finding. ``verdict`` is one of `VERDICTS`; ``reasons`` are the verifiers'."""

    file: str
    line: int
    rule: str
    message: str
    severity: str
    found_by: list[str] = field(default_factory=list)
    verdict: str = "unverified"
    reasons: list[str] = field(default_factory=list)

    @property
    def place(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"

    @property
    def stands(self) -> bool:
        return self.verdict != "rejected"

    @property
    def rank(self) -> tuple[int, int, int, str, int, str]:
        """Smaller is worse: the severity (one step less where it is a fault under a condition only), then how sure it
        is, then how many tools found it, then the place."""
        severity = index(SEVERITIES, self.severity) + (self.verdict == "partial")
        return severity, index(VERDICTS, self.verdict), -len(self.found_by), self.file, self.line, self.rule

    @property
    def unjudged_rank(self) -> tuple[int, int, str, int, str]:
        """The same as the scanners see it, whatever the verifiers have said so far."""
        return index(SEVERITIES, self.severity), -len(self.found_by), self.file, self.line, self.rule

    def judged(self, verdict: str, reasons: Iterable[str]) -> None:
        """Take up one verdict: the first, or a better one than before."""
        if self.verdict == "unverified" or index(VERDICTS, verdict) < index(VERDICTS, self.verdict):
            self.verdict, self.reasons = verdict, list(reasons)


def index(words: tuple[str, ...], word: str) -> int:
    """The word's place, after all others where it is unknown."""
    return words.index(word) if word in words else len(words)
