"""The executor ``model`` put together: the agent's conversation, its model, its tools.

Guarantees: one client per model entry and process; the model is the run's, else the role's, else the first of the list,
and a fallback is put on record once per session. Never reads a setting by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from protocol.kit.logs import get_log
from protocol.kit.metrics import Metrics
from protocol.ports import Dispatch, Outcome, Runner, TurnFence
from protocol.record import WHAT_MAX, Json, Record, Trace, canonical, digest
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_budget import MICROS, Budgets
from protocol.stores.redis_conversations import RedisConversations
from protocol.stores.redis_live import Live
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_permits import Permits
from protocol.stores.scripts import Scripts
from workers.agent import Surroundings, run_agent
from workers.budget import SharedBudget
from workers.limits import SharedLimits
from workers.livetext import LiveText
from workers.messages import one_line
from workers.model import ModelClient, choose_model
from workers.results import with_results
from workers.runner import RunnerParts
from workers.skills.loader import load_skills
from workers.skills.runner import SkillRunner
from workers.skills.tools import SkillTools
from workers.stream import Usage
from workers.traced import TracedModel, TracedTools

log = get_log(__name__)


def agent_runner(parts: RunnerParts) -> Runner:
    """A runner for a role whose ``executor`` is ``model``."""
    settings = parts.settings
    scripts = Scripts(parts.client)
    store = RedisLog(parts.client, parts.keys, scripts)
    artifacts = Artifacts(parts.client, parts.keys)
    conversations = RedisConversations(parts.client, parts.keys, scripts)
    skills = load_skills(settings.skills_path)
    for problem in (*skills.problems, *skills.for_agent(parts.source.role.tier, parts.source.role.skills)[1]):
        log.warning("a skill is left out", problem=str(problem))
    runner = SkillRunner(env=os.environ, data_dir=settings.data_dir)
    limits = SharedLimits(Permits(parts.client, parts.keys, scripts))
    budget = SharedBudget(Budgets(parts.client, parts.keys, scripts))
    live = Live(parts.client, parts.keys, scripts)
    clients: dict[str, ModelClient] = {}

    async def run(dispatch: Dispatch, fence: TurnFence) -> Outcome:
        role = parts.source.current()
        notice = _notices(store, dispatch)
        wanted = dispatch.detail.get("model") or role.model
        spec, warning = choose_model(settings.models, wanted if isinstance(wanted, str) else "")
        if warning:
            await notice("model_fallback", warning, {"wanted": wanted, "used": spec.key})
        model = clients.setdefault(
            spec.key, ModelClient(spec, loopback_only=settings.no_model, headers=parts.tracing.headers)
        )
        tools = SkillTools(skills, role, runner, agent=dispatch.agent, task=dispatch.task)

        async with LiveText(live, dispatch) as text:
            around = Surroundings(
                lang=settings.lang, limits=limits, budget=budget, spill=artifacts, notice=notice,
                draining=parts.draining, spent=partial(_count, parts.metrics, dispatch.role, spec.key),
                on_delta=text.delta,
            )  # fmt: skip
            return await run_agent(
                await with_results(dispatch, parts.client, parts.keys),
                fence,
                role=role,
                conversation=conversations.open(dispatch),
                model=TracedModel(model, parts.tracing),
                tools=TracedTools(tools, parts.tracing),
                around=around,
            )

    return run


def _notices(store: RedisLog, dispatch: Dispatch) -> Callable[[str, str, Mapping[str, Json]], Awaitable[None]]:
    """Puts an ``info`` record on record; the same notice of the same session is one record."""

    async def notice(kind: str, what: str, detail: Mapping[str, Json]) -> None:
        body = {**detail, "kind": kind}
        record = Record(
            id=f"INFO_{digest(dispatch.space, kind, canonical(body))}",
            who=dispatch.agent,
            time=int(time.time()),
            event="info",
            what=one_line(what)[:WHAT_MAX],
            detail=body,
            trace=Trace(parent_id=dispatch.task, session_id=dispatch.session),
        )
        await store.append(dispatch.space, [record], owner=dispatch.owner)

    return notice


def _count(metrics: Metrics, role: str, model: str, usage: Usage) -> None:
    metrics.add("rolecall_model_calls_total", role=role, model=model)
    metrics.add("rolecall_model_tokens_total", usage.prompt, role=role, model=model, direction="input")
    metrics.add("rolecall_model_tokens_total", usage.completion, role=role, model=model, direction="output")
    metrics.add("rolecall_model_cost_total", usage.micros / MICROS, role=role, model=model)
