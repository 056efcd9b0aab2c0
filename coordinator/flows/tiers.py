"""The three tiers: *main* talks to the user, *organize* breaks work down, *sub* does it. Delegation goes down only.

Guarantees: pure; a role that nobody published is of the lowest tier. One that says ``tier: sub`` delegates to nobody.
A role that names no tier stands outside that order from below: as any master it may propose subtasks for others
of its kind, and never upward. A plan file is a person's: it may name any role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from coordinator.planfile import PlanTask
from protocol.errors import PlanRefused
from protocol.record import Json

TIERS: Final = ("sub", "organize", "main")
"""Lowest first."""
UPWARD: Final[Literal["upward_delegation"]] = "upward_delegation"


def tier_of(roles: Mapping[str, Mapping[str, Json]], role: str) -> str:
    """The tier that a role was published with."""
    found = roles.get(role, {}).get("tier")
    return found if isinstance(found, str) and found in TIERS else TIERS[0]


def _named(roles: Mapping[str, Mapping[str, Json]], role: str) -> bool:
    """True where the role's own file names its tier (``tiered``; a front without that mark, if it has a tier)."""
    front = roles.get(role, {})
    return front.get("tiered", "tier" in front) is True


def check(
    roles: Mapping[str, Mapping[str, Json]], proposer: str, tasks: Sequence[PlanTask], *, least: str = TIERS[0]
) -> None:
    """Whether ``proposer`` may have these tasks done; ``least``: the tier that its part in the flow gives it, whatever
    its file says. Raises PlanRefused naming the tasks of its own tier or above."""
    own = max(tier_of(roles, proposer), least, key=TIERS.index)
    even = own == TIERS[0] and not _named(roles, proposer)  # no tier named: others of the lowest are fair
    lowest_refused = TIERS.index(own) + even
    refused = [t.id for t in tasks if TIERS.index(tier_of(roles, t.role)) >= lowest_refused]
    if not refused:
        return
    shown = ", ".join(refused[:10])
    if own == TIERS[0] and not even:
        why, mend = f"role {proposer!r} is of the tier {own!r}, which delegates to nobody: {shown}", "set its tier"
    else:
        why = f"role {proposer!r} ({own}) delegates sideways or up: {shown}"
        mend = "delegation goes down: main, organize, sub"
    raise PlanRefused(why, reason=UPWARD, tasks=tuple(refused), mend=mend)
