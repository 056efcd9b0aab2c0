"""Routing: from the features of a task to `simple` or `complex`, with the reasons.

Guarantees: pure code over typed features (from the caller, or from a router role's delivery); no word of any prose is
ever searched. `simple` is led by the flow `solo`, `complex` by a planner's plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, Literal

from protocol.errors import Refused
from protocol.record import Json

MANY: Final = 5
"""Files or pages from which on they are many."""
FLAGS: Final = ("dependencies", "lasting_environment", "edits_existing")


@dataclass(frozen=True, slots=True)
class Features:
    """What is known of a task. Counts: None is not known. ``tools``: different tools, one after another."""

    steps: int | None = None
    tools: int = 0
    subtasks: int = 0
    dependencies: bool = False
    parallel_branches: int = 0
    sources: int = 0
    files: int = 0
    lasting_environment: bool = False
    edits_existing: bool = False

    @classmethod
    def read(cls, data: Json) -> Features:
        """From JSON; every value has its type, nothing is read from words. Raises Refused naming the field."""
        if not isinstance(data, dict):
            raise Refused("features are an object", reason="bad_features", mend=f"fields: {_FIELDS}")
        known = {f.name: data[f.name] for f in fields(cls) if data.get(f.name) is not None}
        for name, value in known.items():
            flag = isinstance(value, bool)
            if flag != (name in FLAGS) or not (flag or (isinstance(value, int) and value >= 0)):
                kind = "true or false" if name in FLAGS else "a whole number from 0"
                raise Refused(f"feature {name!r} is {value!r}", reason="bad_features", path=name, mend=f"it is {kind}")
        return cls(**known)


SCHEMA: Final[Mapping[str, Json]] = {
    "type": "object",
    "required": [f.name for f in fields(Features)],
    "properties": {
        **{f.name: {"type": "integer", "minimum": 0} for f in fields(Features)},
        **{name: {"type": "boolean"} for name in FLAGS},
        "steps": {"type": "integer", "minimum": 1},
        "why": {"type": "string"},
    },
}
"""What a router's delivery looks like."""
_FIELDS: Final = ", ".join(f.name for f in fields(Features))


@dataclass(frozen=True, slots=True)
class Routed:
    """The outcome and why, in words for the record."""

    outcome: Literal["simple", "complex"]
    reasons: tuple[str, ...]

    def to_json(self) -> Mapping[str, Json]:
        return {"outcome": self.outcome, "reasons": list(self.reasons)}


def route(features: Features) -> Routed:
    """Decide, in this order; the first rule that applies gives the outcome, all facts of that rule the reasons."""
    if features.steps == 1:
        return Routed("simple", ("one step",))
    if features.subtasks > 1 and features.dependencies:
        return Routed("complex", (f"{features.subtasks} subtasks with dependencies",))
    wide = _over(features.sources, 1, "sources") + _over(features.parallel_branches, 1, "parallel branches")
    if wide:
        return Routed("complex", wide)
    heavy = _over(features.tools, 1, "tools in series") + _over(features.files, MANY - 1, "files or pages")
    if features.lasting_environment:
        heavy += ("a lasting environment",)
    if heavy:
        return Routed("complex", heavy)
    return Routed("simple", ("nothing that asks for a plan",))


def _over(count: int, most: int, words: str) -> tuple[str, ...]:
    return (f"{count} {words}",) if count > most else ()
