"""Writes the parts of the docs that are made from code: ``make docs``, or ``.ci/docs.py --check`` to only compare.

A part stands in a page between ``<!-- made:NAME -->`` and ``<!-- /made:NAME -->``; what is around it is written by
hand. Guarantees: the same code gives the same text, whatever the terminal; a page with a part that nobody makes, or
that is not closed, is an error by name. Never touches anything outside the marks.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from coordinator.cli import rolecall
from coordinator.cli.lazy import COMMANDS, FLEET, RECORDS
from protocol.keys import Keys, SpaceKeys
from protocol.kit.crash import POINTS
from protocol.kit.metrics import LABELS
from protocol.kit.metrics import TABLE as METRICS
from protocol.kit.settings_table import TABLE as SETTINGS
from protocol.kit.settings_table import Bad, Setting
from protocol.record import EVENT_TABLE, REASONS
from protocol.tasks import DECISIONS, HIGHER_ATTEMPT, SAME_ATTEMPT

ROOT: Final = Path(__file__).resolve().parent.parent
PART: Final = re.compile(r"<!-- made:(?P<name>[a-z-]+) -->\n(?P<text>.*?)<!-- /made:(?P=name) -->", re.DOTALL)
OPENED: Final = re.compile(r"<!-- made:([a-z-]+) -->")
SHARED: Final = {"json", "debug", "help"}
PLACEHOLDERS: Final = {"name": "S", "role": "R"}
"""What stands for a parameter in a key's name; any other stands as ``<its name>``."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(markdown(cell).replace('|', chr(92) + '|') for cell in row)} |\n" for row in lines)


def markdown(text: str) -> str:
    """Docstrings write code with two backticks, Markdown with one."""
    return text.replace("``", "`")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "-"


# --- settings, metrics, crash points ----------------------------------------------------------------------------------


def settings() -> str:
    rows = [(code(row.name), code(row.key), default_of(row), row.help) for row in SETTINGS]
    return table(("environment", "in `rolecall.toml`", "default", "what it does"), rows)


def default_of(row: Setting) -> str:
    """The default as a person reads it."""
    if row.default is None or row.default == ():
        return row.shown_default or ("off" if row.default is None and can_be_off(row) else "not set")
    if isinstance(row.default, tuple):
        return code(",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in row.default))
    if isinstance(row.default, bool):
        return code("on" if row.default else "off")
    return code(f"{row.default:g}" if isinstance(row.default, float) else str(row.default))


def can_be_off(row: Setting) -> bool:
    """True where ``off`` is a value of the setting."""
    try:
        return not row.secret and row.parse("off", ROOT) is None
    except Bad:
        return False


def metrics() -> str:
    rows = [(code(m.name), m.kind, listed(map(code, m.labels)), m.help, counted_in(m.name)) for m in METRICS]
    return table(("metric", "kind", "labels", "what it counts", "counted in"), rows)


def counted_in(name: str) -> str:
    """The files that touch a metric."""
    found = [path for path in sources("workers", "coordinator") if f'"{name}"' in path.read_text(encoding="utf-8")]
    return listed(code(path.relative_to(ROOT).as_posix()) for path in found) if found else "nothing yet"


def labels() -> str:
    def values(name: str) -> str:
        known = LABELS[name]
        return (
            listed(map(code, sorted(known))) if known is not None else "those that are known at run time, at most 200"
        )

    return table(("label", "values"), [(code(name), values(name)) for name in LABELS])


def crash_points() -> str:
    return table(("point", "the process ends when"), [(code(name), when) for name, when in POINTS.items()])


# --- events and transitions -------------------------------------------------------------------------------------------


def events() -> str:
    rows = []
    for rule in EVENT_TABLE.values():
        needs = listed(" or ".join(map(code, need.split("|"))) for need in rule.needs)
        state = "waiting, with `waiting_for`; else pending" if rule.event == "task_pending" else rule.state or "-"
        rows.append((code(rule.event), rule.written_by, needs, state, code(f"{rule.prefix}…")))
    return table(("event", "written by", "required in `detail`", "task state after", "id that is made up"), rows)


def transitions() -> str:
    rows = [(state, listed(SAME_ATTEMPT[state]), listed(HIGHER_ATTEMPT[state])) for state in SAME_ATTEMPT]
    return table(("from", "to, in the same attempt", "what may open a higher attempt"), rows)


def decisions() -> str:
    rows = [(code(action), listed(before), after) for action, (before, after) in DECISIONS.items()]
    return table(("`detail.action`", "from", "to"), rows)


def reasons() -> str:
    return " ".join(map(code, REASONS)) + "\n"


# --- keys -------------------------------------------------------------------------------------------------------------


def space_keys() -> str:
    return key_table(Keys().space("S"), SpaceKeys)


def fleet_keys() -> str:
    return key_table(Keys(), Keys)


def key_table(keys: object, of: type) -> str:
    """Every key of a class: its name, and what its docstring says before and after the first colon."""
    tree = ast.parse(inspect.getsource(of)).body[0]
    assert isinstance(tree, ast.ClassDef)
    rows = []
    for item in tree.body:
        text = ast.get_docstring(item) if isinstance(item, ast.FunctionDef) else None
        if text is None or not isinstance(item, ast.FunctionDef):
            continue
        given = [PLACEHOLDERS.get(arg.arg, f"<{arg.arg}>") for arg in item.args.args[1:]]
        member = getattr(keys, item.name)
        kind, _, what = " ".join(text.split()).partition(": ")
        used = "" if is_used(item.name) else " (a reserved name: nothing writes it yet)"
        rows.append(
            (code(member(*given) if given else member), kind if what else "-", (what or kind).rstrip(".") + used)
        )
    return table(("key", "type", "what"), rows)


def is_used(name: str) -> bool:
    """True where code asks a key object for this key."""
    asked = re.compile(rf"(?:keys|\bk|\.space\([^()]*\))\.{name}\b")
    if name == "index":  # made by the scripts, which know the space by its tag
        return any("':ix:" in path.read_text(encoding="utf-8") for path in (ROOT / "protocol").rglob("*.lua"))
    return any(asked.search(path.read_text(encoding="utf-8")) for path in sources("protocol", "workers", "coordinator"))


def sources(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


# --- the command line -------------------------------------------------------------------------------------------------


def commands() -> str:
    out = []
    for section in (RECORDS, FLEET):
        out.append(f"## {section}\n\n")
        top = click.Context(rolecall, info_name="rolecall")
        for name, (of, _, _) in COMMANDS.items():
            command = rolecall.get_command(top, name) if of == section else None
            if command is not None:
                out += described(command, click.Context(command, info_name=name, parent=top))
    return "".join(out).rstrip() + "\n"


def described(command: click.Command, context: click.Context) -> Iterator[str]:
    """One command and those below it."""
    shown = [p for p in command.params if isinstance(p, click.Option) and p.name not in SHARED]
    usage = [p for p in command.collect_usage_pieces(context) if p != "[OPTIONS]" or shown]
    yield f"### `{context.command_path}`\n\n"
    yield f"    {' '.join([context.command_path, *usage])}\n\n"
    yield f"{markdown(inspect.cleandoc(command.help or command.short_help or ''))}\n\n"
    if shown:
        yield table(("option", "what"), [option(p, context) for p in shown]) + "\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from described(inner, click.Context(inner, info_name=name, parent=context))


def option(made: click.Option, context: click.Context) -> tuple[str, str]:
    names = ", ".join(made.opts)
    value = "" if made.is_flag else f" {made.make_metavar(context)}"
    words = made.help or ""
    if made.show_default and isinstance(made.default, str | int | float) and not isinstance(made.default, bool):
        words = f"{words} Default: {made.default}.".strip()
    if made.required:
        words = f"{words} Required.".strip()
    return code(f"{names}{value}"), words


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "settings": settings,
    "metrics": metrics,
    "labels": labels,
    "crash-points": crash_points,
    "events": events,
    "transitions": transitions,
    "decisions": decisions,
    "reasons": reasons,
    "space-keys": space_keys,
    "fleet-keys": fleet_keys,
    "commands": commands,
}


def pages(root: Path = ROOT) -> list[Path]:
    """Every Markdown page that may hold made parts."""
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])


def renewed(text: str, where: str) -> str:
    """``text`` with every part made anew. Raises ValueError that names page and part."""

    def make(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in PARTS:
            raise ValueError(f"{where}: nobody makes {name!r}; known: {', '.join(PARTS)}")
        return f"<!-- made:{name} -->\n{PARTS[name]()}<!-- /made:{name} -->"

    closed = [found["name"] for found in PART.finditer(text)]
    if closed != OPENED.findall(text):
        raise ValueError(f"{where}: a part is opened and not closed")
    return PART.sub(make, text)


def outdated(root: Path = ROOT) -> dict[Path, str]:
    """Pages that are not as the code makes them -> their new text."""
    out: dict[Path, str] = {}
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        new = renewed(text, str(page.relative_to(root)))
        if new != text:
            out[page] = new
    return out


def main(arguments: Sequence[str]) -> int:
    old = outdated()
    for page, text in old.items():
        if "--check" in arguments:
            print(f"{page.relative_to(ROOT)} is not as the code has it: make docs", file=sys.stderr)
        else:
            page.write_text(text, encoding="utf-8")
            print(page.relative_to(ROOT))
    return 1 if old and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
