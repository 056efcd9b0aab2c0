"""One Python file as a verifier reads it: lines, comments, tree, and what stands around a place.

Guarantees: reads one file once, runs nothing of it. A file that does not parse still gives its lines.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_TEST_FILE = re.compile(r"(test_.*|.*_test|tests?|conftest)\.py")
_NOQA = re.compile(r"#\s*noqa(?P<codes>:\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)?", re.IGNORECASE)
_NOSEC = re.compile(r"#\s*nosec\b(?P<codes>[:\s]+B[0-9]{3}(?:[,\s]+B[0-9]{3})*)?", re.IGNORECASE)
_CODE = re.compile(r"[A-Z]+[0-9]+")


class Source:
    """A file below ``root``. ``rel`` is its name there, with ``/``."""

    def __init__(self, root: Path, rel: str) -> None:
        self.root = root
        self.rel = rel
        raw = (root / rel).read_bytes()
        self.text = raw.decode(_encoding(raw), errors="replace")
        self.lines = self.text.splitlines()
        self.comments = dict(_comments(self.text))
        try:
            self.tree: ast.Module = ast.parse(raw)
        except (SyntaxError, ValueError):
            self.tree = ast.Module(body=[], type_ignores=[])
        self._parents: dict[ast.AST, ast.AST] = {}
        self._starting: defaultdict[int, list[ast.AST]] = defaultdict(list)
        self._statement: dict[int, ast.stmt] = {}
        for node in ast.walk(self.tree):  # outer nodes come first, so the innermost statement has the last word
            self._parents.update((child, node) for child in ast.iter_child_nodes(node))
            if line := getattr(node, "lineno", 0):
                self._starting[line].append(node)
            if isinstance(node, ast.stmt):
                self._statement.update(dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node))

    @property
    def is_test(self) -> bool:
        """True for files that only tests run."""
        path = PurePosixPath(self.rel)
        return bool(_TEST_FILE.fullmatch(path.name)) or bool({"tests", "test"} & set(path.parts[:-1]))

    def nodes(self, line: int, *kinds: type[ast.AST]) -> list[ast.AST]:
        """Nodes of these kinds that begin on ``line``; where none does, those inside the statement beginning there."""
        found = [node for node in self._starting.get(line, ()) if isinstance(node, kinds)]
        if found:
            return found
        stmt = self.statement(line)
        return [n for n in ast.walk(stmt) if isinstance(n, kinds)] if stmt and not hasattr(stmt, "body") else []

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement that covers ``line``."""
        return self._statement.get(line)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around ``node``, from the inside out."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def inside(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        """The nearest node of these kinds around ``node``."""
        return next((n for n in self.above(node) if isinstance(n, kinds)), None)

    def scope_names(self, node: ast.AST) -> list[str]:
        """Names of the functions and classes around ``node``, from the inside out."""
        return [
            n.name for n in self.above(node) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]

    def typing_only(self, line: int) -> bool:
        """True where the line stands in an ``if TYPE_CHECKING:`` block, which never runs."""
        stmt = self.statement(line)
        if stmt is None:
            return False
        child: ast.AST = stmt
        for node in self.above(stmt):
            if isinstance(node, ast.If) and child in node.body and _is_type_checking(node.test):
                return True
            child = node
        return False

    def mark(self, line: int, rule: str) -> str:
        """The ``noqa`` or ``nosec`` comment on the statement of ``line`` that covers ``rule``, or nothing."""
        stmt = self.statement(line)
        last = (stmt.end_lineno or line) if stmt and not hasattr(stmt, "body") else line
        first = stmt.lineno if stmt and not hasattr(stmt, "body") else line
        for row in range(first, last + 1):
            comment = self.comments.get(row, "")
            for pattern, own in ((_NOQA, rule), (_NOSEC, "B" + rule[1:] if rule.startswith("S") else "")):
                found = pattern.search(comment)
                if found and own and (not found["codes"] or own in _CODE.findall(found["codes"].upper())):
                    return comment.strip()
        return ""

    def comment_within(self, node: ast.AST) -> str:
        """The first comment that explains ``node`` (pragmas for tools don't), or nothing."""
        first = getattr(node, "lineno", 0)
        for row in range(first, (getattr(node, "end_lineno", None) or first) + 1):
            words = self.comments.get(row, "").lstrip("#").strip()
            if words and not re.match(r"(noqa|nosec|type:|pragma|pylint|ruff|fmt)", words, re.IGNORECASE):
                return words
        return ""


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _encoding(raw: bytes) -> str:
    try:
        return tokenize.detect_encoding(io.BytesIO(raw).readline)[0]
    except SyntaxError:
        return "utf-8"


def _comments(text: str) -> Iterator[tuple[int, str]]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    except (tokenize.TokenError, SyntaxError):
        return
