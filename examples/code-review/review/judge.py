"""Judges one finding by what stands around it: confirmed, partial or rejected, with the reason in words.

Guarantees: pure, and the same for every tool's finding on one place; each verdict names the rule it follows. *Rejected*
means that the place shows why the finding is no fault; *partial* that it is one only under a condition that is named;
everything else that the analyser reports a second time is *confirmed*. Trusts no claim of the scanner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from review.rules_bugs import BUG_RULES
from review.rules_security import SECURITY_RULES
from review.source import Source
from review.verdict import Rule, Verdict

_ORDER: Mapping[Verdict, int] = {"confirmed": 0, "partial": 1, "rejected": 2}


class Judgement(NamedTuple):
    """A verdict on one finding, and why."""

    verdict: Verdict
    reason: str


RULES: Mapping[str, Rule] = {**SECURITY_RULES, **BUG_RULES}

_FINE_IN_TESTS = {
    "S101": "asserts are what tests are made of",
    "S105": "a password in a test opens nothing", "S106": "a password in a test opens nothing",
    "S107": "a password in a test opens nothing", "S108": "a test's temporary file is nobody's target",
    "S311": "a test needs no unguessable number", "S110": "a test that swallows an error hurts only itself",
    "S603": "a test starts its own processes", "S607": "a test starts its own processes",
    "S404": "a test starts its own processes",
}  # fmt: skip


def judge(source: Source, line: int, rule: str) -> Judgement:
    """The verdict on ``rule`` at ``line``, after a second run of the rule has reported the place again."""
    if source.is_test and rule in _FINE_IN_TESTS:
        return Judgement("rejected", f"a test file: {_FINE_IN_TESTS[rule]}")
    if rule.startswith("S") and source.typing_only(line):
        return Judgement("rejected", "stands under `if TYPE_CHECKING`, which never runs")
    if mark := source.mark(line, rule):
        return Judgement("rejected", f"the author has marked the place on purpose: `{mark}`")
    own = RULES.get(rule)
    found = own(source, line, rule) if own else None
    if found is None:
        return Judgement("confirmed", "the rule run alone reports it again; nothing around the place speaks against it")
    return Judgement(*found)


def overall(verdicts: list[Verdict], repeated: int) -> tuple[Verdict, str]:
    """The verdict on a whole scan: is the scanner's work sound? Single findings have their own verdicts."""
    if verdicts and not repeated:
        return "rejected", "none of the findings came up again when its rule was run alone"
    counts = {kind: verdicts.count(kind) for kind in _ORDER}
    words = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n) or "nothing was found, nothing to judge"
    return ("confirmed" if counts["confirmed"] == len(verdicts) else "partial"), words
