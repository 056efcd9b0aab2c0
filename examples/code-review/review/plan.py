"""The plan of a review: who looks at which slice, who checks it, who sums up.

Guarantees: pure; the same slices give the same plan. Three scanners overlap on every slice on purpose; each scan is
verified; the digest waits for every scan and verdict; the reviewer words the digest and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from review.target import Slice, Target

MERGE_KEY = ["file", "line", "rule"]
SCANS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("bandit", "bandit-scanner", "bandit", {}),
    ("security", "security-scanner", "ruff's security rules", {"rules": "security"}),
    ("bugs", "bug-finder", "ruff's bug rules", {"rules": "bugs"}),
)
"""(start of the task's id, role, in words, what its input has beside the files)."""
DIGEST = "digest"
REVIEW = "review"
TEAM = {
    "bandit-scanner": "looks for security faults with bandit",
    "security-scanner": "looks for security faults with ruff",
    "bug-finder": "looks for likely bugs with ruff",
    "finding-verifier": "runs each finding's rule again, reads the place, confirms or rejects",
    "editor": "puts together what stands and picks the worst, with their code",
    "code-reviewer": "a model: reviews the worst and words the summary",
}
"""Every role of the plan -> what it does, in the order of the work."""
WORKERS = {
    "bandit-scanner": 1,
    "security-scanner": 1,
    "bug-finder": 1,
    "finding-verifier": 2,
    "editor": 1,
    "code-reviewer": 1,
}
"""Worker processes per role: two verifiers, so that one can take over from the other."""


def goal(target: Target) -> str:
    """The session's goal, in one line."""
    files = "1 file" if len(target.files) == 1 else f"{len(target.files)} files"
    return f"Review {target.title}: {files}, {target.lines:,} lines of Python"


def make_plan(target: Target, slices: Sequence[Slice]) -> dict[str, Any]:
    """The plan file's value: three scans a slice with their verifiers, the digest, the review."""
    tasks: list[dict[str, Any]] = []
    for part in slices:
        files = [file.name for file in part.files]
        for start, role, words, more in SCANS:
            tasks.append(
                {
                    "id": f"{start}-{part.number}",
                    "role": role,
                    "title": f"{words} on {part.title}"[:256],
                    "prompt": f"Run {words} on the {len(files)} files of this slice.",
                    "input": {"root": str(target.root), "files": files, **more},
                    "order_index": part.number,
                    "verify": "finding-verifier",
                    "merge_key": MERGE_KEY,
                }
            )
    scans = [task["id"] for task in tasks]
    verdicts = [f"{name}.verify" for name in scans]
    tasks.append(
        {
            "id": DIGEST,
            "role": "editor",
            "title": "put together what stands",
            "prompt": "Put the findings and their verdicts together; pick the worst ten, with their code.",
            "input": {
                "root": str(target.root),
                "scans": [{"$result": name} for name in scans],
                "verdicts": [{"$result": name} for name in verdicts],
            },
            "depends_on": [*scans, *verdicts],
        }
    )
    tasks.append(
        {
            "id": REVIEW,
            "role": "code-reviewer",
            "title": "review the worst and word the summary",
            "prompt": f"Review what was found in {target.title} and word the summary.",
            "depends_on": [DIGEST],
        }
    )
    return {"goal": goal(target), "tasks": tasks}
