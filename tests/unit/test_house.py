"""The house itself: file sizes, directions of imports by name, and what a wheel carries."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import leaks

ROOT = Path(__file__).resolve().parents[2]

# What the pure core may import beside itself. Clock, environment, sockets and files are not among them.
PURE = {
    "__future__", "abc", "base64", "bisect", "codecs", "collections", "contextlib", "dataclasses", "datetime",
    "decimal", "difflib", "enum", "functools", "graphlib", "hashlib", "heapq", "html", "itertools", "json", "math",
    "operator", "re", "string", "textwrap", "types", "typing", "unicodedata", "zlib", "orjson", "pydantic",
    "pydantic_core", "yaml",
}  # fmt: skip
GATES = {"jsonschema", "ast", "threading", "concurrent", "referencing"}
PACKAGES = {"protocol", "coordinator", "workers"}
COORDINATOR_PURE = (
    "flows", "merge", "arbitrate", "summary", "items", "overlaps", "artifact", "deliveries", "deliveriesfile",
    "mergeinputs",
)  # fmt: skip


def imports(path: Path) -> set[str]:
    """The full names of the modules that a file imports, anywhere in it; those for the type checker alone left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unseen = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            folder = path.relative_to(ROOT).parent.parts
            above = ".".join(folder[: len(folder) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (above, node.module or "") if part)
            # `from package import module` is an import of the module
            found |= {f"{module}.{name.name}" for name in node.names} if module in PACKAGES else {module}
    return found


def pure_files() -> list[Path]:
    protocol = [
        path
        for path in (ROOT / "protocol").rglob("*.py")
        if path.relative_to(ROOT / "protocol").parts[0] not in ("stores", "kit")
        and path.name != "__main__.py"  # a command is no part of the contract
    ]
    todo = [
        path
        for name in COORDINATOR_PURE
        for path in [ROOT / "coordinator" / f"{name}.py", *(ROOT / "coordinator" / name).rglob("*.py")]
        if path.exists()
    ]
    coordinator: set[Path] = set()
    while todo:  # what a pure module of the coordinator imports there is pure too
        path = todo.pop()
        if path not in coordinator:
            coordinator.add(path)
            todo += [file for module in imports(path) if (file := file_of(module, "coordinator")) is not None]
    return sorted([*protocol, *coordinator])


def file_of(module: str, package: str) -> Path | None:
    """The file of ``module`` or, for a name imported from a module, of that module; None outside ``package``."""
    parts = module.split(".")
    if parts[0] != package:
        return None
    for length in range(len(parts), 1, -1):
        path = ROOT.joinpath(*parts[:length])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.exists():
                return file
    return None


@pytest.mark.parametrize("path", pure_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_pure_imports_only_what_is_pure(path):
    relative = path.relative_to(ROOT)
    allowed = PURE | (GATES if relative.parts[1].startswith("gates") else set())
    for module in imports(path):
        root = module.split(".")[0]
        if root == "protocol":
            assert not module.startswith(("protocol.stores", "protocol.kit")), f"{relative} imports {module}"
        elif root == "coordinator":
            assert relative.parts[0] == "coordinator", f"{relative} imports {module}"
        else:
            assert root in allowed, f"{relative} is pure and imports {module}"


@pytest.mark.parametrize("path", pure_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_pure_asks_no_clock(path):
    asked = [
        f"line {node.lineno}: .{node.func.attr}()"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("now", "utcnow", "today")
    ]
    assert asked == []


def test_redis_is_imported_by_the_adapters_alone():
    hosts = {
        Path("workers/host.py"),  # whoever hosts arq speaks its client too
        Path("workers/alarms.py"),  # so does whoever arms its alarms
        Path("workers/beat.py"),  # a small process of its own that imports nothing of ours
    }
    for package in ("protocol", "workers", "coordinator"):
        for path in (ROOT / package).rglob("*.py"):
            relative = path.relative_to(ROOT)
            if relative.is_relative_to("protocol/stores") or relative in hosts:
                continue
            assert not {name for name in imports(path) if name.split(".")[0] == "redis"}, relative


def gate(root: Path, most: int) -> list[tuple[str, int]]:
    spec = importlib.util.spec_from_file_location("filesize", ROOT / ".ci" / "filesize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[tuple[str, int]] = module.too_long(root, most)
    return found


def test_the_size_gate_sees_python_and_lua_and_nothing_else(tmp_path):
    for name in ("a.py", "append.lua", "notes.md", "docs/example.py", ".venv/lib.py", "包/长.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n" * 5)
    (tmp_path / "short.py").write_text("1\n" * 4)
    assert gate(tmp_path, 4) == [("a.py", 5), ("append.lua", 5), ("包/长.py", 5)]


def test_the_size_gate_ends_with_an_exit_code():
    ended = subprocess.run([sys.executable, ROOT / ".ci" / "filesize.py"], capture_output=True, text=True, check=False)
    over = gate(ROOT, 400)
    assert ended.returncode == (1 if over else 0)
    assert all(name in ended.stderr for name, _ in over)


def test_the_leak_check_knows_what_may_stay():
    lifetimes = {
        "p:{空间}:log": -1,
        "p:{S}:ix:e:task_completed": -1,
        "p:{p:role:审阅}:queued": -1,
        "p:{p:workers}:info": -1,
        "p:ctl:start": 5000,
        "p:ctl:forgotten": -1,
        "p:{S}:live": -1,
        "p:{S}:logs": -1,
        "q:{S}:log": -1,
        "arq:job:1": 1000,
        "arq:job:2": -1,
    }
    assert leaks(lifetimes, "p:") == sorted(["p:ctl:forgotten", "p:{S}:live", "p:{S}:logs", "q:{S}:log", "arq:job:2"])
