"""Reads text files and lists directories below one root, which no path leads out of. Reads only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MOST_CHARACTERS = 200_000
MOST_LINE = 4_000
MOST_ENTRIES = 2_000
NOT_READ = {"rolecall.toml"}


class BadInput(ValueError):
    """Input that no further try can mend."""

    retryable = False


def run(path: str, first_line: int, max_lines: int, recursive: bool, contains: str = "") -> dict[str, object]:
    """A file's lines or a directory's entries; `path` is relative to the root."""
    root = Path(os.environ["SKILL_ROOT"]).resolve()
    target = inside(root, path)
    shown = target.relative_to(root).as_posix()
    if target.is_dir():
        return listing(root, target, shown, recursive)
    return lines(target, shown, first_line, max_lines, contains)


def inside(root: Path, path: str) -> Path:
    """The real path of `path`, which is below `root`; BadInput for every way out."""
    if "\0" in path:
        raise BadInput("path has a NUL character")
    given = Path(path)
    if given.is_absolute() or ".." in given.parts:
        raise BadInput(f"path {path!r} is not allowed: give one relative to the root, without '..'")
    try:
        target = (root / given).resolve(strict=True)
    except FileNotFoundError:
        raise BadInput(f"path {path!r}: there is no such file") from None
    except (OSError, RuntimeError) as error:
        raise BadInput(f"path {path!r} can't be followed: {error}") from None
    if not target.is_relative_to(root):
        raise BadInput(f"path {path!r} leads out of the root")
    if any(hidden(part) for part in target.relative_to(root).parts):
        raise BadInput(f"path {path!r} is hidden: such files are not read")
    return target


def hidden(name: str) -> bool:
    return name.startswith(".") or name.casefold() in NOT_READ


def opened(target: Path) -> int:
    """A descriptor of exactly this regular file, also if somebody puts a link in its place meanwhile."""
    try:
        descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise BadInput(f"can't be read: {error.strerror}") from None
    where = f"/proc/self/fd/{descriptor}"
    moved = os.path.islink(where) and os.readlink(where) != str(target)
    if moved or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadInput("is no regular file")
    return descriptor


def lines(target: Path, shown: str, first: int, most: int, contains: str) -> dict[str, object]:
    found: list[dict[str, object]] = []
    characters = 0
    more = False
    with os.fdopen(opened(target), "rb") as file:
        for number, raw in enumerate(file, start=1):
            if b"\0" in raw:
                raise BadInput(f"{shown!r} is no text file")
            if number < first:
                continue
            text = raw.decode("utf-8", "replace").rstrip("\r\n")
            if contains and contains not in text:
                continue
            if len(found) == most or characters > MOST_CHARACTERS:
                more = True
                break
            cut = text if len(text) <= MOST_LINE else text[:MOST_LINE] + "…"
            characters += len(cut)
            found.append({"line": number, "text": cut})
    return {"path": shown, "kind": "file", "lines": found, "more": more}


def listing(root: Path, target: Path, shown: str, recursive: bool) -> dict[str, object]:
    entries: list[dict[str, object]] = []
    for folder, folders, files in os.walk(target):
        folders[:] = sorted(name for name in folders if not hidden(name))
        here = Path(folder)
        entries += [{"path": (here / name).relative_to(root).as_posix(), "kind": "directory"} for name in folders]
        for name in sorted(files):
            if not hidden(name):
                size = (here / name).lstat().st_size
                entries.append({"path": (here / name).relative_to(root).as_posix(), "kind": "file", "bytes": size})
        if not recursive or len(entries) > MOST_ENTRIES:
            break
    more = len(entries) > MOST_ENTRIES
    return {"path": shown, "kind": "directory", "entries": entries[:MOST_ENTRIES], "more": more}
