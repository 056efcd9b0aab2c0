"""What an agent's turn may call: tools by name, with JSON in and a result that is a value.

Guarantees: types, and a toolbox that finds tools by name. A failed call is a ``ToolResult`` marked failed, told to the
model; it is never an exception. Never runs anything itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from protocol.record import Json


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool as the model sees it. ``idempotent`` says that a call may be repeated when nobody knows whether it ran;
    ``name`` is 1 to 64 of letters, digits, ``_`` and ``-``."""

    name: str
    description: str
    input_schema: Mapping[str, Json] = field(default_factory=lambda: {"type": "object", "properties": {}})
    idempotent: bool = False

    def to_openai(self) -> dict[str, Json]:
        """As chat completions want it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.input_schema),
            },
        }


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave. ``content`` is any JSON; ``error`` says what went wrong where ``ok`` is False."""

    ok: bool
    content: Json = None
    error: str = ""


class Tools(Protocol):
    """The tools that one agent may use."""

    def list(self) -> Sequence[Tool]:
        """The tools, in the order in which the model sees them."""

    async def call(self, name: str, args: Mapping[str, Json]) -> ToolResult:
        """Run one tool to its end. Bad input, a timeout and a crash are results; cancellation is raised."""


class NoTools:
    """For an agent without tools."""

    def list(self) -> Sequence[Tool]:
        return ()

    async def call(self, name: str, args: Mapping[str, Json]) -> ToolResult:
        return ToolResult(False, error=f"there is no tool {name!r}")
