"""Workspaces and artifacts of a space on a state file: a folder beside it.

``NAME.json`` -> ``NAME.files/private/<agent>/…``, ``summaries/…``, ``shared/…`` and ``artifacts/<sha256>``.

Guarantees: nothing outside the folder is ever read or written: every part of a path is opened from the folder before
it and may be no link; what an agent may not write is refused with the state file's lock held, before a byte of it is on
disk, and recorded; a file is whole or not there. Never follows a link.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from protocol.errors import Refused, StoreError, StoreFull
from protocol.ports import Appended, ArtifactRef
from protocol.record import Record
from protocol.stores.jsonfile import JsonFile
from protocol.stores.ledger import Ledger
from protocol.workspaces import REASON, TEMPORARY, Area, Place

ARTIFACT_MAX_BYTES: Final = 16 * 1024 * 1024
SPACE_MAX_BYTES: Final = 256 * 1024 * 1024
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def folder_of(state: Path) -> Path:
    """``NAME.json`` -> ``NAME.files``."""
    return state.with_suffix(".files")


class FileAreas:
    """The areas of the space in one state file (port ``Areas``)."""

    def __init__(self, log: JsonFile) -> None:
        self._log = log
        self._root = folder_of(log.path)

    async def put(self, space: str, record: Record, place: Place, text: str) -> Appended:
        """Append ``record`` and write the file with it, under one lock; refused, neither is there but a violation."""

        def work(ledger: Ledger) -> tuple[Appended, bool]:
            before = ledger.last
            outcome = self._log.admit(ledger, [record])[0]
            if outcome.outcome == "added" and place.path:
                _write(self._root, _parts(place), text.encode())
            return outcome, ledger.last != before

        return await self._log.change(space, work)

    async def get(self, space: str, place: Place) -> str | None:
        """A file's text; None where there is none."""
        await self._log.meta(space)
        data = _read(self._root, _parts(place))
        return None if data is None else data.decode("utf-8", "replace")

    async def listing(self, space: str, area: Area, agent: str = "") -> list[tuple[str, int]]:
        """The paths below an area (of ``private``: below one agent's) with their sizes in bytes, in order."""
        await self._log.meta(space)
        return sorted(_walk(self._root, [area, agent] if agent else [area]))


class FolderArtifacts:
    """What is too large for a record, by content (port ``ArtifactStore``); a folder beside the state file."""

    def __init__(
        self, log: JsonFile, *, artifact_max_bytes: int = ARTIFACT_MAX_BYTES, space_max_bytes: int = SPACE_MAX_BYTES
    ) -> None:
        self._root = folder_of(log.path)
        self._most = artifact_max_bytes
        self._space_most = space_max_bytes

    async def put(self, space: str, data: bytes) -> ArtifactRef:
        """Store ``data``. Raises StoreFull past a limit."""
        ref = ArtifactRef(hashlib.sha256(data).hexdigest(), len(data))
        if len(data) > self._most:
            raise StoreFull(
                f"an artifact of {len(data)} bytes is larger than {self._most}", op="put", retryable=False,
                mend="deliver it in parts, or less of it",
            )  # fmt: skip
        held = dict(_walk(self._root, ["artifacts"]))
        if ref.sha256 not in held:
            if sum(held.values()) + len(data) > self._space_most:
                raise StoreFull(
                    f"{str(self._root)!r} holds {sum(held.values())} bytes of artifacts, {len(data)} more are past "
                    f"{self._space_most}", op="put", retryable=False, mend="begin a new space, or deliver less",
                )  # fmt: skip
            _write(self._root, ["artifacts", ref.sha256], data)
        return ref

    async def name(self, space: str, ref: ArtifactRef) -> None:
        """A record names it. Nothing goes by itself here."""

    async def get(self, space: str, sha256: str) -> bytes:
        """The bytes. Raises StoreError where there is no such artifact, or where it is damaged."""
        data = _read(self._root, ["artifacts", sha256]) if sha256.isalnum() else None
        if data is None:
            raise StoreError(f"space {space!r} has no artifact {sha256!r}", op="get", retryable=False)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StoreError(f"artifact {sha256!r} of {space!r} is damaged", op="get", retryable=False)
        return data

    async def drop(self, space: str, sha256: str) -> bool:
        """Remove an artifact; False where there was none."""
        if not sha256.isalnum():
            return False
        with contextlib.suppress(FileNotFoundError), _below(self._root, ["artifacts"]) as folder:
            os.unlink(sha256, dir_fd=folder)
            return True
        return False


def _parts(place: Place) -> list[str]:
    return [place.area, *([place.agent] if place.agent else []), *place.path.split("/")]


@contextmanager
def _below(root: Path, parts: list[str], *, make: bool = False) -> Iterator[int]:
    """The descriptor of a folder below ``root``, reached part by part and never through a link."""
    try:
        if make:
            root.mkdir(exist_ok=True)
        fd = os.open(root, _FOLDER)
        try:
            for part in parts:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=fd)
                inner = os.open(part, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _no_folder(root, parts, error) from error


def _write(root: Path, parts: list[str], data: bytes) -> None:
    *folders, name = parts
    with _below(root, folders, make=True) as folder:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise _refused(parts, f"{name!r} is a link or a folder")
        beside = f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}"
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=folder)
            raise


def _read(root: Path, parts: list[str]) -> bytes | None:
    *folders, name = parts
    try:
        with _below(root, folders) as folder:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    return None
                with os.fdopen(fd, "rb", closefd=False) as file:
                    return file.read()
            finally:
                os.close(fd)
    except FileNotFoundError:
        return None


def _walk(root: Path, parts: list[str]) -> Iterator[tuple[str, int]]:
    """Every file below, with its size; links and unfinished files are left out."""
    try:
        with _below(root, parts) as folder:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    for path, size in _walk(root, [*parts, entry.name]):
                        yield f"{entry.name}/{path}", size
                elif entry.is_file(follow_symlinks=False) and not entry.name.startswith(TEMPORARY):
                    yield entry.name, entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return


def _no_folder(root: Path, parts: list[str], error: OSError) -> Refused | StoreError:
    if isinstance(error, NotADirectoryError) or error.errno == errno.ELOOP:  # a part of the path is a link
        return _refused(parts, "a part of the path is a link, or no folder")
    return StoreError(f"{str(root)!r}: {error.strerror}", op="workspace", retryable=False, mend="look at the folder")


def _refused(parts: list[str], why: str) -> Refused:
    return Refused(f"workspace {'/'.join(parts)!r}: {why}", reason=REASON, path="workspace", mend="use a plain path")
