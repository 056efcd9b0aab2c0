"""The file-size gate: one noun a file, never more than 400 lines. Looks at nothing but .py and .lua files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MOST_LINES = 400
ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {".venv", ".git", "docs", "build", "dist", "node_modules", "__pycache__"}


def files(root: Path) -> list[Path]:
    """Every .py and .lua file below ``root`` that belongs to the project: by git where there is one."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py", "*.lua"],
            cwd=root,
            capture_output=True,
            check=True,
        ).stdout
        found = [root / name.decode() for name in listed.split(b"\0") if name]
    except (OSError, subprocess.CalledProcessError):
        found = [path for kind in ("*.py", "*.lua") for path in root.rglob(kind)]
    return sorted({path for path in found if path.is_file() and not SKIPPED & set(path.relative_to(root).parts)})


def too_long(root: Path, most: int = MOST_LINES) -> list[tuple[str, int]]:
    """``(path, lines)`` of every file with more than ``most`` lines."""
    counted = [
        (str(path.relative_to(root)), len(path.read_text(encoding="utf-8").splitlines())) for path in files(root)
    ]
    return [(name, lines) for name, lines in counted if lines > most]


def main() -> int:
    over = too_long(ROOT)
    for name, lines in over:
        print(f"{name}: {lines} lines, at most {MOST_LINES}: split it by noun", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
