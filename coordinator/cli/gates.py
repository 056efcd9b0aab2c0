"""``repair-json``, ``normalize-record``, ``validate-record``, ``schema``: the gates by hand, without a store."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.app import App, dump, pass_app, read_input, write_text
from coordinator.cli.lazy import Command

if TYPE_CHECKING:
    from protocol.errors import GateRefused


@click.command("repair-json", cls=Command, short_help="Gate 1 alone: print the repaired JSON.")
@click.argument("file", default="-")
@pass_app
def repair_json(app: App, file: str) -> int:
    """Print the one JSON value in FILE (or stdin); what was repaired goes to stderr."""
    from protocol.errors import GateRefused
    from protocol.gates import repair

    raw = read_input(file, "the text")
    try:
        value, notes = repair(raw)
    except GateRefused as refusal:
        return refused(app, refusal)
    for note in notes:
        app.note(f"repaired: {note}")
    if app.json:
        app.emit({"value": value, "repairs": notes})
    else:
        click.echo(dump(value, indent=True))
    return 0


@click.command("normalize-record", cls=Command, short_help="Gates 1 to 3: print the seven-field record.")
@click.argument("file", default="-")
@click.option("-o", "--output", default="-", metavar="FILE", help="Where the record goes. Default: stdout.")
@click.option("--session", default="sess_local", metavar="S", show_default=True, help="For a record that names none.")
@click.option("--strict", is_flag=True, help="Refuse unknown fields instead of moving them under detail.")
@pass_app
def normalize_record(app: App, file: str, output: str, session: str, strict: bool) -> int:
    """Print the record in FILE (or stdin) with its seven fields; every change goes to stderr.

    A JSON list of records gives a list. What can't be made valid is refused, naming each field by its path.
    """
    from coordinator.intake import split
    from protocol.errors import GateRefused
    from protocol.gates import default_new_id, normalise, validate
    from protocol.gates.chain import one_record

    new_id = default_new_id(lambda: secrets.token_hex(8))
    given = split(read_input(file))
    records: list[Any] = []
    changed: list[str] = []
    for at, one in enumerate(given):
        where = f"[{at}] " if len(given) > 1 else ""
        try:
            value, repairs = (one, []) if isinstance(one, dict) else one_record(one)
            fixed, changes = normalise(value, now=int(time.time()), session=session, new_id=new_id, strict=strict)
            records.append(validate(fixed).to_json())
        except GateRefused as refusal:
            return refused(app, refusal, where)
        changed += [where + text for text in (*repairs, *map(str, changes))]
    for text in changed:
        app.note(text)
    result = records if len(given) > 1 else records[0]
    write_text(output, dump(result, indent=not app.json))
    return 0


@click.command("validate-record", cls=Command, short_help="Gates 3 and 4 on what is there, unchanged.")
@click.argument("file", default="-")
@click.option("--strict", is_flag=True, help="Refuse what would be normalised, too.")
@pass_app
def validate_record(app: App, file: str, strict: bool) -> int:
    """Say whether the record in FILE (or stdin) is valid as it stands; a JSON list is judged one by one."""
    from coordinator.intake import split
    from protocol.errors import GateRefused
    from protocol.gates import check_schema, default_new_id, normalise, validate

    given = split(read_input(file))
    for at, one in enumerate(given):
        where = f"[{at}] " if len(given) > 1 else ""
        try:
            value = as_it_stands(one)
            check_schema(validate(value))
            if strict:
                _, changes = normalise(
                    value, now=int(time.time()), session="sess_local", new_id=default_new_id(lambda: "x"), strict=True
                )
                if changes:
                    problems = tuple((change.path, f"would be normalised: {change.note}") for change in changes)
                    raise GateRefused("strict", gate=2, problems=problems)
        except GateRefused as refusal:
            return refused(app, refusal, where)
    app.emit({"valid": True, "records": len(given)}, "valid" if len(given) == 1 else f"{len(given)} records, all valid")
    return 0


@click.command(cls=Command, short_help="Print the published JSON Schema of a record.")
def schema() -> None:
    """Print the published JSON Schema of a record (draft 2020-12)."""
    from protocol.gates import schema_text

    click.echo(schema_text(), nl=False)


def as_it_stands(one: bytes | Any) -> Any:
    """The value that a text says, nothing repaired. Raises GateRefused (gate 1)."""
    from protocol.errors import GateRefused
    from protocol.gates.strict import read_strict

    if not isinstance(one, bytes):
        return one
    try:
        found = read_strict(one.decode("utf-8"))
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise GateRefused("is no JSON as it stands", gate=1, mend="`rolecall repair-json` repairs what can be repaired")
    return found[0]


def refused(app: App, refusal: GateRefused, where: str = "") -> int:
    """Say which fields a gate refused and why; exit code 1."""
    if app.json:
        problems = [{"path": path, "message": words} for path, words in refusal.problems]
        app.emit({"refused_at": refusal.gate, "reason": refusal.reason, "problems": problems})
    for path, words in refusal.problems:
        app.note(f"rolecall: {where}gate {refusal.gate} refused {path}: {words}")
    if refusal.mend:
        app.note(f"  {refusal.mend}")
    return 1
