"""Runs ruff or bandit on a path below the root. Arguments are a list, never a shell's line; the code is only read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

RUFF_MEDIUM = ("S", "F", "B", "BLE", "ASYNC", "PLE")
MOST_ERRORS = 20


class BadInput(ValueError):
    """Input that no further try can mend."""

    retryable = False


def run(tool: str, path: str, max_findings: int, rules: list[str] | None = None) -> dict[str, object]:
    """The findings of `tool` on `path`; `rules` narrows them down."""
    root = Path(os.environ["SKILL_ROOT"]).resolve()
    target = inside(root, path)
    command, read = TOOLS[tool]
    try:
        version = metadata.version(tool)
    except metadata.PackageNotFoundError:
        raise BadInput(f"{tool} is not installed here: pip install 'rolecall[demo]'") from None
    # In a directory of its own: what lies beside the code must not change what the tool does.
    done = subprocess.run(
        [sys.executable, "-I", "-m", tool, *command(rules or []), "--", str(target)],
        cwd=os.environ["TMPDIR"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    try:
        findings, errors = read(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError) as error:
        said = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise RuntimeError(f"{tool} ended with code {done.returncode} and no report: {said or error}") from None
    for finding in findings:
        finding["file"] = relative(str(finding["file"]), root)
    findings.sort(key=lambda finding: (finding["file"], finding["line"], finding["rule"]))
    return {
        "tool": tool,
        "version": version,
        "items": findings[:max_findings],
        "total": len(findings),
        "errors": [text.replace(f"{root}{os.sep}", "") for text in errors[:MOST_ERRORS]],
    }


def inside(root: Path, path: str) -> Path:
    """The real path of `path`, which is below `root`."""
    if "\0" in path:
        raise BadInput("path has a NUL character")
    try:
        target = (root / path).resolve(strict=True)
    except (OSError, RuntimeError):
        raise BadInput(f"path {path!r}: there is no such file or directory") from None
    if not target.is_relative_to(root):
        raise BadInput(f"path {path!r} leads out of the root")
    return target


def relative(file: str, root: Path) -> str:
    path = Path(file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else file


def ruff_command(rules: list[str]) -> list[str]:
    chosen = [f"--select={','.join(rules)}"] if rules else []
    # Its own exclusions name site-packages and the like: what was asked for is looked at.
    fixed = ["--isolated", "--no-cache", "--exit-zero", "--quiet", "--output-format=json", "--config=exclude=[]"]
    return ["check", *fixed, *chosen]


def ruff_report(report: list[dict]) -> tuple[list[dict[str, object]], list[str]]:
    findings: list[dict[str, object]] = []
    errors: list[str] = []
    for entry in report:
        rule, line = entry["code"], entry["location"]["row"]
        if rule in (None, "invalid-syntax"):
            errors.append(f"{entry['filename']}:{line}: {entry['message']}")
            continue
        severity = "medium" if rule.rstrip("0123456789") in RUFF_MEDIUM else "low"
        findings.append(
            {"file": entry["filename"], "line": line, "rule": rule, "message": entry["message"], "severity": severity}
        )
    return findings, errors


def bandit_command(rules: list[str]) -> list[str]:
    chosen = ["-t", ",".join(rules)] if rules else []
    ini = Path(os.environ["TMPDIR"]) / "bandit.ini"
    ini.write_text("[bandit]\n", encoding="utf-8")  # named, so that it looks for no other
    return ["-q", "-r", "-f", "json", "--exit-zero", f"--ini={ini}", *chosen]


def bandit_report(report: dict) -> tuple[list[dict[str, object]], list[str]]:
    findings: list[dict[str, object]] = [
        {
            "file": entry["filename"],
            "line": entry["line_number"],
            "rule": entry["test_id"],
            "message": entry["issue_text"],
            "severity": entry["issue_severity"].lower(),
        }
        for entry in report["results"]
    ]
    return findings, [f"{entry['filename']}: {entry['reason']}" for entry in report["errors"]]


TOOLS: dict[str, tuple[Callable[[list[str]], list[str]], Callable]] = {
    "ruff": (ruff_command, ruff_report),
    "bandit": (bandit_command, bandit_report),
}
"""The tools that may run: nothing in the input can name another program."""
