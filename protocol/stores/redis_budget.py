"""A session's budget on Redis: tokens and money set aside before each model call, and what was really used.

Guarantees: each question is one atomic step in the space's slot by the server's clock (``lua/reserve.lua``,
``lua/spend.lua``), so no number of hosts passes a limit together; only the owner of an attempt is given anything. The
counts serve the budget and people; what each attempt used is on its record. Holds no count of its own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final, Literal

from protocol.keys import Keys
from protocol.ports import Dispatch
from protocol.record import Json
from protocol.stores.client import Client, awaited, guard
from protocol.stores.scripts import Arg, Scripts

LEASE_MS: Final = 30_000
MICROS: Final = 1_000_000
"""Money is counted in millionths, as whole numbers."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a session may use; None: no limit. ``epoch`` counts its resumes: each starts counting anew."""

    tokens: int | None = None
    micros: int | None = None
    epoch: int = 0

    @classmethod
    def of(cls, dispatch: Dispatch) -> Limits:
        """From a dispatch's ``detail.budget`` {tokens, money, epoch}."""
        given = dispatch.detail.get("budget")
        if not isinstance(given, dict):
            return cls()
        tokens, money, epoch = (_number(given.get(name)) for name in ("tokens", "money", "epoch"))
        return cls(
            tokens=None if tokens is None else int(tokens),
            micros=None if money is None else round(money * MICROS),
            epoch=int(epoch or 0),
        )

    def __bool__(self) -> bool:
        return self.tokens is not None or self.micros is not None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a call is about to use: the prompt, and of the answer at least ``least`` and at most ``most`` tokens."""

    prompt: int
    least: int
    most: int
    prompt_micros: int = 0
    micros_a_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer. ``ok``: ``answer`` tokens; ``wait``: others hold what is left; ``over``: the limit named ``limit`` is
    used up (``used`` of ``most``, tokens or millionths); ``lost``: the attempt is the owner's no more (``why``)."""

    outcome: Literal["ok", "wait", "over", "lost"]
    answer: int = 0
    limit: str = ""
    used: int = 0
    most: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class UsedRow:
    """What one role used of one model in a session. ``unnamed``: calls whose use is a guess."""

    role: str
    model: str
    calls: int
    prompt: int
    completion: int
    micros: int
    unnamed: int = 0

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {
            "role": self.role, "model": self.model, "calls": self.calls, "prompt_tokens": self.prompt,
            "completion_tokens": self.completion, "total_tokens": self.prompt + self.completion,
        }  # fmt: skip
        if self.micros:
            out["cost"] = self.micros / MICROS
        if self.unnamed:
            out["calls_without_usage"] = self.unnamed
        return out


class Budgets:
    """The budgets of every session on one server."""

    def __init__(self, client: Client, keys: Keys, scripts: Scripts | None = None, *, lease_ms: int = LEASE_MS) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts or Scripts(client)
        self.lease_ms = lease_ms

    async def reserve(self, dispatch: Dispatch, call: str, limits: Limits, wanted: Wanted) -> Granted:
        """Set aside what ``call`` (an id of its own) is about to use."""
        k = self._keys.space(dispatch.space)
        args: list[Arg] = [
            "reserve", call, self.lease_ms, dispatch.task, dispatch.attempt, dispatch.owner, limits.epoch,
            "" if limits.tokens is None else limits.tokens, "" if limits.micros is None else limits.micros,
            wanted.prompt, wanted.prompt_micros, wanted.least, wanted.most, repr(wanted.micros_a_token),
        ]  # fmt: skip
        answer = await self._scripts.run("reserve", [k.tasks, k.used, k.calls], args)
        word = answer[0].decode()
        if word == "over":
            return Granted("over", limit=answer[1].decode(), used=int(answer[2]), most=int(answer[3]))
        if word == "lost":
            return Granted("lost", why=answer[1].decode())
        return Granted("ok", answer=int(answer[1])) if word == "ok" else Granted("wait")

    async def renew(self, space: str, call: str) -> None:
        """The call still runs."""
        k = self._keys.space(space)
        await self._scripts.run("reserve", [k.tasks, k.used, k.calls], ["renew", call, self.lease_ms])

    async def spend(
        self, space: str, call: str, *, row: tuple[str, str] | None, prompt: int, completion: int, micros: int,
        unnamed: bool = False,
    ) -> bool:  # fmt: skip
        """The call has ended and used so much. ``row``: role and model key; None: it came to nothing. False where that
        was counted already."""
        k = self._keys.space(space)
        named = "|".join(row) if row else ""
        args: list[Arg] = [call, named, prompt, completion, micros, int(unnamed)]
        return bool(await self._scripts.run("spend", [k.used, k.calls], args))

    async def used(self, space: str) -> list[UsedRow]:
        """What the session used so far, by role and model; calls in flight are not in it."""
        with guard("used"):
            raw: dict[bytes, bytes] = await awaited(self._client.hgetall(self._keys.space(space).used))
        rows: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        for name, value in raw.items():
            text = name.decode()
            if text.startswith("u:"):
                role, model, field = text[2:].split("|", 2)
                rows[role, model][field] = int(value)
        return [UsedRow(role, model, **fields) for (role, model), fields in sorted(rows.items())]


def _number(value: Json) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else None
