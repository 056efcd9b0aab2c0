"""The verifier's method: run the one rule again on the one file, then judge what stands around the place.

Guarantees: takes nothing from the scanner but the place and the rule; a file is read once and a rule run once for all
findings that share them. What could not be checked is never rejected: a file that is gone leaves its findings partial,
a tool that can't be run fails the verification as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from review.analysers import SYNTAX, bandit, inside, ruff
from review.judge import judge, overall
from review.source import Source
from review.verdict import Verdict

Finding = Mapping[str, Any]


def verify(root: str, items: Iterable[Finding]) -> dict[str, Any]:
    """``{"verdict", "reasons", "items": [{file, line, rule, verdict, reasons}]}`` for the findings of one scan."""
    base = Path(root)
    again: dict[tuple[str, str, str], set[int]] = {}
    sources: dict[str, Source | None] = {}
    judged: list[dict[str, Any]] = []
    verdicts: list[Verdict] = []
    repeated = 0
    for item in items:
        file, line, rule, tool = item["file"], item["line"], item["rule"], item["tool"]
        if file not in sources:
            sources[file] = _read(base, file)
        source = sources[file]
        run = (tool, file, rule)
        if source is not None and run not in again:
            again[run] = rule_again(root, file, rule, tool)
        verdict: Verdict
        if source is None:
            verdict, reason = "partial", "could not be checked: the file can't be read here any more"
        elif line not in again[run]:
            verdict, reason = "rejected", f"{tool} does not report it again when {item['tool_rule']} is run alone"
        else:
            repeated += 1
            verdict, reason = judge(source, line, rule)
        verdicts.append(verdict)
        judged.append({"file": file, "line": line, "rule": rule, "verdict": verdict, "reasons": [reason]})
    verdict, reason = overall(verdicts, repeated)
    return {"verdict": verdict, "reasons": [reason], "items": judged}


def rule_again(root: str, file: str, rule: str, tool: str) -> set[int]:
    """The lines of ``file`` that ``tool`` reports when it runs ``rule`` alone."""
    if tool == "bandit":
        found = bandit(root, [file], rules=["B" + rule[1:]])
    else:
        found = ruff(root, [file], select=["F" if rule == SYNTAX else rule])
    return {item["line"] for item in found["items"] if item["rule"] == rule}


def _read(root: Path, file: str) -> Source | None:
    try:
        inside(root, [file])
        return Source(root, file)
    except (OSError, ValueError):
        return None
