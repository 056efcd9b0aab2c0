"""Spaces without a server: a state file each, in ``./state``.

Guarantees: lists only what is a state file, and says which files are none. Never makes or changes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from protocol.errors import ConfigError, RolecallError
from protocol.record import Json
from protocol.stores import statefile
from protocol.workspaces import FILE_MAX_BYTES


def hand_meta(name: str, title: str = "", policy: str = "hold") -> dict[str, str]:
    """The metadata of a space made by hand. On a file nobody reassigns by itself: a lost task is held."""
    return {"kind": "hand", "policy": policy, "session": name, "title": title or name}


def local_spaces(folder: Path) -> list[dict[str, Json]]:
    """The state files in ``folder``, the last changed first: ``{space, kind, title, records, created_ms, state}``; of a
    file that is none, ``problem`` says why."""
    rows: list[tuple[float, dict[str, Json]]] = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        row: dict[str, Json] = {"state": f"{folder.name}/{path.name}"}
        try:
            ledger, _ = statefile.load(path)
            row |= {
                "space": ledger.space, "kind": ledger.meta.get("kind", "hand"), "title": ledger.meta.get("title", ""),
                "records": len(ledger.rows), "created_ms": int(ledger.meta.get("created", 0)),
            }  # fmt: skip
            changed = path.stat().st_mtime
        except (RolecallError, OSError, ValueError) as error:
            row |= {"space": path.stem, "kind": "?", "title": "", "records": 0, "created_ms": 0, "problem": str(error)}
            changed = 0.0
        rows.append((changed, row))
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def knowledge(folder: Path) -> list[tuple[str, bytes]]:
    """The files of a folder of shared knowledge, (path below it, bytes). Raises ConfigError naming what can't be
    shared: a link, a file that is too large or no text."""
    if not folder.is_dir():
        raise ConfigError(f"--shared {str(folder)!r} is no folder", mend="name a folder of text files")
    return list(_files(folder, folder))


def _files(top: Path, folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.iterdir()):
        name = path.relative_to(top).as_posix()
        if path.is_symlink():
            raise ConfigError(f"--shared: {name!r} is a link", mend="put the file itself there")
        if path.is_dir():
            yield from _files(top, path)
        elif path.is_file():
            data = path.read_bytes()
            if len(data) > FILE_MAX_BYTES:
                raise ConfigError(f"--shared: {name!r} has {len(data):,} bytes", mend=f"at most {FILE_MAX_BYTES:,}")
            try:
                data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ConfigError(f"--shared: {name!r} is not UTF-8 (byte {error.start})", mend="share text") from None
            yield name, data
