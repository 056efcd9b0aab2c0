"""The models list: which endpoints a fleet may call, by key.

Guarantees: every entry is complete and checked, keys are unique, an API key is never part of an entry's `repr`. No
model name is in here: the list comes from ``[[models]]`` tables, or from ``OPENAI_BASE_URL`` and ``OPENAI_MODEL``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from protocol.errors import ConfigError
from protocol.kit.settings_table import Bad, http_url

ENV_KEY = "default"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model of the list.

    ``model`` is the name that the endpoint knows; empty means the first that it lists. ``base_url`` None is the client
    library's own default. ``thinking`` is merged into the request's body when thinking is on. Limits are per minute and
    shared by all hosts; ``max_output_tokens`` is the most that one answer may have (None: the endpoint's own limit);
    prices are per million tokens, in whatever currency the budgets are.
    """

    key: str
    model: str = ""
    base_url: str | None = field(default=None, repr=False)
    api_key_env: str = "OPENAI_API_KEY"
    context_window: int = 128_000
    thinking: Mapping[str, object] = field(default_factory=dict)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    max_output_tokens: int | None = None
    price_input: float | None = None
    price_output: float | None = None
    api_key: str | None = field(default=None, repr=False)


_WHOLE = ("context_window", "requests_per_minute", "tokens_per_minute", "concurrent", "max_output_tokens")
_PRICE = ("price_input", "price_output")
_KNOWN = tuple(entry.name for entry in fields(ModelEntry) if entry.name != "api_key")


def read_models(
    tables: object,
    env: Mapping[str, str],
    *,
    where: str,
    base_url: str | None,
    api_key: str | None,
    model: str | None,
) -> tuple[ModelEntry, ...]:
    """The list in force. ``tables`` is the file's ``models`` (None: not there), ``where`` names the file.

    An entry without ``base_url`` uses ``OPENAI_BASE_URL`` (``base_url`` here). Raises `ConfigError`.
    """
    if tables is None:
        if base_url is None and model is None:
            return ()
        return (ModelEntry(key=ENV_KEY, model=model or "", base_url=base_url, api_key=api_key),)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{where}: 'models' is no list of tables", mend="write each model as a [[models]] table")
    entries: list[ModelEntry] = []
    for number, table in enumerate(tables, start=1):
        entry = _entry(table, env, where=f"{where}: [[models]] number {number}", base_url=base_url, api_key=api_key)
        if entry.key in {other.key for other in entries}:
            raise ConfigError(f"{where}: two models have the key {entry.key!r}", mend="give each its own key")
        entries.append(entry)
    return tuple(entries)


def find_model(models: Sequence[ModelEntry], key: str) -> tuple[ModelEntry | None, str | None]:
    """The entry for ``key`` and, where one is due, a warning.

    Empty: the first of the list. Unknown: the first, with the warning. No list: ``(None, None)``.
    """
    if not models:
        return None, None
    for entry in models:
        if entry.key == key:
            return entry, None
    known = ", ".join(repr(entry.key) for entry in models)
    warning = f"unknown model key {key!r}, using {models[0].key!r} (known: {known})" if key else None
    return models[0], warning


def _entry(
    table: Mapping[str, object], env: Mapping[str, str], *, where: str, base_url: str | None, api_key: str | None
) -> ModelEntry:
    for name in table:
        if name == "api_key":
            raise ConfigError(
                f"{where}: an API key in the file is not read", mend="name its variable with api_key_env = 'NAME'"
            )
        if name not in _KNOWN:
            raise ConfigError(f"{where}: unknown key {name!r}", mend=f"known keys: {', '.join(_KNOWN)}")
    key = table.get("key")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ConfigError(
            f"{where}: key = {key!r}", mend="give 1 to 64 of A-Z a-z 0-9 _ . : / -, a letter or digit first"
        )
    texts = {name: table[name] for name in ("model", "api_key_env") if name in table}
    for name, value in texts.items():
        if not isinstance(value, str) or (value and not value.isprintable()):
            raise ConfigError(f"{where}: {name} = {value!r} is no plain text", mend="give one line of text")
    thinking = table.get("thinking", {})
    if not isinstance(thinking, dict):
        raise ConfigError(f"{where}: thinking = {thinking!r} is no table", mend="give the extra body as a table")
    for name in _WHOLE:
        whole = table.get(name)
        if name in table and (isinstance(whole, bool) or not isinstance(whole, int) or whole < 1):
            raise ConfigError(f"{where}: {name} = {whole!r}", mend="give a whole number from 1 on")
    for name in _PRICE:
        price = table.get(name)
        if name in table and not _is_price(price):
            raise ConfigError(f"{where}: {name} = {price!r}", mend="give the price of a million tokens as a number")
    values: dict[str, object] = {**table, "thinking": dict(thinking)}
    if "base_url" in table:
        try:
            values["base_url"] = http_url(table["base_url"], Path())
        except Bad as bad:
            raise ConfigError(f"{where}: base_url = {table['base_url']!r} {bad.problem}", mend=bad.mend) from None
    else:
        values["base_url"] = base_url
    values["api_key"] = env.get(str(table["api_key_env"])) or None if "api_key_env" in table else api_key
    # Every value was checked above, one name at a time, which the type checker can't see through a mapping.
    return ModelEntry(**values)  # type: ignore[arg-type]


def _is_price(price: object) -> bool:
    if isinstance(price, bool) or not isinstance(price, int | float):
        return False
    return math.isfinite(price) and price >= 0
