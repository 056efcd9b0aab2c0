"""A role's skills as an agent's tools.

Guarantees: an agent sees and can call only what its role names and its tier may call; a call by another name is a
failed result that lists what there is. Instructions (skills without code) are tools too: calling one reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from protocol.kit.rolefiles import RoleFile
from protocol.record import Json
from workers.skills.loader import Loaded
from workers.skills.manifest import INSTRUCTIONS, Skill
from workers.skills.runner import SkillRunner
from workers.tools import Tool, ToolResult

_MOST_BYTES: Final = 256 * 1024
_NO_ARGUMENTS: Final[Mapping[str, Json]] = {"type": "object", "properties": {}}
_READ: Final[Mapping[str, Json]] = {
    "type": "object",
    "properties": {
        "file": {
            "type": "string",
            "description": "a file that the instructions name, relative to their folder; without it the instructions",
        }
    },
    "additionalProperties": False,
}


class SkillTools:
    """The tools of one agent's turn: implements ``workers.tools.Tools``. ``refused`` says which skills were left out
    and why (unknown, broken, not for the role's tier): worth one line in the log."""

    def __init__(self, loaded: Loaded, role: RoleFile, runner: SkillRunner, *, agent: str = "", task: str = "") -> None:
        skills, self.refused = loaded.for_agent(role.tier, role.skills)
        self._skills = {skill.key: skill for skill in skills}
        self._runner = runner
        self._agent = agent
        self._task = task

    def list(self) -> Sequence[Tool]:
        """The tools, in the order in which the role names them."""
        return [as_tool(skill) for skill in self._skills.values()]

    async def call(self, name: str, args: Mapping[str, Json]) -> ToolResult:
        """Run one skill to its end. Whatever goes wrong is a failed result; only cancellation is raised."""
        skill = self._skills.get(name)
        if skill is None:
            known = ", ".join(self._skills) or "none"
            return ToolResult(False, error=f"there is no tool {name!r} for this agent; there is: {known}")
        if not skill.callable:
            return read_instructions(skill, str(args.get("file") or ""))
        run = await self._runner.run(skill, dict(args), agent=self._agent, task=self._task)
        if run.ok:
            return ToolResult(True, content=run.output)
        tried = f" (after {run.attempts} attempts)" if run.attempts > 1 else ""
        return ToolResult(False, error=f"{run.status}: {run.error}{tried}")


def as_tool(skill: Skill) -> Tool:
    """The skill as the model sees it."""
    if not skill.callable:
        words = f"Read the instructions {skill.name!r}: {skill.description}"
        return Tool(skill.key, words, _READ, idempotent=True)
    return Tool(skill.key, skill.description, skill.input_schema or _NO_ARGUMENTS, idempotent=skill.idempotent)


def read_instructions(skill: Skill, file: str = "") -> ToolResult:
    """The instructions, or a file of their folder; nothing outside it can be named."""
    if not file or file == INSTRUCTIONS:
        return ToolResult(True, content=skill.instructions)
    inside = skill.folder.resolve()
    try:
        path = (inside / Path(file)).resolve()
        if not path.is_relative_to(inside) or not path.is_file():
            return ToolResult(False, error=f"{file!r} is no file of the folder of {skill.key!r}")
        data = path.read_bytes()
        if len(data) > _MOST_BYTES:
            return ToolResult(False, error=f"{file!r} has {len(data)} bytes, at most {_MOST_BYTES} are read")
        return ToolResult(True, content=data.decode())
    except (OSError, ValueError) as error:  # a NUL in the name, no right to read, no text
        return ToolResult(False, error=f"{file!r} can't be read: {error}")
