"""The flow `route`: a session that says only what is wanted. Code chooses between one task and a plan.

Guarantees: as the flow `plan`; the choice and its reasons are one decision on record (`coordinator.flows.choosing`),
and from then on the session is led as `solo` or `plan` is. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from coordinator.commands import Command
from coordinator.flows import plan
from coordinator.view import View

VERSION = 1


def step(view: View, changed: Collection[str]) -> Sequence[Command]:
    """What to do now. The features come from the root record, else from a router role's delivery."""
    return plan.step(view, changed)
