"""``python -m workers.skills list | new | check | run``: skills without a fleet; ``rolecall skills`` hands on to it.

Results on stdout, everything else on stderr; exit codes as the command line's: 0 done, 1 the run failed, 2 wrong usage
or a broken skill, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from protocol.errors import RolecallError, SkillError
from protocol.kit.settings import Settings
from protocol.record import Json
from workers.skills.loader import Loaded, load_skills
from workers.skills.manifest import Skill
from workers.skills.runner import SkillRunner
from workers.skills.scaffold import new_skill
from workers.skills.venvs import VenvFailed, Venvs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", action="store_true", help="one JSON document on stdout")
    shared.add_argument("--debug", action="store_true", help="show tracebacks")
    parser = argparse.ArgumentParser(prog="rolecall skills", description="List, make, check and run skills.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("list", parents=[shared], help="the skills there are (the default)")
    new = commands.add_parser("new", parents=[shared], help="make a skill folder that runs")
    new.add_argument("key")
    new.add_argument("--to", type=Path, help="the directory to make it in (the first of ROLECALL_SKILLS, or ./skills)")
    check = commands.add_parser("check", parents=[shared], help="check skill folders, make their environments")
    check.add_argument("directories", type=Path, nargs="*", metavar="DIR")
    run = commands.add_parser("run", parents=[shared], help="run one skill")
    run.add_argument("key")
    run.add_argument("--input", default="{}", metavar="JSON", help="the arguments; @FILE reads a file, - reads stdin")
    run.add_argument("--skills", type=Path, action="append", default=[], metavar="DIR", help="look here first")
    if not words or words[0] in ("--json", "--debug"):
        words.insert(0, "list")
    given = parser.parse_args(words)
    logging.getLogger("workers").addHandler(logging.NullHandler())  # this command says itself what went wrong
    try:
        settings = Settings.load(os.environ, Path.cwd())
        return int(_COMMANDS[given.command](given, settings))
    except RolecallError as error:
        if given.debug:
            raise
        _note(f"{error}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _list(given: argparse.Namespace, settings: Settings) -> int:
    loaded = load_skills(settings.skills_path)
    rows = [_row(skill) for skill in loaded.skills.values()]
    if given.json:
        _emit({"skills": rows, **_wrong(loaded)})
    else:
        width = max((len(row["skill"]) for row in rows), default=0)
        for row in rows:
            _line(f"{row['skill']:<{width}}  {row['version']:<8} {row['description']}")
    return _told(loaded)


def _new(given: argparse.Namespace, settings: Settings) -> int:
    parent = given.to or next(iter(settings.skills_path), Path("skills"))
    folder = new_skill(given.key, parent)
    if given.json:
        _emit({"skill": given.key, "folder": str(folder)})
    else:
        _line(str(folder))
        _note(f"next: edit it, then: rolecall skills check {folder}")
    return 0


def _check(given: argparse.Namespace, settings: Settings) -> int:
    if given.directories:
        loaded = load_skills(given.directories, shipped=False)
    else:
        loaded = load_skills(settings.skills_path)
    failed = asyncio.run(_environments(loaded, settings))
    rows = [_row(skill) for skill in loaded.skills.values()]
    if given.json:
        _emit({"skills": rows, **_wrong(loaded), "environments": failed})
    else:
        for row in rows:
            _line(f"ok  {row['skill']}  {row['folder']}" if row["skill"] not in failed else f"--  {row['skill']}")
    for words in failed.values():
        _note(words)
    if not loaded.skills and not loaded.problems:
        raise SkillError("there is no skill", mend="name a skill's folder, or a directory of such folders")
    return 2 if failed else _told(loaded)


async def _environments(loaded: Loaded, settings: Settings) -> dict[str, str]:
    """Make the environment of every skill that has requirements; what failed, by key."""
    failed: dict[str, str] = {}
    venvs = Venvs(settings.data_dir, os.environ)
    for skill in loaded.skills.values():
        if skill.requirements is not None:
            _note(f"{skill.key}: packages of {skill.requirements} …")
        try:
            await venvs.python(skill)
        except VenvFailed as error:
            failed[skill.key] = str(error)
    return failed


def _run(given: argparse.Namespace, settings: Settings) -> int:
    loaded = load_skills([*given.skills, *settings.skills_path])
    skill = loaded.need(given.key)
    runner = SkillRunner(env=os.environ, data_dir=settings.data_dir)
    run = asyncio.run(runner.run(skill, _input(given.input), agent="person"))
    if run.log:
        sys.stderr.write(run.log if run.log.endswith("\n") else f"{run.log}\n")
    if given.json:
        _emit(run.to_json())
    elif run.ok:
        _emit(run.output)
    if not run.ok:
        _note(f"{run.status}: {run.error} ({run.attempts} attempts, {run.duration_ms} ms)")
    return 0 if run.ok else 1


_COMMANDS = {"list": _list, "new": _new, "check": _check, "run": _run}


def _input(text: str) -> Json:
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise SkillError(f"--input is no JSON: {error}", mend="""write it like --input '{"text": "…"}'""") from None


def _row(skill: Skill) -> dict[str, Json]:
    return {
        "skill": skill.key, "name": skill.name, "description": skill.description, "version": skill.version,
        "category": skill.category, "tiers": list(skill.tiers), "active": skill.is_active,
        "kind": "code" if skill.callable else "instructions", "folder": str(skill.folder),
    }  # fmt: skip


def _wrong(loaded: Loaded) -> dict[str, Json]:
    return {"problems": [str(problem) for problem in loaded.problems], "warnings": list(loaded.warnings)}


def _told(loaded: Loaded) -> int:
    for text in (*loaded.warnings, *map(str, loaded.problems)):
        _note(text)
    return 2 if loaded.problems else 0


def _emit(value: Json) -> None:
    _line(json.dumps(value, indent=2, ensure_ascii=False))


def _line(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output left: nobody is there to be told
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
    sys.exit(code)
