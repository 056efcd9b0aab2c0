"""``python deploy/plan.py [DIR]``: the plan of a code review of DIR, as JSON, for ``rolecall run --plan -``.

Without DIR the installed redis client is reviewed: it is at the same place in every container of the same image.
Guarantees: reads names and sizes of files, runs nothing of them; what is wrong is one line with its mend.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "code-review"))

from review.plan import make_plan
from review.target import BadTarget, cut, default_root, look


def main(directory: str) -> int:
    try:
        if directory:
            target = look(Path(directory))
        else:
            target = look(default_root(), title=f"redis {importlib.metadata.version('redis')}")
    except BadTarget as bad:
        sys.stderr.write(f"{bad.message} ({bad.mend})\n")
        return 2
    sys.stdout.write(json.dumps(make_plan(target, cut(target)), ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
