"""The guards of a session: most rounds, dispatches, tokens, money, seconds. What trips one ends the session cleanly.

Guarantees: pure; a limit that is no positive number is not taken over. Counts come from the log, time is the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from protocol.record import Json


@dataclass(frozen=True, slots=True)
class Guards:
    """Limits since the start or the last resume; None: no limit."""

    dispatches: int = 5_000
    tokens: int | None = None
    money: float | None = None
    seconds: float | None = None
    rounds: int | None = None

    @classmethod
    def read(cls, given: Json) -> Guards:
        """From ``guards`` of a root record or plan: each limit by its name, with or without ``max_`` before it."""
        return cls().over(given if isinstance(given, dict) else {})

    def over(self, given: Mapping[str, Json]) -> Guards:
        """These guards with those of ``given`` in their place."""
        found: dict[str, Json] = {}
        for field in fields(self):
            value = given.get(field.name, given.get(f"max_{field.name}"))
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
                found[field.name] = float(value) if field.name in ("seconds", "money") else int(value)
        return replace(self, **found)

    def under(self, given: Mapping[str, Json]) -> Guards:
        """These guards, and where ``given`` is tighter, that: an agent's delivery never loosens a limit."""
        theirs = Guards(dispatches=self.dispatches).over(given)
        found: dict[str, Json] = {}
        for field in fields(self):
            known = [v for v in (getattr(self, field.name), getattr(theirs, field.name)) if v is not None]
            found[field.name] = min(known) if known else None
        return Guards(**found)

    def budget(self, epoch: int) -> dict[str, Json]:
        """What a dispatch tells its worker of the session's budget; ``epoch``: how often the session was resumed.
        Empty where there is none."""
        limits = {name: value for name in ("tokens", "money") if (value := getattr(self, name)) is not None}
        return {**limits, "epoch": epoch} if limits else {}

    def to_json(self) -> dict[str, Json]:
        return {k: v for k, v in asdict(self).items() if v is not None}

    def tripped(self, *, tokens: int, micros: int, ms: int) -> tuple[str, str] | None:
        """(guard, why) of what was used since the start; None where everything is within its limit. Dispatches are
        counted by the flow, which knows whether there is anything left to dispatch."""
        if self.tokens is not None and tokens > self.tokens:
            return "tokens", f"{tokens} tokens were used, the limit is {self.tokens}"
        if self.money is not None and micros > self.money * 1_000_000:
            return "money", f"{micros / 1_000_000:g} of the money was used, the limit is {self.money:g}"
        if self.seconds is not None and ms > self.seconds * 1000:
            return "seconds", f"{ms // 1000} s have passed, the limit is {self.seconds:g} s"
        return None
