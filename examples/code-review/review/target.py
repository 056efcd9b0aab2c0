"""The code under review: which Python files there are, and how they are sliced by module.

Guarantees: reads names and sizes, runs nothing; a link that leads out of the directory is not followed; what was left
out is named. The same directory gives the same slices.
"""

from __future__ import annotations

import heapq
import importlib.metadata
import importlib.util
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SLICES = 6
LEAST_LINES = 400
"""A slice smaller than this is not worth a task of its own."""
MOST_FILES = 20_000
MOST_NAMES_BYTES = 90_000
"""File names of one slice: they travel in a task's input."""
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


class BadTarget(Exception):
    """The directory can't be reviewed: what is wrong, and the mend."""

    def __init__(self, message: str, mend: str) -> None:
        super().__init__(message)
        self.message = message
        self.mend = mend


@dataclass(frozen=True, slots=True)
class CodeFile:
    """One file: its name relative to the root, with ``/``, and its lines."""

    name: str
    lines: int


@dataclass(frozen=True, slots=True)
class Target:
    """What is reviewed. ``title`` is for people; ``left_out`` names files that can't be read, with the reason."""

    root: Path
    title: str
    files: tuple[CodeFile, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def lines(self) -> int:
        return sum(file.lines for file in self.files)


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the target that one scan looks at: whole modules, as far as they fit."""

    number: int
    title: str
    files: tuple[CodeFile, ...]

    @property
    def lines(self) -> int:
        return sum(file.lines for file in self.files)


def default_root() -> Path:
    """The installed ``redis`` client: other people's code that is always there."""
    spec = importlib.util.find_spec("redis")
    if spec is None or not spec.submodule_search_locations:
        raise BadTarget("the package 'redis' is not installed", "name a directory of Python code")
    return Path(next(iter(spec.submodule_search_locations)))


def default_target() -> Target:
    """What is reviewed where nothing is named, with its version. Raises BadTarget."""
    return look(default_root(), title=f"redis {importlib.metadata.version('redis')}")


def look(path: Path, *, title: str = "") -> Target:
    """The Python files below ``path``. Raises BadTarget where there is nothing to review."""
    try:
        root = path.expanduser().resolve()
        if not root.exists():
            raise BadTarget(f"there is no directory {str(path)!r}", "name a directory of Python code")
        if not root.is_dir():
            raise BadTarget(f"{str(path)!r} is a file", f"name a directory, for instance {str(path.parent)!r}")
        os.listdir(root)
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadTarget(f"{str(path)!r} can't be read: {why}", "name a directory that you may read") from None
    files, left_out = [], []
    for name in _names(root):
        try:
            data = (root / name).read_bytes()
            name.encode()
        except (OSError, UnicodeEncodeError) as error:
            left_out.append((name.encode(errors="replace").decode(), getattr(error, "strerror", None) or "odd name"))
            continue
        files.append(CodeFile(name, data.count(b"\n") + (not data.endswith(b"\n") and bool(data))))
        if len(files) > MOST_FILES:
            raise BadTarget(f"{str(path)!r} holds more than {MOST_FILES:,} Python files", "name a part of it")
    if not files:
        raise BadTarget(f"there are no readable Python files below {str(path)!r}", "name a directory of Python code")
    return Target(root, title or root.name or str(root), tuple(files), tuple(left_out))


def cut(target: Target, most: int = SLICES) -> list[Slice]:
    """The target in up to ``most`` slices of about the same size (more only where names would not fit), biggest
    first. A module stays whole unless it is larger than half a slice."""
    count = max(1, min(most, len(target.files), target.lines // LEAST_LINES))
    share = max(1, target.lines // (2 * count))  # half a slice: halves fill the slices evenly, wholes do not
    bins: list[tuple[int, int, list[CodeFile]]] = [(0, number, []) for number in range(count)]
    for module in sorted(_modules(target.files, share), key=lambda files: (-_lines(files), files[0].name)):
        lines, number, held = heapq.heappop(bins)
        heapq.heappush(bins, (lines + _lines(module), number, [*held, *module]))
    parts = [part for _, _, held in sorted(bins, key=lambda b: (-b[0], b[1])) for part in _fitting(held)]
    return [Slice(number, _title(part), tuple(part)) for number, part in enumerate(parts, 1)]


def _names(root: Path) -> Iterator[str]:
    """Python files below ``root``, in order, without what nobody wrote by hand."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _SKIPPED and not name.startswith(".") and not (Path(folder) / name / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            path = Path(folder) / name
            if name.endswith(".py") and path.is_file() and path.resolve().is_relative_to(root):
                yield path.relative_to(root).as_posix()


def _modules(files: Iterable[CodeFile], share: int, depth: int = 0) -> list[list[CodeFile]]:
    """The files by top-level module; one that is larger than ``share`` is taken apart, level by level."""
    groups: dict[str, list[CodeFile]] = defaultdict(list)
    for file in files:
        groups[file.name.split("/")[depth]].append(file)
    out: list[list[CodeFile]] = []
    for group in groups.values():
        if len(group) > 1 and _lines(group) > share:
            out += _modules(group, share, depth + 1)
        else:
            out.append(group)
    return out


def _fitting(files: list[CodeFile]) -> Iterator[list[CodeFile]]:
    """``files`` in parts whose names fit into a task's input."""
    part: list[CodeFile] = []
    room = MOST_NAMES_BYTES
    for file in sorted(files, key=lambda f: f.name):
        size = len(file.name.encode()) + 4
        if part and size > room:
            yield part
            part, room = [], MOST_NAMES_BYTES
        part.append(file)
        room -= size
    if part:
        yield part


def _title(files: Iterable[CodeFile], most: int = 3) -> str:
    """The slice's modules, the largest first: ``commands/core, client and 4 more``."""
    sizes: dict[str, int] = defaultdict(int)
    for file in files:
        parts = file.name.removesuffix("/__init__.py").removesuffix(".py").split("/")
        sizes["/".join(parts[:2])] += file.lines
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _lines(files: Iterable[CodeFile]) -> int:
    return sum(file.lines for file in files)
