"""The roles that ship, and the names that ``arq workers.roles.<role>`` looks up here.

Guarantees: any role file, ours or the user's (``ROLECALL_ROLES``), is found by its id with ``_`` for ``-``; an unknown
or broken one ends arq in one line. Never starts anything on import, and has no name of its own (no import at module
level either): it would stand in the way of a role of that name.
"""


def __getattr__(name: str) -> dict[str, object]:
    """The arq settings of role ``name``."""
    if name.startswith("_"):
        raise AttributeError(name)
    import sys
    from pathlib import Path

    from protocol.errors import RolecallError
    from workers.host import arq_settings

    try:
        return arq_settings(name)
    except RolecallError as error:
        started = Path(sys.argv[0])
        if started.stem != "arq" and started.parent.name != "arq":
            raise AttributeError(str(error)) from error
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_code) from None
