"""``python -m coordinator.cli``: the same as ``rolecall``."""

from __future__ import annotations

from coordinator.cli import main

if __name__ == "__main__":
    main()
