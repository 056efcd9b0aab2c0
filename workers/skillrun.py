"""The executor ``skill`` put together: the role's skill, its runner, the results it reads.

Guarantees: skills are loaded once a process, and what is wrong with any of them is said by name; a role whose skill is
not there ends the process in one line. Nothing here knows arq or the stream.
"""

from __future__ import annotations

import os

from protocol.kit.logs import get_log
from protocol.ports import Dispatch, Outcome, Runner, TurnFence
from workers.results import with_results
from workers.runner import RunnerParts
from workers.skills.executor import run_skill_task
from workers.skills.loader import load_skills
from workers.skills.runner import SkillRunner

log = get_log(__name__)


def skill_runner(parts: RunnerParts) -> Runner:
    """A runner for a role whose ``executor`` is ``skill``."""
    loaded = load_skills(parts.settings.skills_path)
    for problem in loaded.problems:
        log.warning("a skill does not load", problem=str(problem))
    loaded.need(parts.source.role.skill)
    runner = SkillRunner(env=os.environ, data_dir=parts.settings.data_dir)

    async def run(dispatch: Dispatch, fence: TurnFence) -> Outcome:
        full = await with_results(dispatch, parts.client, parts.keys)
        return await run_skill_task(full, fence, role=parts.source.current(), skills=loaded, runner=runner)

    return run
