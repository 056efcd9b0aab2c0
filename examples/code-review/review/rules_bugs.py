"""Context rules for the likely bugs (F, B, BLE, ASYNC, PERF, E7). None means: nothing to add.

Guarantees: pure apart from reading the file that a star import names; never leaves the root.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from pathlib import Path

from review.source import Source
from review.verdict import Answer, Rule

_CHANGES = frozenset({
    "append", "extend", "insert", "remove", "pop", "popitem", "clear", "sort", "reverse", "add", "discard", "update",
    "setdefault",
})  # fmt: skip
_AT_ONCE = frozenset({"sorted", "min", "max", "filter", "map", "any", "all", "sum"})


def star_name(source: Source, line: int, rule: str) -> Answer:
    """F405: a name that may come from a star import is looked up in the modules that are starred."""
    imported = [n for n in ast.walk(source.tree) if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]
    files = {node: _module_file(source, node) for node in imported}
    own = _bound(source.tree)
    for node in source.nodes(line, ast.Name):
        name = node.id if isinstance(node, ast.Name) else ""
        if name in own or hasattr(builtins, name):
            continue
        homes = [found for path in files.values() if path and (found := _defined(source.root, path, name))]
        if not homes:
            if None in files.values():
                return "partial", f"`{name}` comes from a star import of a module outside the reviewed directory"
            return "confirmed", f"`{name}` is defined in none of the modules that are imported with a star"
        if len(homes) > 1:
            return "confirmed", f"`{name}` is defined in {' and '.join(homes)}: which one counts depends on the order"
        return "rejected", f"`{name}` is defined: {homes[0]}"
    return None


def raise_without_from(source: Source, line: int, rule: str) -> Answer:
    """B904: a raise in a handler that names no cause; one that carries the cause's words loses less."""
    for node in source.nodes(line, ast.Raise):
        if not isinstance(node, ast.Raise) or node.exc is None:
            continue
        handler = source.inside(node, ast.ExceptHandler)
        caught = handler.name if isinstance(handler, ast.ExceptHandler) else None
        if any(isinstance(n, ast.Attribute) and n.attr == "with_traceback" for n in ast.walk(node.exc)):
            return "rejected", "the original traceback is put on the new exception by `with_traceback`"
        if not isinstance(node.exc, ast.Call):
            return "partial", "raises an exception that was made elsewhere; a cause would help, but may be set there"
        if caught and any(isinstance(n, ast.Name) and n.id == caught for n in ast.walk(node.exc)):
            return "partial", f"carries the words of `{caught}`, but not as its cause: add `from {caught}`"
    return "confirmed", "the traceback will say “during handling of … another exception occurred”: add `from`"


def zip_lengths(source: Source, line: int, rule: str) -> Answer:
    """B905: lengths that are equal by construction need no ``strict``."""
    for call in source.nodes(line, ast.Call):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "zip"):
            continue
        texts = [ast.unparse(arg) for arg in call.args]
        if len(texts) == 1 and texts[0].startswith("*") and texts[0].endswith(".items()"):
            return "rejected", "the items of a mapping are pairs, so all lengths are equal by construction"
        if len(texts) == 2 and (texts[0] == texts[1] or _halves(call)):
            return "partial", "takes one sequence in pairs: an odd last element would be dropped without a word"
    return "confirmed", "nothing here makes the lengths equal: what is left over is dropped without a word"


def broad_except(source: Source, line: int, rule: str) -> Answer:
    """BLE001: broad is fine where the exception is kept, raised on or logged, in ``__del__``, or explained."""
    for node in source.nodes(line, ast.ExceptHandler):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if "__del__" in source.scope_names(node)[:1]:
            return "rejected", "stands in `__del__`: an exception there can reach nobody, Python would only print it"
        for inner in (n for stmt in node.body for n in ast.walk(stmt)):
            if node.name and isinstance(inner, ast.Assign) and _is_name(inner.value, node.name):
                return "rejected", f"nothing is swallowed: the exception is kept in `{ast.unparse(inner.targets[0])}`"
            if isinstance(inner, ast.Raise):
                return "rejected", "nothing is swallowed: the handler raises on"
        if words := source.comment_within(node):
            return "rejected", f"the handler says why it is so broad: “{words[:70]}”"
        if all(isinstance(stmt, ast.Pass | ast.Continue) for stmt in node.body):
            return "confirmed", "every error ends here in silence, programming errors too"
    return "confirmed", "every error is taken for the one that was meant, programming errors too"


def loop_variable(source: Source, line: int, rule: str) -> Answer:
    """B023: a closure that is called within the same round sees the right value."""
    for node in source.nodes(line, ast.Lambda):
        call = source.inside(node, ast.Call)
        if isinstance(call, ast.Call) and node in [*call.args, *(key.value for key in call.keywords)]:
            name = ast.unparse(call.func)
            if name in _AT_ONCE or name.endswith(".sort"):
                return "rejected", f"`{name}` calls the lambda at once, in the same round of the loop"
            return "partial", f"handed to `{name}` in the same round: a fault only if that keeps it for later"
    return "confirmed", "the closure outlives the round of the loop: it will see the last value"


def mutable_default(source: Source, line: int, rule: str) -> Answer:
    """B006: a shared default is a fault once something changes it or lets it out."""
    function = _function_around(source, line)
    if function is None:
        return None
    for name, default in _defaults(function):
        if not isinstance(default, ast.List | ast.Dict | ast.Set | ast.Call):
            continue
        for node in (n for stmt in function.body for n in ast.walk(stmt)):
            if _changes(node, name):
                where = getattr(node, "lineno", line)
                return "confirmed", f"`{name}` is changed in line {where}: every later call sees the change"
            if isinstance(node, ast.Assign) and _is_name(node.value, name) and "." in ast.unparse(node.targets[0]):
                return "confirmed", f"`{name}` is kept as `{ast.unparse(node.targets[0])}`: one object for everybody"
            if isinstance(node, ast.Return) and node.value is not None and _is_name(node.value, name):
                return "confirmed", f"`{name}` is returned: a caller that changes it changes the default"
    return "partial", "shared by all calls, but nothing in the function changes it: a fault waiting for the next edit"


def call_in_default(source: Source, line: int, rule: str) -> Answer:
    """B008: one object for all calls, made at import."""
    function = _function_around(source, line)
    calls = [d for _, d in _defaults(function) if isinstance(d, ast.Call)] if function else []
    if calls and all(ast.unparse(call.func).split(".")[-1][:1].isupper() and not call.args for call in calls):
        return "partial", "one object is shared by all calls: a fault only if it keeps state"
    return "confirmed", "called once, at import: every later call gets the very same value"


def unused_loop_variable(source: Source, line: int, rule: str) -> Answer:
    """B007: a loop variable that is used after the loop is not unused."""
    for loop in source.nodes(line, ast.For, ast.AsyncFor):
        scope = source.inside(loop, ast.FunctionDef, ast.AsyncFunctionDef) or source.tree
        names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}  # type: ignore[attr-defined]
        end = getattr(loop, "end_lineno", line)
        after = [
            n.id
            for n in ast.walk(scope)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in names and n.lineno > end
        ]
        if after:
            return "partial", f"`{after[0]}` is read after the loop, if only by that name"
    return None


def async_timeout(source: Source, line: int, rule: str) -> Answer:
    """ASYNC109: a ``timeout`` that is only passed on is part of an interface."""
    function = _function_around(source, line)
    if function is None:
        return None
    used = [n for stmt in function.body for n in ast.walk(stmt) if _is_name(n, "timeout")]
    if not used:
        return "confirmed", "`timeout` is never used in the function: who gives it gets none"
    calls = [call for name in used if isinstance(call := source.inside(name, ast.Call), ast.Call)]
    if any("timeout" in ast.unparse(call.func) for call in calls):
        return "rejected", "the function keeps its timeout itself (`asyncio.timeout`): the callers can rely on it"
    return "partial", "`timeout` is only handed on: a fault if what gets it does not keep it"


BUG_RULES: Mapping[str, Rule] = {
    "F405": star_name, "B904": raise_without_from, "B905": zip_lengths, "BLE001": broad_except, "B023": loop_variable,
    "B006": mutable_default, "B008": call_in_default, "B007": unused_loop_variable, "ASYNC109": async_timeout,
}  # fmt: skip


def _module_file(source: Source, node: ast.ImportFrom) -> Path | None:
    """The file of a starred module below the root, or None where it lies elsewhere."""
    parts = node.module.split(".") if node.module else []
    here = (source.root / source.rel).parent
    if node.level:
        bases = [here.joinpath(*[".."] * (node.level - 1))]
    else:  # absolute: the root may be the package itself or the folder around it
        bases = [source.root, source.root.parent]
    for base in bases:
        stem = base.joinpath(*parts)
        for path in (stem.with_name(stem.name + ".py") if parts else stem / "__init__.py", stem / "__init__.py"):
            if path.is_file() and path.resolve().is_relative_to(source.root.resolve()):
                return path
    return None


def _defined(root: Path, path: Path, name: str) -> str:
    """``file:line`` where the module binds ``name`` at its top, or nothing."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return ""
    for bound, line in _bound(tree).items():
        if bound == name:
            return f"{path.resolve().relative_to(root.resolve()).as_posix()}:{line}"
    return ""


def _bound(tree: ast.Module) -> dict[str, int]:
    """Names that a module binds at its top level, also under ``if`` and ``try``."""
    out: dict[str, int] = {}
    queue: list[ast.stmt] = list(tree.body)
    while queue:
        node = queue.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            out.setdefault(node.name, node.lineno)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                out.setdefault(alias.asname or alias.name.split(".")[0], node.lineno)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        out.setdefault(part.id, node.lineno)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            queue += [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt)]
            queue += [stmt for h in getattr(node, "handlers", []) for stmt in h.body]
    return out


def _halves(call: ast.Call) -> bool:
    """True for ``zip(x[0::2], x[1::2])``, also where the parts go through a function."""
    slices = [
        n for arg in call.args for n in ast.walk(arg) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Slice)
    ]
    return len(slices) == 2 and all(
        isinstance(s.slice, ast.Slice) and s.slice.step is not None and ast.unparse(s.slice.step) == "2" for s in slices
    )


def _function_around(source: Source, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost function whose signature covers ``line``."""
    found = [
        n
        for n in ast.walk(source.tree)
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.lineno <= line <= n.body[0].lineno
    ]
    return max(found, key=lambda n: n.lineno, default=None)


def _defaults(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, ast.expr]]:
    args = [*function.args.posonlyargs, *function.args.args]
    for arg, default in zip(args[len(args) - len(function.args.defaults) :], function.args.defaults, strict=True):
        yield arg.arg, default
    for arg, kw in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if kw is not None:
            yield arg.arg, kw


def _changes(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _CHANGES and _is_name(node.func.value, name)
    if isinstance(node, ast.AugAssign):
        return _is_name(node.target, name)
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
    return any(isinstance(target, ast.Subscript) and _is_name(target.value, name) for target in targets)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
