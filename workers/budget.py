"""A session's budget in front of each model call: set aside before it, settled after it.

Guarantees: no call is made that the session's budget, shared by all hosts, has no room for; the attempt then ends with
``OverBudget``, which the flow turns into a clean finish. A budget in money is kept only with models that have prices:
one without is refused by name. Never calls a model. ``NoBudget`` lets everything through and counts nothing.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol

from protocol.errors import FenceLost, StoreError, TaskError
from protocol.kit.modellist import ModelEntry
from protocol.ports import Dispatch, Random
from protocol.record import Json
from protocol.stores.redis_budget import MICROS, Granted, Limits, Wanted
from workers.limits import Sleep
from workers.stream import Usage

LEAST_ANSWER: Final = 256
"""Tokens: with less left for an answer no call is made."""
MOST_ANSWER: Final = 8_192
"""Tokens set aside for an answer where the model's entry names no ``max_output_tokens``."""
PAUSE_S: Final = 0.2


@dataclass(slots=True)
class Hold:
    """One call's hold on the budget. ``answer``: the tokens that the answer may have, None: no limit is in force. Set
    ``used`` as soon as it is known; ``guess`` is what counts in the budget where the call broke off."""

    answer: int | None = None
    used: Usage | None = None
    guess: int = 0


class Budget(Protocol):
    """Holds on a session's budget."""

    def hold(self, dispatch: Dispatch, spec: ModelEntry, prompt: int) -> AbstractAsyncContextManager[Hold]:
        """Set aside what a call with ``prompt`` tokens may use, for the length of the call. Raises OverBudget where
        the session's budget is used up, FenceLost where the attempt is no longer the owner's."""


class OverBudget(TaskError):
    """The session's budget has no room for another call; ``guard`` says which limit, for the record."""

    def __init__(self, message: str, guard: dict[str, Json], *, mend: str) -> None:
        super().__init__(message, kind="budget", retryable=False, mend=mend)
        self.guard = guard


class NoBudget:
    """Lets everything through."""

    @asynccontextmanager
    async def hold(self, dispatch: Dispatch, spec: ModelEntry, prompt: int) -> AsyncIterator[Hold]:
        yield Hold()


class BudgetStore(Protocol):
    """Where budgets are counted for every host (``protocol.stores.redis_budget``)."""

    lease_ms: int

    async def reserve(self, dispatch: Dispatch, call: str, limits: Limits, wanted: Wanted) -> Granted:
        """Set aside."""

    async def renew(self, space: str, call: str) -> None:
        """The call still runs."""

    async def spend(
        self, space: str, call: str, *, row: tuple[str, str] | None, prompt: int, completion: int, micros: int,
        unnamed: bool = False,
    ) -> bool:  # fmt: skip
        """The call has ended."""


class SharedBudget:
    """The budget that a dispatch names (``detail.budget``), for every process that shares the store. A store that is
    away holds a call back, it never lets one through."""

    def __init__(self, store: BudgetStore, *, sleep: Sleep = asyncio.sleep, random: Random = random.random) -> None:
        self._store = store
        self._sleep = sleep
        self._random = random

    @asynccontextmanager
    async def hold(self, dispatch: Dispatch, spec: ModelEntry, prompt: int) -> AsyncIterator[Hold]:
        limits, call = Limits.of(dispatch), secrets.token_hex(8)
        if limits.micros is not None and (spec.price_input is None or spec.price_output is None):
            raise TaskError(
                f"the session has a budget in money, and models.{spec.key} has no price", kind="unpriced",
                retryable=False, mend="set its price_input and price_output (0 where it costs nothing)",
            )  # fmt: skip
        granted = await self._granted(dispatch, spec, call, limits, prompt)
        hold = Hold(granted.answer if limits else None)
        renewing = asyncio.create_task(self._renew(dispatch.space, call))
        try:
            yield hold
        finally:
            renewing.cancel()
            await self._settle(dispatch, spec, call, hold)

    async def _granted(
        self, dispatch: Dispatch, spec: ModelEntry, call: str, limits: Limits, prompt: int
    ) -> Granted:  # fmt: skip
        most = spec.max_output_tokens or MOST_ANSWER
        wanted = Wanted(
            prompt=prompt, least=min(LEAST_ANSWER, most), most=most,
            prompt_micros=cost_micros(spec, prompt, 0), micros_a_token=spec.price_output or 0.0,
        )  # fmt: skip
        while True:
            try:
                granted = await self._store.reserve(dispatch, call, limits, wanted)
            except StoreError as error:
                if not error.retryable:
                    raise
                granted = Granted("wait")
            if granted.outcome == "lost":
                raise FenceLost(f"task {dispatch.task!r} attempt {dispatch.attempt}: {granted.why}")
            if granted.outcome == "over":
                raise _over(granted)
            if granted.outcome == "ok":
                return granted
            await self._sleep(PAUSE_S * (0.5 + self._random()))

    async def _settle(self, dispatch: Dispatch, spec: ModelEntry, call: str, hold: Hold) -> None:
        used = hold.used
        prompt, completion = (used.prompt, used.completion) if used else (hold.guess, 0)
        micros = used.micros if used else cost_micros(spec, prompt, 0)
        try:
            await self._store.spend(
                dispatch.space, call, row=(dispatch.role, spec.key) if used else None, prompt=prompt,
                completion=completion, micros=micros, unnamed=bool(used and used.unknown),
            )  # fmt: skip
        except StoreError:
            pass  # the lease ends by itself; what was set aside counts as used

    async def _renew(self, space: str, call: str) -> None:
        while True:
            await asyncio.sleep(self._store.lease_ms / 3000)
            try:
                await self._store.renew(space, call)
            except StoreError:
                pass  # tried again in a third of the lease


def priced(usage: Usage, spec: ModelEntry, *, prompt: int, completion: int) -> Usage:
    """A call's usage with its cost; where the endpoint named none, with the guess ``prompt`` and ``completion``."""
    if usage.unknown and not usage.total:
        usage = replace(usage, prompt=prompt, completion=completion, total=prompt + completion)
    return replace(usage, micros=cost_micros(spec, usage.prompt, usage.completion))


def cost_micros(spec: ModelEntry, prompt: int, completion: int) -> int:
    """Millionths of the budget's currency; prices are per million tokens, so a token costs its price in them."""
    return math.ceil(prompt * (spec.price_input or 0.0) + completion * (spec.price_output or 0.0))


def _over(granted: Granted) -> OverBudget:
    money = granted.limit == "money"
    used, most = (granted.used / MICROS, granted.most / MICROS) if money else (granted.used, granted.most)
    unit = "of its money" if money else "tokens"
    return OverBudget(
        f"the session's budget has no room for another call: {used:g} of {most:g} {unit} are used",
        {"budget": granted.limit, "used": used, "limit": most},
        mend=f"rolecall session resume ID --budget-{granted.limit} MORE",
    )
