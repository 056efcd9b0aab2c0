"""The merged review -> ``report.json`` and ``report.md``.

Guarantees: pure; the JSON has exactly the keys of `Report.to_json`; the Markdown says the same, for people. A finding
is what a tool reported: the model's words stand apart from them, and where no real model was there the report says so.
Text of the reviewed code can't break a table or close a fence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from review.found import SEVERITIES, Found

WORST = 5
OVERLAP_NOTE = (
    "ruff's `S` rules were modelled on bandit's: two tools that agree are two implementations of one rule, "
    "not two opinions."
)


@dataclass(frozen=True, slots=True)
class Model:
    """Who worded the summary. ``offline``: the server that ships, which only words what it is given."""

    endpoint: str
    offline: bool

    @property
    def words(self) -> str:
        """One sentence for people."""
        if self.offline:
            return (
                "Worded by the offline model that ships with rolecall: it puts what the tools found into sentences "
                "and adds nothing. Set `OPENAI_BASE_URL` (and `OPENAI_API_KEY`) for a real one."
            )
        return f"Worded by the model at {self.endpoint}. The findings are the tools', not the model's."


@dataclass(slots=True)
class Report:
    """Everything that the two files say. ``findings`` stand, ``rejected`` do not; both in order, the worst first.
    ``deduplicated``: reports of a finding that another tool had reported too. ``code``: ``file:line`` -> lines."""

    session: str
    status: str
    target: str
    title: str
    findings: list[Found]
    rejected: list[Found]
    deduplicated: int
    missing: list[tuple[str, str]]
    model: Model
    summary: str = ""
    facts: list[str] = field(default_factory=list)
    code: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.findings.sort(key=lambda one: one.rank)
        self.rejected.sort(key=lambda one: one.rank)

    @property
    def both(self) -> list[Found]:
        """What several tools found, rejected or not."""
        return sorted((one for one in [*self.findings, *self.rejected] if len(one.found_by) > 1), key=lambda o: o.rank)

    def to_json(self) -> dict[str, Any]:
        """``report.json``."""
        return {
            "session": self.session,
            "status": self.status,
            "target": self.target,
            "findings": [_plain(one) for one in self.findings],
            "deduplicated": self.deduplicated,
            "rejected": [_plain(one) for one in self.rejected],
            "missing": [{"task": task, "reason": reason} for task, reason in self.missing],
            "model": {"endpoint": self.model.endpoint, "offline": self.model.offline},
        }

    def to_markdown(self) -> str:
        """``report.md``."""
        parts = [
            f"# Code review: {_inline(self.title)}",
            self._headline(),
            "## Summary",
            demoted(self.summary) or "_No summary: the reviewer's task was not delivered._",
            f"_{self.model.words}_" if self.summary else "",
            *self._worst(),
            *self._both(),
            *_table_of("Everything that stands", self.findings, "Nothing stands."),
            *_table_of("Rejected, and why", self.rejected, "Nothing was rejected."),
            *self._missing(),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _headline(self) -> str:
        counts = ", ".join(
            f"{n} {word}" for word in SEVERITIES if (n := sum(o.severity == word for o in self.findings))
        )
        lines = [
            f"**{count(self.findings, 'finding')} {'stands' if len(self.findings) == 1 else 'stand'}**"
            + (f" ({counts})" if counts else ""),
            f"{len(self.rejected)} rejected by the verifier",
            f"{len(self.both)} found by two tools",
        ]
        return "; ".join(lines) + f".\n\n{_code(self.target)} · session `{self.session}` · {self.status}"

    def _worst(self) -> list[str]:
        if not self.findings:
            return []
        out = [f"## The {_number(min(WORST, len(self.findings)))} worst"]
        for number, one in enumerate(self.findings[:WORST], 1):
            code = self.code.get(one.place, "")
            text = [
                f"{number}. **{one.severity}** {_code(one.place)} {one.rule}: {_inline(one.message)}",
                f"   Found by {' and '.join(one.found_by)}; {one.verdict}" + _because(one.reasons),
            ]
            if code:
                text += ["", fenced(code, indent="   ")]
            out.append("\n".join(text))
        return out

    def _both(self) -> list[str]:
        if not self.both:
            return []
        rows = [(_code(one.place), one.rule, one.verdict, _cell(one.message)) for one in self.both]
        return ["## What both tools found", OVERLAP_NOTE, table(("place", "rule", "verdict", "what"), rows)]

    def _missing(self) -> list[str]:
        rows = [(_code(task), _cell(reason)) for task, reason in self.missing]
        out = ["## Missing", table(("task", "why"), rows)] if rows else []
        return out + (["\n".join(f"* {_inline(note)}" for note in self.notes)] if self.notes else [])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the cells are escaped already."""
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def fenced(code: str, *, indent: str = "") -> str:
    """Code between fences longer than any of its own."""
    longest = max((len(run) for run in re.findall(r"`{3,}", code)), default=2)
    fence = "`" * (longest + 1)
    return "\n".join(f"{indent}{line}".rstrip() for line in [f"{fence}python", *code.splitlines(), fence])


def demoted(text: str) -> str:
    """The model's Markdown as a part of ours: its headings go below our own, its HTML is shown, not run."""
    out, fence = [], False
    for line in text.strip().splitlines():
        if line.lstrip().startswith("```"):
            fence = not fence
        elif not fence:
            line = _no_html(re.sub(r"^#{1,6}\s+", "### ", line))
        out.append(line)
    return "\n".join([*out, "```"] if fence else out)


def count(things: Sequence[object], word: str) -> str:
    """``1 finding``, ``2 findings``."""
    return f"{len(things):,} {word}{'' if len(things) == 1 else 's'}"


def _table_of(title: str, found: Sequence[Found], none: str) -> list[str]:
    if not found:
        return [f"## {title}", none]
    rows = [
        (one.severity, _code(one.place), one.rule, _cell(one.message), _cell("; ".join(one.reasons) or one.verdict),
         ", ".join(one.found_by))
        for one in found
    ]  # fmt: skip
    return [f"## {title}", table(("severity", "place", "rule", "what", "the verifier", "found by"), rows)]


def _plain(one: Found) -> dict[str, Any]:
    return {
        "file": one.file, "line": one.line, "rule": one.rule, "message": one.message, "severity": one.severity,
        "found_by": one.found_by, "verdict": one.verdict, "reasons": one.reasons,
    }  # fmt: skip


def _because(reasons: Sequence[str]) -> str:
    return f": {_inline('; '.join(reasons))}." if reasons else "."


def _inline(text: str) -> str:
    return _no_html(" ".join(text.split()))


def _no_html(line: str) -> str:
    """``<`` outside of code shown as itself."""
    parts = line.split("`")
    return "`".join(
        part if at % 2 and at < len(parts) - 1 else part.replace("<", "&lt;") for at, part in enumerate(parts)
    )


def _cell(text: str) -> str:
    return _inline(text).replace("|", "\\|")


def _code(name: str) -> str:
    return "`" + _cell(name.replace("`", "'")) + "`"


def _number(n: int) -> str:
    return ("no", "one", "two", "three", "four", "five")[n] if n <= WORST else str(n)


def status_of(merge: Mapping[str, Any]) -> str:
    """``delivered`` or ``partial``, as the merge says; anything else is ``failed``."""
    status = merge.get("status")
    return status if status in ("delivered", "partial") else "failed"
