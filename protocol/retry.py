"""Retry as a decision: (tries so far, error) -> try again after so many seconds, or block.

Guarantees: pure; the random number is passed in. The first try, then about 30 s, then about 60 s (with jitter), then
blocked; what is not retryable is blocked at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DELAYS_S: Final = (30.0, 60.0)
TRIES: Final = 3
DELAY_MAX_S: Final = 86_400.0
"""A day: an endpoint that asks for more gets a try all the same, and a person sees what it says."""
JITTER: Final = 0.1
"""Delays vary by up to a tenth either way, so that many failures do not come back at one moment."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after ``delay_s`` seconds; ``reason`` goes on record."""

    delay_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Block:
    """Wait for a person; ``reason`` goes on record."""

    reason: str


def decide(
    tries: int,
    *,
    kind: str,
    retryable: bool,
    retry_after_s: float | None = None,
    limit: int = TRIES,
    delays_s: tuple[float, ...] = DELAYS_S,
    random: float = 0.5,
) -> Retry | Block:
    """What follows a failed try. ``tries`` counts starts that ended in a failure or a death, this one included;
    ``random`` is in [0, 1). An endpoint's own ``retry_after_s`` wins where it is longer."""
    if not retryable:
        return Block(f"{kind}: not a fault that goes away by itself")
    if tries >= limit:
        return Block(f"{kind}: failed {tries} times")
    base = delays_s[min(tries - 1, len(delays_s) - 1)] if delays_s else 0.0
    delay = base * (1 + JITTER * (2 * random - 1))
    if retry_after_s is not None and retry_after_s > delay:
        delay = min(retry_after_s, DELAY_MAX_S)
    return Retry(round(delay, 3), f"{kind}: try {tries} of {limit} failed")
