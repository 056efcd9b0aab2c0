"""The flows: pure functions from the view of a session to commands; found by name and version.

Guarantees: no flow does I/O, reads a clock or calls a model. A session names its flow's version at its start and is led
by that version, also by a newer release that still has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.commands import Command
from coordinator.flows import plan, route, solo
from coordinator.view import View
from protocol.errors import ConfigError

Step = Callable[[View, Collection[str]], Sequence[Command]]
"""``step(view, changed)``: what to do now, at most 100 commands; empty: nothing until something changes."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow in one version."""

    name: str
    version: int
    step: Step


FLOWS: Final[Mapping[str, tuple[Flow, ...]]] = {
    "plan": (Flow("plan", plan.VERSION, plan.step),),
    "solo": (Flow("solo", solo.VERSION, solo.step),),
    "route": (Flow("route", route.VERSION, route.step),),
}
"""Every flow, its versions oldest first."""


def find(name: str, version: int | None = None) -> Flow:
    """The flow in that version (None: the newest). Raises ConfigError for what is not there."""
    versions = FLOWS.get(name)
    if versions is None:
        raise ConfigError(f"there is no flow {name!r}", mend=f"one of {', '.join(FLOWS)}")
    if version is None:
        return versions[-1]
    for flow in versions:
        if flow.version == version:
            return flow
    known = ", ".join(str(f.version) for f in versions)
    raise ConfigError(f"flow {name!r} has no version {version!r} here", mend=f"this release has {known}")
