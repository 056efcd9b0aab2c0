"""The roles that ship, and the names that ``arq workers.roles.<role>`` looks up here.

Guarantees: any role file, ours or the user's (``ROLECALL_ROLES``), is found by its id with ``_`` for ``-``; an unknown
or broken one ends arq in one line. Never starts anything on import.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def __getattr__(name: str) -> dict[str, Any]:
    """The arq settings of role ``name``."""
    if name.startswith("_"):
        raise AttributeError(name)
    from protocol.errors import RolecallError
    from workers.host import arq_settings

    try:
        return arq_settings(name)
    except RolecallError as error:
        if "arq" not in Path(sys.argv[0]).parts[-2:] and Path(sys.argv[0]).stem != "arq":
            raise AttributeError(str(error)) from error
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_code) from None
