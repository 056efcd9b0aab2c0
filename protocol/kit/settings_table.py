"""The table of settings: name, default, what it does, and how its text becomes a value.

One row a setting, read by `protocol.kit.settings`, by ``rolecall config`` and by the page of settings in the docs.
Guarantees: a parser either returns a value of its type or raises `Bad` with the problem and the mend. Never reads the
environment, never touches a file.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from protocol.errors import ConfigError
from protocol.kit import crash

Value = str | int | float | bool | Path | tuple[float, ...] | tuple[Path, ...] | None

_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")


class Bad(Exception):
    """A value that can't be used: the problem in words, and the mend."""

    def __init__(self, problem: str, mend: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.mend = mend


Parser = Callable[[object, Path], Value]
"""From (text of the environment or value of the file, folder for relative paths) to the value. Raises `Bad`."""


def number(least: float = 0.0, *, unit: str = "seconds") -> Parser:
    """A finite number above ``least``."""

    def parse(raw: object, _: Path) -> float:
        value = _float(raw, unit)
        if value <= least:
            raise Bad(f"must be more than {least:g}", f"give a number of {unit}, for instance 5 or 0.5")
        return value

    return parse


def whole(least: int, most: int) -> Parser:
    """A whole number from ``least`` to ``most``."""

    def parse(raw: object, _: Path) -> int:
        text = str(raw).strip()
        if isinstance(raw, bool) or not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise Bad("is no whole number", f"give a whole number from {least} to {most}")
        if not least <= int(text) <= most:
            raise Bad(f"is not between {least} and {most}", f"give a whole number from {least} to {most}")
        return int(text)

    return parse


def optional(inner: Parser) -> Parser:
    """``off`` (or ``none``) is None; the rest goes to ``inner``."""

    def parse(raw: object, folder: Path) -> Value:
        if raw is False or (isinstance(raw, str) and raw.strip().lower() in ("off", "none")):
            return None
        return inner(raw, folder)

    return parse


def one_of(*words: str) -> Parser:
    """One of a few words; case does not matter."""

    def parse(raw: object, _: Path) -> str:
        word = str(raw).strip().lower()
        if word not in words:
            raise Bad("is none of the known words", f"give one of: {', '.join(words)}")
        return word

    return parse


def text(raw: object, _: Path) -> str:
    """Any text without control characters."""
    if not isinstance(raw, str) or not raw.strip() or not raw.isprintable():
        raise Bad("is no plain text", "give one line of text")
    return raw.strip()


def switch(raw: object, _: Path) -> bool:
    """A yes or no."""
    word = str(raw).strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise Bad("is neither yes nor no", "give 1 or 0")


def delays(raw: object, _: Path) -> tuple[float, ...]:
    """``30,60`` or ``[30, 60]``: seconds before each further try."""
    parts = raw.split(",") if isinstance(raw, str) else raw if isinstance(raw, list) else [raw]
    values = tuple(_float(part, "seconds") for part in parts)
    if not 1 <= len(values) <= 20 or any(value < 0 for value in values):
        raise Bad("is no list of waiting times", "give 1 to 20 numbers of seconds with commas, for instance 30,60")
    return values


def folder(raw: object, base: Path) -> Path:
    """One path; ``~`` is the home directory."""
    if not isinstance(raw, str) or not raw.strip() or "\0" in raw:
        raise Bad("is no path", "give the path of a directory")
    return _absolute(raw.strip(), base)


def folders(raw: object, base: Path) -> tuple[Path, ...]:
    """A list of paths, in the environment with ``:`` between them."""
    parts = raw.split(os.pathsep) if isinstance(raw, str) else raw
    if not isinstance(parts, list) or not all(isinstance(part, str) and "\0" not in part for part in parts):
        raise Bad("is no list of paths", f"give directories with {os.pathsep!r} between them, or a list in the file")
    return tuple(_absolute(part.strip(), base) for part in parts if part.strip())


def redis_url(raw: object, _: Path) -> str:
    """The address of a Redis or Valkey server."""
    mend = "write it like redis://:password@127.0.0.1:6379/0"
    value = raw.strip() if isinstance(raw, str) else ""
    try:
        parts = urlsplit(value)
        complete = parts.path if parts.scheme == "unix" else parts.hostname
        int(parts.port or 0)  # asked because it raises for what is no port
    except ValueError:
        raise Bad("is no address", mend) from None
    if parts.scheme not in _SCHEMES:
        raise Bad(f"does not begin with one of {', '.join(_SCHEMES)}", mend)
    if not complete:
        raise Bad("names no server", mend)
    return value


def http_url(raw: object, _: Path) -> str:
    """The base address of a model endpoint."""
    mend = "write it like http://127.0.0.1:8080/v1"
    value = raw.strip() if isinstance(raw, str) else ""
    try:
        parts = urlsplit(value)
        int(parts.port or 0)
    except ValueError:
        raise Bad("is no address", mend) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Bad("is no http or https address", mend)
    return value.rstrip("/")


def prefix(raw: object, _: Path) -> str:
    """What every key begins with. Braces would break the spaces' hash tags."""
    if not isinstance(raw, str) or not _PREFIX.fullmatch(raw):
        raise Bad("is no prefix for keys", "give 1 to 64 of A-Z a-z 0-9 _ . : -, for instance rc:")
    return raw


def crash_at(raw: object, _: Path) -> str:
    """A crash point, ``name`` or ``name#N``."""
    try:
        crash.parse(str(raw))
    except ConfigError as error:
        raise Bad("names no crash point", error.mend) from None
    return str(raw).strip()


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: the environment's name, the attribute of `Settings`, the default and what it means."""

    name: str
    attr: str
    default: Value
    parse: Parser
    help: str
    secret: bool = False
    shown_default: str = ""

    @property
    def key(self) -> str:
        """The name in ``rolecall.toml``."""
        return self.name.removeprefix("ROLECALL_").lower()


TABLE: tuple[Setting, ...] = (
    Setting("REDIS_URL", "redis_url", None, redis_url, "the fleet's server; without it an embedded one is started"),
    Setting("ROLECALL_PREFIX", "prefix", "rc:", prefix, "what every key of this fleet begins with"),
    Setting("ROLECALL_ROLES", "roles_path", (), folders, "directories with your own role files"),
    Setting("ROLECALL_SKILLS", "skills_path", (), folders, "directories with your own skills"),
    Setting(
        "ROLECALL_DATA",
        "data_dir",
        None,
        folder,
        "where the embedded server and local runs keep their data",
        shown_default="the user's data directory",
    ),
    Setting("ROLECALL_BEAT_S", "beat_s", 5.0, number(), "a worker's beat to the store, every so many seconds"),
    Setting("ROLECALL_DEAD_S", "dead_s", 15.0, number(), "a worker without a beat for so long is dead"),
    Setting(
        "ROLECALL_HEARTBEAT_S", "heartbeat_s", 120.0, number(), "an agent's heartbeat record, every so many seconds"
    ),
    Setting("ROLECALL_LOST_S", "lost_s", 300.0, number(), "an agent silent for longer than this is lost"),
    Setting(
        "ROLECALL_LOST_POLICY",
        "lost_policy",
        "reassign",
        one_of("reassign", "hold"),
        "what happens to a lost task of a session: reassign or hold",
    ),
    Setting("ROLECALL_TRIES", "tries", 3, whole(1, 1000), "starts that may end in a failure or a death before a block"),
    Setting("ROLECALL_RETRY_DELAYS_S", "retry_delays_s", (30.0, 60.0), delays, "waits before the second, third … try"),
    Setting("ROLECALL_SWEEP_S", "sweep_s", 2.0, number(), "how often leader and manager look at everything"),
    Setting("ROLECALL_GRACE_S", "grace_s", 30.0, number(), "time to finish or park what runs after SIGTERM"),
    Setting(
        "ROLECALL_CONCURRENCY",
        "concurrency",
        None,
        optional(whole(1, 10_000)),
        "turns that one worker runs at once",
        shown_default="as the role says",
    ),
    Setting(
        "ROLECALL_DETAIL_MAX_BYTES",
        "detail_max_bytes",
        262_144,
        whole(1024, 16 * 1024 * 1024),
        "largest detail of a record; what is larger goes to the artifact store",
    ),
    Setting(
        "ROLECALL_METRICS_PORT",
        "metrics_port",
        None,
        optional(whole(0, 65_535)),
        "each process serves /metrics from this port on, the next free one; 0 is any",
    ),
    Setting("ROLECALL_LANG", "lang", "en", one_of("en", "zh"), "language of the words that agents are told"),
    Setting("ROLECALL_CRASH_AT", "crash_at", None, crash_at, "for tests: the process kills itself at this point"),
    Setting("OPENAI_BASE_URL", "openai_base_url", None, http_url, "the model endpoint (OpenAI-compatible)"),
    Setting("OPENAI_API_KEY", "openai_api_key", None, text, "its key", secret=True),
    Setting("OPENAI_MODEL", "openai_model", None, text, "the model's name there; empty: the first that it lists"),
    Setting("ROLECALL_STALLED_S", "stalled_s", 30.0, number(), "a worker whose event loop hangs so long is `stalled`"),
    Setting(
        "ROLECALL_STALLED_LOST_S",
        "stalled_lost_s",
        None,
        optional(number()),
        "a stalled worker counts as dead after so long",
    ),
    Setting("ROLECALL_LOG", "log", "human", one_of("human", "json"), "form of the log on stderr"),
    Setting(
        "ROLECALL_NO_MODEL", "no_model", False, switch, "for tests: only model endpoints on loopback may be called"
    ),
)


def _float(raw: object, unit: str) -> float:
    mend = f"give a number of {unit}, for instance 5 or 0.5"
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise Bad("is no number", mend)
    try:
        value = float(raw)
    except (ValueError, OverflowError):
        raise Bad("is no number", mend) from None
    if not math.isfinite(value):
        raise Bad("is no finite number", mend)
    return value


def _absolute(path: str, base: Path) -> Path:
    try:
        return Path(os.path.normpath(base / Path(path).expanduser()))
    except RuntimeError:
        raise Bad("names a home directory that is not there", "give the whole path") from None
