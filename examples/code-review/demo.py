"""``make demo``: a fleet reviews a directory of Python code, loses a worker in the middle, and delivers one report.

    python examples/code-review/demo.py [TARGET] [--verbose] [--no-kill] [--out DIR]

Exit codes: 0 delivered; 1 partial or failed; 2 wrong usage; 3 the store or the model can't be reached; 130 interrupted.
"""

from __future__ import annotations

import sys

from review.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
