"""The manager's merge -> the report.

Guarantees: pure; every finding, verdict and gap comes from the merge (or, where nothing was merged, from the flow's
finish); nothing is judged again here. A merge that is partial says which tasks are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coordinator.outcome import Outcome
from review.found import Found
from review.plan import DIGEST, REVIEW
from review.report import Model, Report


def report_of(artifact: Mapping[str, Any], outcome: Outcome, *, target: str, title: str, model: Model) -> Report:
    """The report of one session. ``artifact``: the merged artifact, empty where there is none."""
    results = {row["task"]: row.get("result") for row in artifact.get("tasks", ())}
    digest = results.get(DIGEST)
    told = digest if isinstance(digest, Mapping) else {}
    summary = results.get(REVIEW)
    items = [*artifact.get("items", ()), *artifact.get("rejected_items", ())]
    found = [found_of(row) for row in items]
    return Report(
        session=outcome.session,
        status=outcome.result or "failed",
        target=target,
        title=title,
        findings=[one for one in found if one.stands],
        rejected=[one for one in found if not one.stands],
        deduplicated=sum(len(row["found_by"]) - 1 for row in items),
        missing=list(missing_of(artifact, outcome)),
        model=model,
        summary=summary if isinstance(summary, str) else "",
        notes=list(_notes(told.get("counts", {}))),
        code={f"{one['file']}:{one['line']}": one.get("code", "") for one in told.get("worst", ())},
    )


def found_of(row: Mapping[str, Any]) -> Found:
    """One merged item as a finding."""
    item = row["item"]
    return Found(
        file=item["file"],
        line=item["line"],
        rule=item["rule"],
        message=item["message"],
        severity=item["severity"],
        found_by=sorted({str(finder.get("tool") or finder["who"]) for finder in row["found_by"]}),
        verdict=row["verdict"],
        reasons=[str(reason) for reason in row["reasons"]],
    )


def missing_of(artifact: Mapping[str, Any], outcome: Outcome) -> Iterable[tuple[str, str]]:
    """``(task, reason)`` of what was not delivered, each task once."""
    listed = [*artifact.get("missing", ()), *artifact.get("not_delivered", ()), *outcome.missing]
    seen: set[str] = set()
    for row in listed:
        if row["task"] not in seen:
            seen.add(row["task"])
            yield row["task"], row["reason"]


def _notes(counts: Mapping[str, Any]) -> Iterable[str]:
    for file, reason in sorted(counts.get("unread", {}).items()):
        yield f"`{file}` could not be read as Python: {reason}"
    if counts.get("left_out"):
        yield f"{counts['left_out']} further reports were left out: one scan reports 1,000 at most"
