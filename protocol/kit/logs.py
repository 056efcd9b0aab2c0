"""Structured logs on stderr: one line an event, for people or (``ROLECALL_LOG=json``) as JSON lines.

Guarantees: one line a record whatever is in it, no password of a URL in any form, the standard library's loggers only
(a library's own lines come out in the same form). Never writes to stdout, never raises into the code that logs.

::

    log = get_log(__name__)
    log.info("claimed", task="T1", attempt=2)
    2026-07-11T21:00:00.123Z INFO worker:reviewer claimed task=T1 attempt=2
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from typing import Literal, TextIO

Style = Literal["human", "json"]

_PASSWORD = re.compile(r"(\w[\w+.-]*://)[^/@\s'\"]*@")
_PLAIN = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_ODD = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_FIELDS = "rolecall_fields"
_QUIET = ("httpx", "httpx2", "httpcore", "openai", "asyncio", "arq")


class Log:
    """A logger whose lines are an event (one word) and its fields. Cheap when its level is off."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, *, error: BaseException | None = None, **fields: object) -> None:
        """``error``: its type and words become a field; its traceback is shown in JSON and at level debug."""
        self._write(logging.ERROR, event, fields, error)

    def _write(self, level: int, event: str, fields: dict[str, object], error: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={_FIELDS: fields}, exc_info=error)


def get_log(name: str) -> Log:
    """The log of a module: ``get_log(__name__)``."""
    return Log(logging.getLogger(name))


def configure(
    actor: str, *, style: Style = "human", level: int | str = logging.INFO, stream: TextIO | None = None
) -> None:
    """Sends everything that is logged in this process to ``stream`` (stderr), as said by ``actor``. Legal twice."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    number = level if isinstance(level, int) else logging.getLevelNamesMapping()[level.upper()]
    handler.setFormatter(_Json(actor) if style == "json" else _Human(actor, traces=number <= logging.DEBUG))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old.formatter, _Form)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    for name in _QUIET:  # a line for each request or each job is noise, unless everything is asked for
        logging.getLogger(name).setLevel(number if number <= logging.DEBUG else logging.WARNING)
    logging.raiseExceptions = False  # a closed stderr must not end a process


def scrub(text: str) -> str:
    """``text`` without user and password in any URL."""
    return _PASSWORD.sub(r"\1***@", text)


class _Form(logging.Formatter):
    def __init__(self, actor: str) -> None:
        super().__init__()
        self.actor = actor

    def parts(self, record: logging.LogRecord) -> tuple[str, str, dict[str, object]]:
        """Time, event and fields. A line of another library keeps its words as a field."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        own = record.__dict__.get(_FIELDS)
        if isinstance(own, dict):
            event, fields = record.msg, dict(own)
        else:
            event, fields = record.name, {"message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return moment.replace("+00:00", "Z"), str(event), fields


class _Human(_Form):
    def __init__(self, actor: str, *, traces: bool) -> None:
        super().__init__(actor)
        self.traces = traces

    def format(self, record: logging.LogRecord) -> str:
        moment, event, fields = self.parts(record)
        words = [moment, record.levelname, self.actor, _word(event)]
        words += [f"{name}={_word(value)}" for name, value in fields.items()]
        line = scrub(" ".join(words))
        return f"{line}\n{scrub(_trace(record))}" if self.traces and record.exc_info else line


class _Json(_Form):
    def format(self, record: logging.LogRecord) -> str:
        moment, event, fields = self.parts(record)
        line: dict[str, object] = {"time": moment, "level": record.levelname, "actor": self.actor, "event": event}
        line.update({name: value for name, value in fields.items() if name not in line})
        if record.exc_info:
            line["trace"] = _trace(record)
        return scrub(_json(line))


def _trace(record: logging.LogRecord) -> str:
    return "".join(traceback.format_exception(record.exc_info[1])).rstrip() if record.exc_info else ""


def _word(value: object) -> str:
    """A value as one word, quoted if it is more than that."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if _PLAIN.fullmatch(text):
        return text
    return _json(text)


def _json(value: object) -> str:
    """JSON that is one line for every reader, and that every stream can write."""
    return _ODD.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False, default=str))
