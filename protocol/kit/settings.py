"""Settings: every one by its name, from the environment over ``rolecall.toml`` over the defaults.

Guarantees: `Settings.load` reads nothing but the mapping and the directory that it is given and the one file that they
lead to; a value that can't be used is a `ConfigError` that names variable, value and mend; nothing unknown in the file
is passed over in silence. Never connects anywhere, never shows a secret, imports nothing that is slow to import.

The names in the file are those of the environment in lower case without ``ROLECALL_``: ``beat_s = 5``. Relative paths
are taken from the file's folder, or from the working directory for the environment. An empty variable is as good as
none. The models are ``[[models]]`` tables in the file; with only ``OPENAI_BASE_URL`` or ``OPENAI_MODEL`` set, that is
the list.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from protocol.errors import ConfigError
from protocol.kit.modellist import ModelEntry, read_models
from protocol.kit.settings_table import TABLE, Bad, Setting, folder

FILE_NAME = "rolecall.toml"
FILE_VARIABLE = "ROLECALL_CONFIG"
HIDDEN = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings in force. Times in seconds; None where a setting is off. Handed down, never kept at module level."""

    data_dir: Path
    redis_url: str | None = field(default=None, repr=False)
    prefix: str = "rc:"
    roles_path: tuple[Path, ...] = ()
    skills_path: tuple[Path, ...] = ()
    beat_s: float = 5.0
    dead_s: float = 15.0
    heartbeat_s: float = 120.0
    lost_s: float = 300.0
    lost_policy: Literal["reassign", "hold"] = "reassign"
    tries: int = 3
    retry_delays_s: tuple[float, ...] = (30.0, 60.0)
    sweep_s: float = 2.0
    grace_s: float = 30.0
    concurrency: int | None = None
    detail_max_bytes: int = 262_144
    metrics_port: int | None = None
    lang: Literal["en", "zh"] = "en"
    crash_at: str | None = None
    openai_base_url: str | None = field(default=None, repr=False)
    openai_api_key: str | None = field(default=None, repr=False)
    openai_model: str | None = None
    stalled_s: float = 30.0
    stalled_lost_s: float | None = None
    log: Literal["human", "json"] = "human"
    no_model: bool = False
    models: tuple[ModelEntry, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(cls, env: Mapping[str, str], cwd: Path) -> Settings:
        """The settings for ``env`` (usually ``os.environ``) and the working directory ``cwd``. Raises `ConfigError`."""
        path, table = _read_file(env, cwd)
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for row in TABLE:
            if env.get(row.name):
                raw, base, source, what = env[row.name], cwd, "environment", row.name
            elif path is not None and row.key in table:
                raw, base, source, what = table[row.key], path.parent, str(path), f"{path}: {row.key}"
            else:
                values[row.attr], sources[row.attr] = row.default, "default"
                continue
            try:
                values[row.attr] = row.parse(raw, base)
            except Bad as bad:
                shown = HIDDEN if row.secret else repr(_without_password(raw))
                raise ConfigError(f"{what}={shown} {bad.problem}", mend=bad.mend) from None
            sources[row.attr] = source
        if values["data_dir"] is None:
            values["data_dir"] = _user_data(env, cwd)
        models = table.get("models")
        sources["models"] = str(path) if models is not None else "environment"
        loaded = cls(
            **values,
            sources=sources,
            models=read_models(
                models,
                env,
                where=str(path),
                base_url=values["openai_base_url"],
                api_key=values["openai_api_key"],
                model=values["openai_model"],
            ),
        )
        loaded._check()
        return loaded

    def shown(self) -> list[tuple[str, str, str]]:
        """``(name, value, source)`` of every setting in force, in the table's order; secrets are hidden."""
        rows = [(row.name, _show(row, getattr(self, row.attr)), self.sources.get(row.attr, "given")) for row in TABLE]
        source = self.sources.get("models", "given")
        for entry in self.models:
            key = "with a key" if entry.api_key else f"no key in {entry.api_key_env}"
            endpoint = hide_password(entry.base_url) if entry.base_url else "the client's default endpoint"
            rows.append((f"models.{entry.key}", f"{entry.model or 'the first listed'} at {endpoint}, {key}", source))
        return rows

    def allow_endpoint(self, base_url: str | None) -> None:
        """Raises `ConfigError` if ``ROLECALL_NO_MODEL`` is on and ``base_url`` is not on this machine.

        None stands for the client library's default, which is never on this machine.
        """
        if self.no_model and (base_url is None or not is_loopback(base_url)):
            shown = "the client's default endpoint" if base_url is None else repr(hide_password(base_url))
            raise ConfigError(
                f"ROLECALL_NO_MODEL is on, {shown} is not on this machine",
                mend="point OPENAI_BASE_URL at a server on 127.0.0.1, or unset ROLECALL_NO_MODEL",
            )

    def _check(self) -> None:
        """What no single setting can know."""
        if self.dead_s <= self.beat_s:
            raise ConfigError(
                f"ROLECALL_DEAD_S={self.dead_s:g} is not more than ROLECALL_BEAT_S={self.beat_s:g}:"
                " every worker would be dead",
                mend="leave room for at least two or three beats",
            )
        if self.lost_s <= self.heartbeat_s:
            raise ConfigError(
                f"ROLECALL_LOST_S={self.lost_s:g} is not more than ROLECALL_HEARTBEAT_S={self.heartbeat_s:g}:"
                " every agent would be lost",
                mend="leave room for at least two heartbeats",
            )


def is_loopback(url: str) -> bool:
    """Whether the host of ``url`` is this machine. Clients for such addresses ignore the proxy environment."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def hide_password(url: str) -> str:
    """``url`` with the password in it, if there is one, replaced; for logs and messages."""
    try:
        parts = urlsplit(url)
        secret = parts.password is not None or (parts.username is not None and parts.scheme.startswith("http"))
    except ValueError:
        return HIDDEN
    if not secret:
        return url
    name, host = parts.username or "", parts.netloc.rpartition("@")[2]
    hidden = f"{name}:{HIDDEN}@{host}" if parts.password is not None else f"{HIDDEN}@{host}"
    return parts._replace(netloc=hidden).geturl()


def _read_file(env: Mapping[str, str], cwd: Path) -> tuple[Path | None, dict[str, Any]]:
    named = env.get(FILE_VARIABLE)
    try:
        path = folder(named, cwd) if named else cwd / FILE_NAME
    except Bad as bad:
        raise ConfigError(f"{FILE_VARIABLE}={named!r} {bad.problem}", mend=bad.mend) from None
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise ConfigError(
                f"{FILE_VARIABLE}={named!r}: there is no such file", mend="name one or unset it"
            ) from None
        return None, {}
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}", mend="mend its rights or name another") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8", mend="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}", mend="mend that line") from None
    known = {row.key for row in TABLE} | {"models"}
    for name in table:
        if name not in known:
            near = get_close_matches(name.lower().removeprefix("rolecall_"), known, n=1)
            mend = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
            raise ConfigError(f"{path}: unknown setting {name!r}", mend=mend)
    return path, table


def _user_data(env: Mapping[str, str], cwd: Path) -> Path:
    """The user's data directory, by the platform's custom. A relative XDG_DATA_HOME counts for nothing (as it says)."""
    if env.get("XDG_DATA_HOME", "").startswith("/"):
        return Path(env["XDG_DATA_HOME"]) / "rolecall"
    home = Path(env["HOME"]) if env.get("HOME", "").startswith("/") else None
    if home is None:
        return cwd / ".rolecall"
    return home / ("Library/Application Support" if sys.platform == "darwin" else ".local/share") / "rolecall"


def _show(row: Setting, value: object) -> str:
    if value is None:
        return "" if row.secret else row.shown_default or "off"
    if row.secret:
        return HIDDEN
    if isinstance(value, tuple):
        return ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, bool):
        return "on" if value else "off"
    return hide_password(value) if isinstance(value, str) and "://" in value else str(value)


def _without_password(raw: object) -> object:
    return hide_password(raw) if isinstance(raw, str) and "@" in raw else raw
