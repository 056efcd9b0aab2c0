"""Runs skills: input checked, called in a process of its own, output checked, retried, logged whole.

Guarantees: `SkillRunner.run` returns a `SkillRun` whatever the skill does and raises nothing but cancellation; a skill
is not called at all with input that breaks its schema; bad input is never tried again; the skill's process sees none
of the fleet's variables. Never runs a skill's code in this process and never starts anything through a shell.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from protocol.kit.embedded import FOLDER as SERVER_FOLDER
from protocol.kit.logs import get_log
from protocol.kit.settings import FILE_NAME, FILE_VARIABLE
from protocol.ports import Clock
from protocol.record import Json, canonical
from workers.skills import schema
from workers.skills.manifest import Skill
from workers.skills.process import Answer, Call, Kind, Limits, call
from workers.skills.runlog import RunLog
from workers.skills.venvs import VenvFailed, Venvs

Status = Literal["success", "failed", "timeout"]
Sleep = Callable[[float], Awaitable[None]]

ROOT_VARIABLE: Final = "SKILL_ROOT"
"""The directory that skills work in and below which the shipped ones read: named in the worker's environment."""
_PASSED: Final = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")

_log = get_log("workers.skills")


@dataclass(frozen=True, slots=True)
class SkillRun:
    """One run, whole: what is logged. ``attempts`` 0: the skill was not called. ``field``: the input at fault."""

    skill: str
    version: str
    status: Status
    output: Json = None
    error: str = ""
    kind: Kind = "ok"
    field: str = ""
    retryable: bool = False
    attempts: int = 0
    duration_ms: int = 0
    log: str = ""
    input: Json = None
    agent: str = ""
    task: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "success"

    def to_json(self) -> dict[str, Json]:
        """The row of the run log."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True, kw_only=True)
class SkillRunner:
    """Runs skills for one worker process.

    ``env`` is the worker's environment: only what a skill declares is taken from it, besides PATH and the language.
    ``data_dir`` is where skills with requirements get their environments and where the run log lies
    (``skills/runs.jsonl``, unless a ``sink`` is given). ``root``: where skills work (default: the variable SKILL_ROOT,
    else the working directory). ``parallel`` calls run at once, the others wait their turn.
    """

    env: Mapping[str, str]
    data_dir: Path | None = None
    root: Path | None = None
    limits: Limits = field(default_factory=Limits)
    parallel: int = 16
    process_space: bool = True
    sink: Callable[[SkillRun], None] | None = None
    sleep: Sleep = asyncio.sleep
    clock: Clock = time.monotonic
    _turns: asyncio.Semaphore = field(init=False)
    _venvs: Venvs = field(init=False)

    def __post_init__(self) -> None:
        self._turns = asyncio.Semaphore(self.parallel)
        self._venvs = Venvs(self.data_dir, self.env)
        if self.sink is None and self.data_dir is not None:
            self.sink = RunLog(self.data_dir / "skills" / "runs.jsonl")

    async def run(
        self,
        skill: Skill,
        params: Json,
        *,
        timeout_ms: int | None = None,
        max_retries: int | None = None,
        agent: str = "",
        task: str = "",
    ) -> SkillRun:
        """One run with all its attempts; waits 1, 2, 4 … s after failures that another try may mend."""
        started = self.clock()
        timeout_s = (skill.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        most = 1 + (skill.max_retries if max_retries is None else max_retries)
        run = SkillRun(skill.key, skill.version, "failed", input=params, agent=agent, task=task)
        given, fault = self._checked(skill, params)
        if fault is not None:
            run = replace(run, kind=fault[0], field=fault[1], error=fault[2])
        else:
            run = replace(run, input=given)
            for attempt in range(1, most + 1):
                async with self._turns:
                    answer = await self._once(skill, given, timeout_s)
                run = _noted(run, answer, attempt)
                if run.ok or not run.retryable or attempt == most:
                    break
                await self.sleep(float(2 ** (attempt - 1)))
        run = replace(run, duration_ms=round(1000 * (self.clock() - started)))
        self._report(run)
        return run

    def _checked(self, skill: Skill, params: Json) -> tuple[dict[str, Json], tuple[Kind, str, str] | None]:
        """The arguments, or ``(kind, field, words)`` of why the skill is not called."""
        if not skill.callable:
            return {}, ("broken", "$", f"skill {skill.key!r} is instructions only: there is nothing to call")
        try:
            canonical(params)
        except ValueError as error:
            return {}, ("bad_input", "$", f"the input is {error}")
        given, faults = schema.arguments(skill.input_schema, params)
        if faults:
            words = "; ".join(f"{name}: {text}" for name, text in faults[:5])
            return {}, ("bad_input", faults[0][0], f"bad input: {words}")
        return given, None

    async def _once(self, skill: Skill, params: Mapping[str, Json], timeout_s: float) -> Answer:
        root = self.root or Path(self.env.get(ROOT_VARIABLE) or os.getcwd())
        try:
            python = await self._venvs.python(skill)
        except VenvFailed as failed:
            return Answer("environment", error=str(failed), retryable=False, log=failed.log)
        answer = await call(
            Call(
                python=python,
                folder=skill.folder,
                file=skill.entry_file,
                function=skill.entry_function,
                params=params,
                timeout_s=timeout_s,
                env=environment(self.env, skill, python=python, root=root),
                cwd=root,
                process_space=self.process_space,
                hidden=self._hidden(),
            ),
            self.limits,
        )
        if answer.kind == "ok" and skill.output_schema is not None:
            faults = schema.check(skill.output_schema, answer.output)
            if faults:
                words = "; ".join(f"{name}: {text}" for name, text in faults[:5])
                return replace(answer, kind="bad_output", output=None, error=f"the output breaks its schema: {words}")
        return answer

    def _hidden(self) -> tuple[Path, ...]:
        """Where the fleet's passwords lie in files: the embedded server's directory and the file of settings."""
        config = Path(self.env.get(FILE_VARIABLE) or FILE_NAME).absolute()
        return (config,) if self.data_dir is None else (self.data_dir.absolute() / SERVER_FOLDER, config)

    def _report(self, run: SkillRun) -> None:
        fields = {"skill": run.skill, "status": run.status, "attempts": run.attempts, "duration_ms": run.duration_ms}
        if run.ok:
            _log.debug("skill_run", **fields)
        else:
            _log.warning("skill_run", **fields, kind=run.kind, error=run.error, task=run.task)
        if self.sink is not None:
            self.sink(run)


def environment(env: Mapping[str, str], skill: Skill, *, python: str, root: Path) -> dict[str, str]:
    """What a skill sees: PATH, the language, SKILL_ROOT, what it declares (HOME and TMPDIR become its scratch)."""
    path = env.get("PATH") or os.defpath
    seen = {name: env[name] for name in (*_PASSED, *skill.env) if env.get(name)}
    seen.setdefault("LANG", "C.UTF-8")
    return {**seen, "PATH": f"{Path(python).parent}{os.pathsep}{path}", ROOT_VARIABLE: str(root)}


def _noted(run: SkillRun, answer: Answer, attempt: int) -> SkillRun:
    status: Status = {"ok": "success", "timeout": "timeout"}.get(answer.kind, "failed")  # type: ignore[assignment]
    return replace(
        run, status=status, kind=answer.kind, output=answer.output, error=answer.error, retryable=answer.retryable,
        attempts=attempt, log=answer.log,
    )  # fmt: skip
