"""The Lua scripts: loaded from their files, run by digest, loaded again where the server forgot them.

Guarantees: one EVALSHA a call (no EVAL right is needed), SCRIPT LOAD on NOSCRIPT and once at start. A script is its
file with each ``--#include <name>`` line replaced by ``<name>.lua`` and ``--#tables`` by the tables of
``protocol.tasks``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from redis import exceptions as rx

from protocol.errors import StoreError
from protocol.stores.client import Client, awaited, guard
from protocol.tasks import lua_tables

_INCLUDE = re.compile(r"^--#include (\w+)$", re.MULTILINE)
Arg = str | bytes | int | float
Call = tuple[Sequence[str], Sequence[Arg]]
"""(keys, arguments) of one run of a script."""


@cache
def source(name: str) -> str:
    """The whole source of script ``name`` (``lua/<name>.lua``)."""
    folder = files("protocol.stores") / "lua"

    def read(part: str) -> str:
        text = (folder / f"{part}.lua").read_text("utf-8")
        return _INCLUDE.sub(lambda match: read(match[1]), text)

    return read(name).replace("--#tables", lua_tables())


@cache
def sha(name: str) -> str:
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """Runs scripts on one client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def run(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run one script; the answer is redis-py's (bytes, ints, lists)."""
        with guard(name):
            try:
                return await awaited(self._client.evalsha(sha(name), len(keys), *keys, *args))  # type: ignore[arg-type]
            except rx.NoScriptError:
                await awaited(self._client.script_load(source(name)))
                return await awaited(self._client.evalsha(sha(name), len(keys), *keys, *args))  # type: ignore[arg-type]

    async def run_many(
        self, name: str, calls: Sequence[Call], *, then: Sequence[Sequence[Arg]] = (), each: bool = False
    ) -> list[Any]:
        """Run one script for many key sets in one round trip; one answer or exception a call, in order. ``then``:
        commands that ride along behind them, whatever becomes of the scripts (hints that may be given in vain).
        The exception of a single call is raised, unless ``each``."""
        if not calls:
            return []
        if len(calls) == 1 and not then:
            try:
                return [await self.run(name, *calls[0])]
            except StoreError as error:
                if not each or error.retryable:
                    raise
                return [error]
        with guard(name):
            answers = await self._pipeline(name, calls, then)
            if any(isinstance(a, rx.NoScriptError) for a in answers):
                await awaited(self._client.script_load(source(name)))
                missed = [i for i, a in enumerate(answers) if isinstance(a, rx.NoScriptError)]
                again = await self._pipeline(name, [calls[i] for i in missed], then)
                for i, answer in zip(missed, again, strict=True):
                    answers[i] = answer
            return answers

    async def _pipeline(self, name: str, calls: Sequence[Call], then: Sequence[Sequence[Arg]]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipe:
            for keys, args in calls:
                pipe.evalsha(sha(name), len(keys), *keys, *args)  # type: ignore[arg-type]
            for command in then:
                pipe.execute_command(*command)
            return list(await pipe.execute(raise_on_error=False))[: len(calls)]
