"""What every command is handed: the environment, the settings, and where results go.

Guarantees: settings are read once and only when a command asks; results go to stdout, notes to stderr, both as UTF-8.
Never connects anywhere and imports nothing that is slow to import.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from protocol.kit.settings import Settings

T = TypeVar("T")


@dataclass
class App:
    """One run of the command line. ``json`` and ``debug`` are set by the options of that name."""

    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = field(default_factory=Path)
    json: bool = False
    debug: bool = False

    @classmethod
    def of_process(cls) -> App:
        """For this process: its environment and working directory."""
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        return cls(env=dict(os.environ), cwd=Path.cwd())

    @cached_property
    def settings(self) -> Settings:
        """The settings in force. Raises ConfigError."""
        from protocol.kit.settings import Settings

        return Settings.load(self.env, self.cwd)

    def emit(self, value: Any, human: str | None = None) -> None:
        """The result: ``value`` as one JSON document with ``--json``, else ``human`` (where given)."""
        if self.json or human is None:
            click.echo(dump(value, indent=not self.json or sys.stdout.isatty()))
        elif human:
            click.echo(human)

    def line(self, value: Any, human: str) -> None:
        """One line of a stream: JSON lines with ``--json``. Flushed, so that a reader sees it now."""
        click.echo(dump(value) if self.json else human)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Something beside the result: stderr."""
        click.echo(text, err=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a command's coroutine to its end."""
        return asyncio.run(work)


pass_app = click.make_pass_decorator(App)


def dump(value: Any, *, indent: bool = False) -> str:
    """JSON text, characters as they are; an integer past 64 bits stays exact."""
    import orjson

    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else 0).decode()
    except TypeError:
        import json

        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2 if indent else None)


def read_input(source: str | None, what: str = "the record") -> bytes:
    """The bytes of a file, or of stdin for ``-`` and None. Raises ConfigError."""
    from protocol.errors import ConfigError

    if source is None or source == "-":
        if sys.stdin.isatty():
            click.echo(f"reading {what} from the keyboard, end with Ctrl-D", err=True)
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"there is no file {source!r}", mend="name a file, or - for stdin") from None
    except OSError as error:
        raise ConfigError(f"{source!r} can't be read: {error.strerror}", mend="name a readable file") from None


def read_text(source: str | None, what: str = "the text") -> str:
    """The same as text. Raises ConfigError where it is no UTF-8."""
    from protocol.errors import ConfigError

    try:
        return read_input(source, what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} is not UTF-8 (byte {error.start})", mend="save it as UTF-8") from None


def write_text(target: str, text: str) -> None:
    """Write to a file in one step (a reader sees the old or the new), or to stdout for ``-``."""
    from protocol.errors import ConfigError

    if target == "-":
        click.echo(text, nl=not text.endswith("\n"))
        return
    path = Path(target)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ConfigError(f"{target!r} can't be written: {error.strerror}", mend="name a place you may write") from None
