"""Scans and verdicts -> what the reviewer is told: counts, the worst with their code, the facts in sentences.

Guarantees: adds no finding and changes none; every number is counted here, so that a model need not count. Small: it
fits a small model's window whatever the size of the review. Never decides what is merged: the manager does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from review.analysers import inside
from review.found import SEVERITIES, VERDICTS, Found, Key

WORST = 10
CONTEXT = 2
"""Lines of code shown before and after a finding."""
_LINE_MAX = 160


def digest(root: str, scans: Iterable[Any], verdicts: Iterable[Any]) -> dict[str, Any]:
    """``{"facts": [sentence, …], "counts": {…}, "worst": [{…, "code"}]}``. What is null or no scan is left out."""
    found: dict[Key, Found] = {}
    files = reports = left_out = 0
    unread: dict[str, str] = {}
    for scan in scans:
        if not isinstance(scan, Mapping):
            continue
        files, left_out = files + int(scan.get("scanned", 0)), left_out + int(scan.get("left_out", 0))
        unread |= {row["file"]: row["reason"] for row in scan.get("unread", ())}
        for item in scan.get("items", ()):
            reports += 1
            key = (item["file"], item["line"], item["rule"])
            one = found.setdefault(key, Found(*key, message=item["message"], severity=item["severity"]))
            one.found_by = sorted({*one.found_by, item["tool"]})
    for judged in verdicts:
        for item in _judged(judged):
            known = found.get((item["file"], item["line"], item["rule"]))
            if known is not None:
                known.judged(item["verdict"], item.get("reasons", ()))
    standing = sorted((one for one in found.values() if one.verdict != "rejected"), key=lambda one: one.rank)
    counts = {
        "reports": reports,
        "findings": len(found),
        "by_verdict": {word: n for word in VERDICTS if (n := sum(one.verdict == word for one in found.values()))},
        "by_severity": {word: n for word in SEVERITIES if (n := sum(one.severity == word for one in standing))},
        "by_rule": dict(Counter(one.rule for one in standing).most_common(8)),
        "found_by_two": sum(len(one.found_by) > 1 for one in found.values()),
        "left_out": left_out,
        "unread": unread,
    }
    worst = [
        {
            "file": one.file, "line": one.line, "rule": one.rule, "severity": one.severity, "verdict": one.verdict,
            "found_by": one.found_by, "message": one.message, "reason": "; ".join(one.reasons),
            "code": excerpt(root, one.file, one.line),
        }
        for one in standing[:WORST]
    ]  # fmt: skip
    return {"facts": _facts(counts, standing), "counts": counts, "worst": worst}


def excerpt(root: str, file: str, line: int, around: int = CONTEXT) -> str:
    """The lines around a finding with their numbers; nothing where the file can't be read."""
    try:
        lines = inside(Path(root), [file])[0].read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return ""
    first = max(1, line - around)
    return "\n".join(
        f"{number:>5} {text[:_LINE_MAX]}" for number, text in enumerate(lines[first - 1 : line + around], first)
    )


def _judged(verdict: Any) -> list[Any]:
    """A verdict's items, wherever its delivery carries them."""
    if not isinstance(verdict, Mapping):
        return []
    inner = verdict.get("result")
    items = verdict.get("items", inner.get("items") if isinstance(inner, Mapping) else None)
    return items if isinstance(items, list) else []


def _facts(counts: Mapping[str, Any], standing: list[Found]) -> list[str]:
    verdicts, severities = counts["by_verdict"], counts["by_severity"]
    twice = f"{counts['found_by_two']} of them were found by two tools"
    facts = [
        f"{counts['reports']} reports of three scans are {counts['findings']} findings; {twice}.",
        "After verification: " + (_listed(verdicts) or "nothing to verify") + ".",
        f"{len(standing)} findings stand" + (f": {_listed(severities)}." if severities else "."),
    ]
    if counts["by_rule"]:
        facts.append("Most frequent: " + ", ".join(f"{rule} ({n})" for rule, n in counts["by_rule"].items()) + ".")
    if files := Counter(one.file for one in standing).most_common(3):
        facts.append("Most of it is in " + ", ".join(f"{file} ({n})" for file, n in files) + ".")
    if counts["unread"]:
        facts.append(f"{len(counts['unread'])} files could not be parsed: {', '.join(sorted(counts['unread'])[:5])}.")
    if counts["left_out"]:
        facts.append(f"{counts['left_out']} further reports were left out: a scan reports 1,000 at most.")
    return facts


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {word}" for word, n in counts.items())
