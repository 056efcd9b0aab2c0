"""Runs bandit and ruff on named files and gives their findings one form.

Guarantees: only files below the root are read; the reviewed project's own configuration is not (a project can't switch
its review off); the code is parsed, never imported or run; a finding of both tools on one place has one ``file``,
``line`` and ``rule``. Never changes a file, never uses a shell.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict

SECURITY = ("S",)
BUGS = ("F", "B", "BLE", "ASYNC", "PERF", "E7")
SYNTAX = "E999"
"""Our name for "this is no Python": both tools report it, each in its own way."""
_UNREADABLE = "E902"
MOST_ITEMS = 1_000
TIMEOUT_S = 110.0

_HIGH = frozenset({
    "S202", "S304", "S305", "S312", "S321", "S324", "S401", "S402", "S411", "S412", "S413", "S415", "S501", "S502",
    "S507", "S602", "S605", "S609", "S701",
})  # fmt: skip
_LOW = frozenset({
    "S101", "S105", "S106", "S107", "S110", "S112", "S311", "S403", "S404", "S405", "S406", "S407", "S408", "S409",
    "S504", "S603", "S606", "S607",
})  # fmt: skip
_BUG_SEVERITY = {
    SYNTAX: "high", "F821": "high", "F822": "high", "F811": "medium", "F841": "low", "F7": "high", "F5": "medium",
    "F6": "medium", "B006": "medium", "B008": "medium", "B012": "medium", "B015": "medium", "B018": "medium",
    "B020": "medium", "B023": "medium", "B030": "medium", "B031": "medium", "B035": "medium", "B909": "medium",
    "BLE001": "medium", "ASYNC1": "medium", "ASYNC109": "low", "ASYNC2": "medium", "E722": "medium",
}  # fmt: skip


class Finding(TypedDict):
    """One finding. ``rule`` is the name that both tools share (bandit's B110 is S110); ``tool_rule`` the tool's own."""

    file: str
    line: int
    rule: str
    message: str
    severity: str
    tool: str
    tool_rule: str


class Scan(TypedDict):
    """What one run of one tool found; ``left_out`` counts findings beyond the limit, ``unread`` names broken files."""

    items: list[Finding]
    scanned: int
    left_out: int
    unread: list[dict[str, str]]


class ToolError(Exception):
    """The tool could not be run, or its answer is unusable. ``retryable``: another try may help."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class NotHereError(ValueError):
    """The code is not where the task says, or a name leads out of it: no other try helps."""

    retryable = False


def inside(root: Path, files: Iterable[str]) -> list[Path]:
    """The files as absolute paths. Raises NotHereError for a root that is no directory here, or a file that is not
    below it (links resolved)."""
    base = root.resolve()
    if not base.is_dir():
        raise NotHereError(f"there is no directory {str(root)!r} on this host: the code must be there at the same path")
    found = []
    for name in files:
        path = (base / name).resolve()
        if not path.is_relative_to(base):
            raise NotHereError(f"{name!r} is not below {str(root)!r}")
        found.append(path)
    return found


def bandit(root: str, files: Sequence[str], rules: Sequence[str] = ()) -> Scan:
    """bandit on ``files`` (relative to ``root``); with ``rules`` (bandit's names) only those."""
    names, unread = _there(Path(root), files)
    chosen = ["--tests", ",".join(rules)] if rules else []
    report = _run(["bandit", "--quiet", "--format", "json", "--exit-zero", *chosen], names)
    items = [
        Finding(
            file=names[row["filename"]],
            line=_place(row["filename"], "S" + row["test_id"][1:], row["line_number"]),
            rule="S" + row["test_id"][1:],
            message=row["issue_text"],
            severity=row["issue_severity"].lower(),
            tool="bandit",
            tool_rule=row["test_id"],
        )
        for row in report.get("results", ())
    ]
    unread += [{"file": names[row["filename"]], "reason": row["reason"]} for row in report.get("errors", ())]
    return _scan(items, len(files), unread)


def ruff(root: str, files: Sequence[str], select: Sequence[str]) -> Scan:
    """ruff's rules ``select`` on ``files`` (relative to ``root``)."""
    names, unread = _there(Path(root), files)
    report = _run(
        ["ruff", "check", "--isolated", "--no-cache", "--quiet", "--exit-zero", "--output-format", "json",
         "--select", ",".join(select)], names,
    )  # fmt: skip
    items: list[Finding] = []
    for row in report:
        code = row["code"] if row["code"] and row["code"][-1].isdigit() else SYNTAX
        if code in (SYNTAX, _UNREADABLE):
            unread.append({"file": names[row["filename"]], "reason": row["message"]})
        if code == _UNREADABLE:
            continue
        items.append(
            Finding(
                file=names[row["filename"]],
                line=_place(row["filename"], code, row["location"]["row"]),
                rule=code,
                message=row["message"],
                severity=severity(code),
                tool="ruff",
                tool_rule=row["code"] or "",
            )
        )
    return _scan(items, len(files), unread)


def severity(rule: str) -> str:
    """``high``, ``medium`` or ``low``: ruff gives none. For S rules as bandit rates its own; for the rest by prefix."""
    if rule.startswith("S"):
        return "high" if rule in _HIGH else "low" if rule in _LOW else "medium"
    known = [prefix for prefix in _BUG_SEVERITY if rule.startswith(prefix)]
    return _BUG_SEVERITY[max(known, key=len)] if known else "low"


def _there(root: Path, files: Sequence[str]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """``(absolute path -> name, the files that are not there)``."""
    names: dict[str, str] = {}
    gone: list[dict[str, str]] = []
    for path, name in zip(inside(root, files), files, strict=True):
        if path.is_file():
            names[str(path)] = name
        else:
            gone.append({"file": name, "reason": "is not there any more"})
    return names, gone


def _scan(items: list[Finding], scanned: int, unread: list[dict[str, str]]) -> Scan:
    """One item a place and rule: a tool that reports a place twice has still found it once."""
    once = {(item["file"], item["line"], item["rule"]): item for item in reversed(items)}
    kept = [once[key] for key in sorted(once)]
    broken = list({row["file"]: row for row in reversed(unread)}.values())
    return Scan(items=kept[:MOST_ITEMS], scanned=scanned, left_out=max(0, len(kept) - MOST_ITEMS), unread=broken)


def _place(file: str, rule: str, line: int) -> int:
    """The line that both tools agree on. They differ only where a call that starts a process runs over several lines:
    there the statement's first line counts."""
    if not rule.startswith("S60"):
        return line
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (SyntaxError, ValueError):
        return line
    around = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, default=line)


def _run(tool: list[str], paths: Collection[str]) -> Any:
    """The tool's JSON; empty where there is nothing to read. Raises ToolError, with the tool's own last words."""
    name = tool[0]
    if not paths:
        return {}
    command = [sys.executable, "-m", *tool, "--", *paths]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ToolError(f"{name} took more than {TIMEOUT_S:.0f} s on {len(paths)} files", retryable=True) from None
    try:
        return json.loads(done.stdout)
    except ValueError:
        words = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        absent = "No module named" in words[-1]
        mend = f"; install it with: {sys.executable} -m pip install {name}" if absent else ""
        raise ToolError(f"{name} gave no report: {words[-1]}{mend}", retryable=not absent) from None
