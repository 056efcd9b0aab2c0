"""The executor ``skill``: one task of a skill role -> one outcome.

Guarantees: the task's ``input`` is the skill's arguments, unchanged but for defaults; a verifier's output becomes a
verdict only if it names one; bad input and a broken schema are failures that nobody retries, crashes and timeouts ones
that are. Never calls a model and never touches the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.errors import SkillError
from protocol.kit.rolefiles import RoleFile
from protocol.ports import Delivered, Dispatch, Failed, Outcome, TurnFence
from protocol.record import Json
from workers.skills.loader import Loaded, may_call
from workers.skills.manifest import Skill
from workers.skills.runner import SkillRun, SkillRunner

VERDICTS: Final = ("confirmed", "rejected", "partial")
CONTEXT: Final = ("results", "verifies", "goal", "prompt")
"""Parts of a task's assignment that a skill gets as arguments when its input schema names them."""


async def run_skill_task(
    dispatch: Dispatch, fence: TurnFence, *, role: RoleFile, skills: Loaded, runner: SkillRunner
) -> Outcome:
    """Run the role's skill with the task's input. Raises `FenceLost` where the attempt is no longer this worker's."""
    try:
        skill = skills.need(role.skill)
    except SkillError as error:
        return Failed(kind="no_skill", message=str(error), retryable=False)
    if not may_call(skill, role.tier):
        return Failed("no_skill", f"skill {skill.key!r} is not for tier {role.tier!r} of role {role.id!r}", False)
    await fence.check()
    timeout_ms = None if role.timeout_s is None else min(skill.timeout_ms, round(1000 * role.timeout_s))
    run = await runner.run(
        skill, task_input(dispatch, skill), timeout_ms=timeout_ms, agent=dispatch.agent, task=dispatch.task
    )
    if not run.ok:
        return Failed(
            kind=run.kind if run.kind != "ok" else "failed",
            message=f"skill {skill.key!r}: {run.error}",
            retryable=run.retryable,
            detail={"skill": origin(run), **({"log": run.log[-4_000:]} if run.log else {})},
        )
    if role.kind == "verifier":
        return _verdict(dispatch, run)
    return _delivery(skill, run)


def task_input(dispatch: Dispatch, skill: Skill) -> Json:
    """The arguments: the assignment's ``input`` (none: {}), and of `CONTEXT` what the skill's schema names."""
    given = dispatch.detail.get("input")
    if given is None:
        given = {}
    if not isinstance(given, dict):
        return given
    named = (skill.input_schema or {}).get("properties", {})
    context: dict[str, Json] = {name: dispatch.detail[name] for name in CONTEXT if name in dispatch.detail}
    if dispatch.parent is not None:
        context.setdefault("verifies", dispatch.parent)
    return {**{name: value for name, value in context.items() if name in named}, **given}


def origin(run: SkillRun) -> dict[str, Json]:
    """Which skill did it: goes on record."""
    return {"key": run.skill, "version": run.version, "attempts": run.attempts, "duration_ms": run.duration_ms}


def _delivery(skill: Skill, run: SkillRun) -> Delivered:
    """The output is the result; ``subtasks`` are proposals where the skill's output schema knows them."""
    detail: dict[str, Json] = {"result": run.output, "skill": origin(run)}
    if isinstance(run.output, dict) and "subtasks" in (skill.output_schema or {}).get("properties", {}):
        subtasks = run.output.get("subtasks")
        if isinstance(subtasks, list) and subtasks:
            detail["subtasks"] = subtasks
    return Delivered(detail)


def _verdict(dispatch: Dispatch, run: SkillRun) -> Outcome:
    """A verifier's output as a verdict: ``verdict``, ``reasons``, ``items`` of an object; the rest is ``findings``."""
    output: Mapping[str, Json] = run.output if isinstance(run.output, dict) else {}
    verdict = output.get("verdict")
    if verdict not in VERDICTS:
        words = f"skill {run.skill!r} gave the verdict {verdict!r}: must be one of {', '.join(VERDICTS)}"
        return Failed("bad_output", words, retryable=False, detail={"skill": origin(run)})
    verifies = dispatch.detail.get("verifies") or dispatch.parent
    if not verifies:
        words = f"task {dispatch.task!r} says not what it verifies: 'verifies' is missing from its assignment"
        return Failed("bad_input", words, retryable=False)
    reasons = output.get("reasons", [])
    detail: dict[str, Json] = {
        "verdict": verdict,
        "verifies": verifies,
        "reasons": reasons if isinstance(reasons, list) else [reasons],
        "skill": origin(run),
    }
    if isinstance(output.get("items"), list):
        detail["items"] = output["items"]
    rest = {name: value for name, value in output.items() if name not in ("verdict", "verifies", "reasons", "items")}
    if rest:
        detail["findings"] = rest
    return Delivered(detail)
