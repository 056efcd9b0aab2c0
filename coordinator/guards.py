"""The guards of a session: most rounds, dispatches, tokens, seconds. What trips one ends the session cleanly.

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
    seconds: float | None = None
    rounds: int | None = None

    @classmethod
    def read(cls, given: Json) -> Guards:
        """From ``guards`` of a root record or plan: dispatches, tokens, seconds, rounds, with or without ``max_``."""
        return cls().over(given if isinstance(given, dict) else {})

    def over(self, given: Mapping[str, Json]) -> Guards:
        """These guards with those of ``given`` in their place."""
        found: dict[str, Json] = {}
        for field in fields(self):
            value = given.get(field.name, given.get(f"max_{field.name}"))
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
                found[field.name] = float(value) if field.name == "seconds" else int(value)
        return replace(self, **found)

    def to_json(self) -> dict[str, Json]:
        return {k: v for k, v in asdict(self).items() if v is not None}

    def tripped(self, *, tokens: int, ms: int) -> tuple[str, str] | None:
        """(guard, why) of what was used since the start; None where everything is within its limit. Dispatches are
        counted by the flow, which knows whether there is anything left to dispatch."""
        if self.tokens is not None and tokens > self.tokens:
            return "tokens", f"{tokens} tokens were used, the limit is {self.tokens}"
        if self.seconds is not None and ms > self.seconds * 1000:
            return "seconds", f"{ms // 1000} s have passed, the limit is {self.seconds:g} s"
        return None
