"""The turn loop of an agent: model, tools, model … until a delivery, a question, or a stated end.

Guarantees: what happens next follows from the saved history alone, so an attempt that takes over goes on exactly where
the last one stopped: no finished tool call runs again, no message is lost, a delivery that was reached is not reached
twice. Each act passes the fence first. Ends within the role's turns and time. Never speaks Redis; never catches
broadly.

::

    load ──► begin ──► ┌─ open tool calls? ── run them (or park) ─┐
                       ├─ a final answer?  ── judge: deliver, or tell and go on
                       └─ else             ── mail, model call ───┘ (loop)
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from protocol.errors import FenceLost, GateRefused, ModelError, StoreError, TaskError
from protocol.kit.crash import crash_point
from protocol.kit.rolefiles import RoleFile
from protocol.kit.settings import hide_password
from protocol.ports import (
    Clock,
    Conversation,
    Delivered,
    Dispatch,
    Dropped,
    Failed,
    HandedBack,
    Outcome,
    Random,
    TurnFence,
)
from protocol.record import Json
from workers.answers import detail_of, schema_of
from workers.budget import Budget, NoBudget, OverBudget, priced
from workers.calls import Caller, GuardTripped, Spill
from workers.compact import compaction, pins
from workers.history import History
from workers.journal import Journal
from workers.limits import ModelLimits, NoLimits, Sleep
from workers.messages import Message, for_endpoint, system_prompt, task_message, tokens, tokens_of
from workers.model import Model
from workers.stream import OnDelta, Reply, Usage
from workers.tools import Tools
from workers.words import Lang, say

PATIENCE_S: Final = 3.0
"""Waits for an endpoint that sum up to this are spent inside the attempt; longer ones end it, to be tried again."""
PASSING: Final = frozenset({"rate_limited", "endpoint_error", "stream_broken"})
UNSERVED: Final = frozenset(
    {"rate_limited", "endpoint_unreachable", "endpoint_denied", "endpoint_refused", "endpoint_forbidden", "bad_request",
     "context_overflow", "bad_proxy", "no_model"}
)  # fmt: skip
"""Faults after which an endpoint has used no tokens."""
EVIDENCE_MAX: Final = 100
CLOSE_S: Final = 1.0
"""How long a turn that was cut off may take to say its last words."""
ANSWER_TOKENS: Final = 1_000
"""What is reserved for an answer, on top of the prompt, until its real use is known."""
UNSEEN_RATIO: Final = 1.25
"""How much larger than estimated a prompt may be before the endpoint has counted one."""

Spent = Callable[[Usage], None]
"""Told what each model call used, for the metrics."""
Notice = Callable[[str, str, Mapping[str, Json]], Awaitable[None]]
"""Puts something on record beside the outcome (an ``info`` record): kind, one sentence, detail."""


def _uncounted(usage: Usage) -> None:
    """No count wanted."""


async def _unsaid(kind: str, what: str, detail: Mapping[str, Json]) -> None:
    """No notices wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a turn is given besides its task; the defaults suit a test."""

    lang: Lang = "en"
    limits: ModelLimits = NoLimits()  # noqa: RUF009 - it has no state
    budget: Budget = NoBudget()  # noqa: RUF009 - nor has it
    spent: Spent = _uncounted
    spill: Spill | None = None
    notice: Notice = _unsaid
    on_delta: OnDelta | None = None
    draining: Callable[[], bool] = lambda: False
    base_prompt: str = ""
    patience_s: float = PATIENCE_S
    clock: Clock = time.time
    random: Random = random.random
    sleep: Sleep = asyncio.sleep


async def run_agent(
    dispatch: Dispatch,
    fence: TurnFence,
    *,
    role: RoleFile,
    conversation: Conversation,
    model: Model,
    tools: Tools,
    around: Surroundings | None = None,
) -> Outcome:
    """One attempt of one task by its agent. Store errors and cancellation are raised; all else is an outcome."""
    turn = _Turn(dispatch, fence, role, conversation, model, tools, around or Surroundings())
    timer = asyncio.timeout(role.timeout_s)
    try:
        async with timer:
            return await turn.run()
    except asyncio.CancelledError:
        await turn.stopped()
        raise
    except FenceLost as lost:
        await turn.stopped()
        return Dropped(lost.message)
    except TaskError as error:
        return await turn.failed(error)
    except TimeoutError:
        if not timer.expired():
            raise
        words = f"the agent had not delivered after {role.timeout_s:g} s" if role.timeout_s else "timed out"
        return await turn.failed(TaskError(words, kind="timeout", retryable=True, mend="see timeout_s of the role"))


class _Turn:
    def __init__(
        self, dispatch: Dispatch, fence: TurnFence, role: RoleFile, conversation: Conversation, model: Model,
        tools: Tools, around: Surroundings,
    ) -> None:  # fmt: skip
        self._dispatch = dispatch
        self._fence = fence
        self._role = role
        self._model = model
        self._around = around
        self._lang: Lang = around.lang
        self._journal = Journal(
            conversation, dispatch, role, model.spec.key, lang=around.lang, clock=around.clock, sleep=around.sleep
        )
        self._caller = Caller(dispatch, fence, self._journal, tools, around.lang, around.spill)
        self._schema = schema_of(role, dispatch)
        self._system = system_prompt(role, around.lang, around.base_prompt)
        shown = json.dumps([tool.to_openai() for tool in self._caller.shown()], ensure_ascii=False)
        self._fixed = tokens_of([self._system]) + tokens(shown)
        self._ratio = UNSEEN_RATIO
        """How much larger prompts are than estimated, as far as is known; never below 1: limits are kept by it."""

    @property
    def _history(self) -> History:
        return self._journal.history

    async def run(self) -> Outcome:
        """Go on from what is saved until the attempt ends."""
        await self._fence.check()
        before = await self._journal.load()
        taken_over = before.begun and before.attempt < self._dispatch.attempt and before.ended is None
        first = None if before.begun else task_message(self._dispatch, self._schema, self._task_id(), self._lang)
        await self._caller.close_others()
        await self._journal.begin(first)
        if taken_over:
            await self._journal.note("takeover", from_attempt=before.attempt, turns=before.turns)
        again = await self._after_end()
        if again is not None:
            return again
        await self._caller.take_answer()
        while True:
            if self._history.open:
                parked = await self._caller.run()
                if parked is not None:
                    return replace(parked, detail={**parked.detail, "usage": self._usage()})
                continue
            last = self._history.last_message()
            if last.get("role") == "assistant":
                delivered = await self._judge(str(last.get("content", "")))
                if delivered is not None:
                    return delivered
                continue
            if self._around.draining():
                await self._journal.end("handed_back", "idle", why="draining")
                return HandedBack("the worker drains", {"usage": self._usage()})
            if self._journal.waiting:
                await self._journal.take_mail()
            await self._think()

    async def failed(self, error: TaskError) -> Outcome:
        """Save the end of the attempt and say why."""
        detail: dict[str, Json] = {"usage": self._usage()}
        if isinstance(error, (GuardTripped, OverBudget)):
            detail["guard"] = dict(error.guard)
        try:
            await self._journal.end("failed", "idle", kind=error.kind, message=error.message)
        except FenceLost as lost:
            return Dropped(lost.message)
        return Failed(error.kind, str(error), error.retryable, error.retry_after_s, detail)

    async def stopped(self) -> None:
        """The attempt is not this worker's any more. Where its task was cancelled, the conversation is closed; else
        (and where that fails) whoever takes the agent up next does what is left."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._journal.stop()
        except (StoreError, TimeoutError):
            pass

    def _task_id(self) -> str:
        return f"task_{self._dispatch.task}"

    async def _after_end(self) -> Delivered | None:
        """An attempt of this task ended before: a delivery that never got into the log is delivered (once: if that is
        refused, it is worked on again); after a failure the agent is told why it is asked again."""
        ended = self._history.ended
        if ended is None:
            return None
        detail = ended.get("detail")
        if ended.get("outcome") == "delivered" and isinstance(detail, dict) and not self._history.redelivered:
            await self._journal.note("redelivered", attempt=self._dispatch.attempt)
            return Delivered(detail)
        last = self._history.last_message()
        if (
            ended.get("outcome") in ("delivered", "failed")
            and last.get("role") == "assistant"
            and not self._history.open
        ):
            why = str(ended.get("message") or "the delivery was refused")
            await self._journal.nudge("again", say(self._lang, "again", why=why))
        return None

    async def _think(self) -> None:
        """One model call, its intent before and its outcome after; what counts for nothing is told and asked again."""
        history = self._history
        if history.turns >= self._role.max_turns:
            words = f"no delivery after {history.turns} model calls"
            raise TaskError(words, kind="max_turns", retryable=False, mend="see max_turns of the role")
        await self._make_room()
        estimate = self._fixed + tokens_of(history.messages)
        reply = await self._call(for_endpoint([self._system, *history.messages]), estimate)
        crash_point("worker.after_model_call")
        problem = _unusable(reply)
        await self._journal.after_model(reply, taken=not problem)
        crash_point("agent.after_model_saved")
        for note in reply.notes:
            await self._around.notice("endpoint", note, {"model": self._model.spec.key})
        if problem:
            await self._tell_or_fail(problem, reply)

    async def _tell_or_fail(self, problem: str, reply: Reply) -> None:
        if problem == "content_filter":
            words = f"the model endpoint withheld its answer ({reply.refusal or 'content filter'})"
            raise ModelError(words, kind="content_filter", retryable=False)
        if self._history.nudges[problem]:
            cut = problem == "truncated"
            words = "the answer was cut off at the token limit, twice" if cut else "the answer was empty, twice"
            mend = f"allow longer answers for models.{self._model.spec.key}, or ask for less" if cut else ""
            raise ModelError(words, kind=problem, retryable=not cut, mend=mend)
        await self._journal.nudge(problem, say(self._lang, problem))

    async def _call(self, messages: Sequence[Message], estimate: int) -> Reply:
        """The call with its permit; short waits for a busy endpoint are waited out here."""
        spent, tries = 0.0, 0
        spec, around = self._model.spec, self._around
        while True:
            prompt = round(estimate * self._ratio)
            async with (
                around.limits.permit(spec, prompt + ANSWER_TOKENS) as permit,
                around.budget.hold(self._dispatch, spec, prompt) as hold,
            ):
                await self._fence.check()
                crash_point("agent.before_model")
                await self._journal.before_model(estimate)
                crash_point("agent.after_model_intent")
                hold.guess = prompt
                try:
                    reply = await self._model.complete(
                        messages,
                        tools=self._caller.shown(),
                        schema=self._schema,
                        thinking=self._thinking(),
                        most=hold.answer or spec.max_output_tokens,
                        on_delta=around.on_delta,
                    )
                except ModelError as error:
                    fault = error
                    hold.guess = 0 if error.kind in UNSERVED else prompt
                else:
                    permit.used = reply.usage.total or None
                    hold.used = usage = priced(
                        reply.usage, spec, prompt=prompt, completion=tokens(reply.content + reply.reasoning)
                    )
                    self._ratio = max(1.0, usage.prompt / max(1, estimate))
                    around.spent(usage)
                    return replace(reply, usage=usage)
            asked = fault.retry_after_s
            if asked is not None:
                await around.limits.cool_down(spec, asked)
            wait = (0.5 * 2**tries if asked is None else asked) * (1 + 0.1 * around.random())
            spent += wait
            tries += 1
            if fault.kind not in PASSING or spent > around.patience_s:
                raise fault
            await self._journal.note("wait", why=fault.kind, seconds=round(wait, 3))
            await around.sleep(wait)

    def _thinking(self) -> bool:
        mode = self._dispatch.detail.get("thinking_mode") or self._role.thinking_mode
        return mode == "thinking"

    async def _make_room(self) -> None:
        """Compact a history that fills the window; said on record."""
        body = compaction(
            self._history.messages,
            fixed=self._fixed,
            window=self._model.spec.context_window,
            pinned=pins(self._history.messages, self._task_id()),
            summary_id=self._history.next_id("msg_system"),
            lang=self._lang,
        )
        if body is None:
            return
        await self._journal.compact(body)
        said = {"agent": self._dispatch.agent, "tokens_before": body["before"], "tokens_after": body["after"]}
        words = f"the history of {self._dispatch.agent} was compacted: {body['before']} -> {body['after']} tokens"
        await self._around.notice("compaction", words, said)

    async def _judge(self, text: str) -> Delivered | None:
        """A final answer: delivered, or refused (told once, then the attempt fails)."""
        history = self._history
        wanted = self._dispatch.detail.get("evidence")
        unproven = bool(wanted) and not _proven(history, wanted)
        if unproven and not history.nudges["evidence"]:
            await self._journal.nudge("evidence", say(self._lang, "evidence"))
            return None
        try:
            detail, repairs = detail_of(text, self._schema, self._dispatch)
        except GateRefused as refusal:
            if history.nudges["refused"]:
                words = f"the delivery was refused twice: {refusal.path}: {refusal.message}"
                raise ModelError(words, kind="bad_delivery", retryable=False) from refusal
            why = f"{refusal.path}: {refusal.message}"[:2_000]
            await self._journal.nudge("refused", say(self._lang, "refused", why=why))
            return None
        detail["usage"] = self._usage()
        detail["model"] = self._named()
        if history.runs:
            runs = [{"tool": run.tool, "call": run.call, "ok": run.ok} for run in history.runs[-EVIDENCE_MAX:]]
            detail["evidence"] = {"tool_runs": runs, "count": len(history.runs)}
        if unproven:
            detail["unverified"] = "no finished tool run stands behind this delivery"
        if repairs:
            detail["repairs"] = repairs[:20]
        guards = [{"tool": n.get("tool"), "times": n.get("times")} for n in history.notes if n.get("kind") == "guard"]
        if guards:
            detail["guards"] = guards[:20]
        await self._journal.end("delivered", "completed", detail=detail)
        return Delivered(detail)

    def _usage(self) -> dict[str, Json]:
        """What this attempt used; under ``task`` all attempts of it together, which a lost one's are in."""
        history, attempt = self._history, self._dispatch.attempt
        whole = history.usage.to_json()
        own = history.spent.get(attempt, Usage()).to_json()
        task = {key: whole[key] for key in ("calls", "total_tokens", "cost") if key in whole}
        return {**own, "attempt": attempt, "model": self._model.spec.key, "task": task}

    def _named(self) -> dict[str, Json]:
        spec = self._model.spec
        named: dict[str, Json] = {"key": spec.key, "name": self._history.model or spec.model}
        named["endpoint"] = hide_password(spec.base_url) if spec.base_url else "default"
        if self._history.fingerprint:
            named["fingerprint"] = self._history.fingerprint
        return named


def _unusable(reply: Reply) -> str:
    """Why a reply counts for nothing; empty where it counts. A tool call decides, not the finish reason."""
    if reply.finish == "length":
        return "truncated"
    if reply.finish == "content_filter" or (reply.refusal and not reply.content and not reply.tool_calls):
        return "content_filter"
    return "" if reply.tool_calls or reply.content.strip() else "empty"


def _proven(history: History, wanted: Json) -> bool:
    """Whether finished, successful tool runs stand behind the delivery: any (``true``), or one of each named tool."""
    done = {run.tool for run in history.runs if run.ok}
    names = set(wanted) if isinstance(wanted, list) else set()
    return names <= done if names else bool(done)
