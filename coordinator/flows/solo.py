"""The flow `solo`: one role, one delivery, optionally verified. A plan of one task, ``solo``.

Guarantees: as the flow `plan`. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from coordinator.commands import Command, Finish
from coordinator.flows import plan
from coordinator.view import View

VERSION = 1


def step(view: View, changed: Collection[str]) -> Sequence[Command]:
    """What to do now. The task comes from the root record: role, goal or prompt, input, verify."""
    if view.session and not view.planned and not view.finished:
        return [Finish("failed", "the session names neither a role nor a task", view.finishes + 1)]
    return plan.step(view, changed)
