"""A state file: one space as JSON that a person can read, taken in and put in place as a whole.

Guarantees: what is on disk is always one whole state (a temporary file beside it, synced, then put in place in one
step); a file that is torn or somebody else's is refused by name and left as it is; nothing is put over a file that is
not the one that was read. Never waits and never locks: that is ``filelock``'s.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from protocol.errors import ConfigError, Refused, StoreDenied, StoreError, StoreFull
from protocol.stores.ledger import Ledger, Row, state_from

FORMAT: Final = "rolecall state"
VERSION: Final = 1
_ENTRY: Final = re.compile(r"\d{1,19}-\d{1,19}\Z")
_DIGITS_ALIKE: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER: Final = b"0" * 19
_MARK: Final = re.compile(rb'\{\s*"format"\s*:\s*"' + FORMAT.encode() + rb'"')


class Changed(Exception):
    """The file is not the one that was read: somebody wrote it without the lock. Read again, decide again."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which file was read: the inode, its time and size, and a digest of its bytes."""

    inode: int
    mtime_ns: int
    size: int
    sha256: bytes


def load(path: Path) -> tuple[Ledger, Identity]:
    """The space in the file, and which file it was. Raises ConfigError where there is none, Refused where it is torn or
    somebody else's, StoreError where it can't be read."""
    data, identity = read(path)
    return parse(data, str(path)), identity


def glance(path: Path) -> None:
    """Refuse a file that is plainly no state file, before anything is put beside it. Raises as ``load``."""
    with _named(path, "read"), path.open("rb") as file:
        head = file.read(200)
    if not _MARK.match(head):
        load(path)


def parse(data: bytes, name: str) -> Ledger:
    """The space in a state file's bytes. Raises Refused."""
    try:
        # orjson reads an integer past 64 bits as a float: a file that may have one goes the exact, slower way.
        value = json.loads(data) if _LONG_NUMBER in data.translate(_DIGITS_ALIKE) else orjson.loads(data)
    except (ValueError, RecursionError) as error:
        if _MARK.match(data) or not data.strip():
            raise _refused(
                name, f"is torn: {error}", "torn_file", "bring back a whole copy; nothing was changed"
            ) from None
        raise _refused(name, "is no state file: it is not JSON", "foreign_file", "name another file") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise _refused(name, "is no state file: it is somebody else's JSON", "foreign_file", "name another file")
    if value.get("version") != VERSION:
        found = value.get("version")
        raise _refused(
            name, f"is of version {found!r}, this one reads {VERSION}", "foreign_file", "use a newer release"
        )
    try:
        return _ledger(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"is damaged: {type(error).__name__} {error}"
        raise _refused(name, why, "torn_file", "bring back a whole copy; nothing was changed") from None


def _ledger(value: dict[str, Any]) -> Ledger:
    rows: list[Row] = value["records"]
    for name, kind in (("records", list), ("tasks", dict), ("ids", dict), ("meta", dict), ("space", str)):
        if not isinstance(value[name], kind):
            raise TypeError(f"`{name}` is of another kind")
    before = (-1, -1)
    for at, row in enumerate(rows):
        entry = row["entry"]
        if not _ENTRY.match(entry) or not isinstance(row["record"], dict):
            raise ValueError(f"records[{at}] has no entry or no record")
        ms, _, seq = entry.partition("-")
        place = int(ms), int(seq)
        if place <= before:
            raise ValueError(f"records[{at}]: the entry {entry!r} is not after the one before it")
        before = place
    last = value["last"]
    if not _ENTRY.match(last) or tuple(map(int, last.split("-"))) < before:
        raise ValueError(f"`last` is {last!r}, before the last record")
    for found in value["tasks"].values():
        state_from(found)
    for packed in value["ids"].values():
        if packed.count(",") != 1:
            raise ValueError(f"`ids` has {packed!r}")
    meta = {str(k): str(v) for k, v in value["meta"].items()}
    return Ledger(str(value["space"]), meta, last, value["tasks"], value["ids"], rows)


def store(path: Path, ledger: Ledger, old: Identity | None) -> Identity:
    """Put the space in place of the file that was read, ``old`` (None: where no file may be), with the lock held.

    Raises Changed where the file is another by now, StoreError where it can't be written; then the old one stands.
    """
    data = dump(ledger)
    folder = path.parent
    for left in folder.glob(f".{_pattern(path.name)}.*.tmp"):  # by somebody who died here, with the lock
        left.unlink(missing_ok=True)
    beside = folder / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    with _named(path, "write"):
        try:
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                _write_all(fd, data)
                if old is not None:
                    with contextlib.suppress(FileNotFoundError):
                        os.fchmod(fd, os.stat(path).st_mode & 0o777)
                os.fsync(fd)
                made = os.fstat(fd)
            finally:
                os.close(fd)
            _still(path, old)
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _sync(folder)
    return Identity(made.st_ino, made.st_mtime_ns, made.st_size, hashlib.sha256(data).digest())


def dump(ledger: Ledger) -> bytes:
    """The file's bytes: UTF-8, two spaces, the records oldest first."""
    value = {
        "format": FORMAT, "version": VERSION, "space": ledger.space, "meta": ledger.meta, "last": ledger.last,
        "tasks": ledger.tasks, "records": ledger.rows, "ids": ledger.ids,
    }  # fmt: skip
    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # an integer past 64 bits stays exact
        return (json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n").encode()


def read(path: Path) -> tuple[bytes, Identity]:
    """A file's bytes, whatever they are, and which file it was."""
    with _named(path, "read"), path.open("rb") as file:
        data = file.read()
        found = os.fstat(file.fileno())
    return data, Identity(found.st_ino, found.st_mtime_ns, found.st_size, hashlib.sha256(data).digest())


def _still(path: Path, old: Identity | None) -> None:
    """Raises Changed unless the file is the one that was read."""
    try:
        now = None if not path.exists() else read(path)[1]
    except ConfigError:
        now = None
    if now != old:
        raise Changed


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync(folder: Path) -> None:
    """Make the new name last. Where folders can't be synced the name is as safe as the system keeps it."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _pattern(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


@contextmanager
def _named(path: Path, op: str) -> Iterator[None]:
    """What the system raises, in the words of the error tree."""
    try:
        yield
    except FileNotFoundError as error:
        raise ConfigError(f"there is no state file {str(path)!r}", mend="init-state makes one") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{str(path)!r} is a folder, not a state file", mend="name a file") from error
    except PermissionError as error:
        raise StoreDenied(
            f"{str(path)!r}: {error.strerror}", op=op, mend="mend its rights, or those of its folder"
        ) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        kind = StoreFull if full else StoreError
        mend = "free some disk; the file is as it was" if full else "look at the disk; the file is as it was"
        raise kind(f"{str(path)!r}: {error.strerror}", op=op, retryable=False, mend=mend) from error


def _refused(name: str, why: str, reason: str, mend: str) -> Refused:
    return Refused(f"{name!r} {why}", reason=reason, path="$", mend=mend)
