"""The open tool calls of an agent's last answer: each gets exactly one result, in order.

Guarantees: a finished call is never run again; one that may have run is repeated only if its tool is safe to repeat,
else a person is asked; the same call over and over is told, then stopped. A question parks the agent and holds nothing.
Never calls a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, Protocol

from protocol.errors import StoreFull, TaskError
from protocol.kit.crash import crash_point
from protocol.ports import Dispatch, Parked, TurnFence
from protocol.record import Json, canonical, digest
from protocol.stores.redis_artifacts import ArtifactRef
from workers.history import OpenCall
from workers.journal import Journal
from workers.messages import as_text, envelope, fenced
from workers.tools import Tool, ToolResult, Tools
from workers.words import WORDS, Lang, say

WINDOW: Final = 20
"""Calls that the guard looks back over."""
SAME_TOLD: Final = 3
"""From so many equal calls on, the next is not run and the model is told."""
SAME_STOP: Final = 5
"""From so many on, the attempt ends."""
OUTPUT_MAX_CHARS: Final = 32_000
"""A tool's output in the history; the whole of what is longer is an artifact."""

ASK_MASTER: Final = Tool(
    "ask_master",
    "Ask the leader or a person for something that you need and can't find out. Your work waits for the answer.",
    {
        "type": "object",
        "properties": {
            "question": {"type": "string", "description": "one clear question, with what is needed to answer it"},
            "to": {"type": "string", "enum": ["leader", "person"], "description": "who can answer; default: person"},
        },
        "required": ["question"],
    },
    idempotent=True,
)


class Spill(Protocol):
    """Where output goes that is too long for a history."""

    async def put(self, space: str, data: bytes) -> ArtifactRef:
        """Store by content."""

    async def name(self, space: str, ref: ArtifactRef, dispatch: Dispatch | None = None) -> None:
        """Make it stay."""


class Caller:
    """Runs the open calls of one attempt."""

    def __init__(
        self, dispatch: Dispatch, fence: TurnFence, journal: Journal, tools: Tools, lang: Lang, spill: Spill | None
    ) -> None:
        self._dispatch = dispatch
        self._fence = fence
        self._journal = journal
        self._tools = tools
        self._lang: Lang = lang
        self._spill = spill
        self._known = {tool.name: tool for tool in tools.list()}
        self._repeat: set[str] = set()

    def shown(self) -> list[Tool]:
        """The tools that the model sees."""
        return [*self._known.values(), ASK_MASTER]

    async def close_others(self) -> None:
        """Calls that another task left open get their one result: a strict endpoint takes no request without it."""
        for call in [call for call in self._journal.history.open if call.task != self._dispatch.task]:
            await self._refuse(call, say(self._lang, "stopped" if call.started else "not_run"))

    async def take_answer(self) -> None:
        """The answer that this attempt was assigned with (``detail.answer``: question, text, by) becomes the result of
        the call that asked. An answer to any other question is noted and changes nothing."""
        answer = self._dispatch.detail.get("answer")
        if not isinstance(answer, dict):
            return
        question, text = answer.get("question"), as_text(answer.get("text", ""))
        call = next((each for each in self._journal.history.open if each.question and each.question == question), None)
        if call is None:
            known = any(note.get("kind") == "answer" and note.get("question") == question for note in self._notes())
            if not known:
                await self._journal.note("answer", question=question, taken=False)
            return
        if call.doubt and text.strip().strip("'\"“”‘’.。!！").casefold() in {
            words["repeat"] for words in WORDS.values()
        }:
            self._repeat.add(call.id)
            await self._journal.note("answer", question=question, taken=True, by=answer.get("by"))
            return
        sender = answer.get("by")
        name = (
            sender
            if isinstance(sender, str) and sender
            else say(self._lang, "leader" if call.to == "leader" else "person")
        )
        body = envelope(self._lang, name, "answer", str(question), fenced(text))
        await self._journal.after_tool(call, body, ok=True, run=False, answers=str(question))
        await self._journal.note("answer", question=question, taken=True, by=sender)

    async def run(self) -> Parked | None:
        """Give every open call its result; Parked where one has to wait for an answer. Raises TaskError where the agent
        goes round in circles."""
        for call in list(self._journal.history.open):
            parked = await self._one(call)
            if parked is not None:
                return parked
        return None

    async def _one(self, call: OpenCall) -> Parked | None:
        if call.question and call.id not in self._repeat:
            await self._journal.waits(call)
            return self._parked(call, call.question, call.asked, call.to)
        if call.error:
            await self._refuse(call, say(self._lang, "broken_call", why=call.error))
            return None
        if call.name == ASK_MASTER.name:
            return await self._ask_master(call)
        tool = self._known.get(call.name)
        if tool is None:
            known = ", ".join(sorted(each.name for each in self.shown()))
            await self._refuse(call, say(self._lang, "unknown_tool", tool=call.name, known=known))
            return None
        if call.started and not tool.idempotent and call.id not in self._repeat:
            shown = json.dumps(dict(call.args), ensure_ascii=False)[:2_000]
            return await self._ask(call, say(self._lang, "in_doubt", tool=call.name, args=shown), "person", doubt=True)
        await self._run(call)
        return None

    async def _run(self, call: OpenCall) -> None:
        key = f"{call.name}:{digest(canonical(dict(call.args)))}"
        same = 0 if call.started else self._journal.history.keys[-WINDOW:].count(key)
        if same >= SAME_STOP:
            guard: dict[str, Json] = {"tool": call.name, "args": dict(call.args), "times": same}
            raise GuardTripped(f"the agent called {call.name!r} {same} times with the same arguments", guard)
        if same >= SAME_TOLD:
            await self._journal.note("guard", tool=call.name, key=key, times=same)
            await self._refuse(call, say(self._lang, "loop", tool=call.name, n=same))
            return
        await self._fence.check()
        crash_point("agent.before_tool")
        await self._journal.before_tool(call, key)
        crash_point("agent.after_tool_intent")
        result = await self._tools.call(call.name, call.args)
        crash_point("agent.after_tool")
        text, more = await self._shown(result)
        await self._journal.after_tool(call, text, ok=result.ok, key=key, more=more)
        crash_point("agent.after_tool_saved")

    async def _ask_master(self, call: OpenCall) -> Parked | None:
        text = call.args.get("question")
        if not isinstance(text, str) or not text.strip():
            await self._refuse(call, say(self._lang, "broken_call", why="question: is missing or empty"))
            return None
        return await self._ask(call, text.strip(), "leader" if call.args.get("to") == "leader" else "person")

    async def _ask(self, call: OpenCall, text: str, to: str, *, doubt: bool = False) -> Parked:
        question = f"ASK_{self._dispatch.agent}_{self._journal.history.questions + 1:03d}"
        await self._journal.ask(call, question, text, to, doubt=doubt)
        return self._parked(call, question, text, to)

    def _parked(self, call: OpenCall, question: str, text: str, to: str) -> Parked:
        kind = "tool_in_doubt" if call.doubt else "question"
        detail: dict[str, Json] = {"tool_call": call.id, "tool": call.name, "about": kind}
        return Parked(question, text, "leader" if to == "leader" else "person", detail)

    async def _refuse(self, call: OpenCall, text: str) -> None:
        await self._journal.after_tool(call, text, ok=False, run=False)

    async def _shown(self, result: ToolResult) -> tuple[str, Mapping[str, Json]]:
        """The result as the model reads it; what is too long is spilled to an artifact, named by its digest."""
        text = as_text(result.content) if result.ok else f"failed: {result.error}"
        if not result.ok and result.content is not None:
            text += f"\n{as_text(result.content)}"
        left = len(text) - OUTPUT_MAX_CHARS
        if left <= 0:
            return text, {}
        head = text[:OUTPUT_MAX_CHARS] + "\n"
        if self._spill is not None:
            try:
                ref = await self._spill.put(self._dispatch.space, text.encode("utf-8", "replace"))
                await self._spill.name(self._dispatch.space, ref, self._dispatch)
            except StoreFull:
                pass  # the head is what there is room for; the history says how much is missing
            else:
                return head + say(self._lang, "cut", left=left, artifact=ref.sha256), {"artifact": ref.to_json()}
        return head + say(self._lang, "cut_short", left=left), {}

    def _notes(self) -> list[Mapping[str, Json]]:
        return self._journal.history.notes


class GuardTripped(TaskError):
    """The agent goes round in circles; ``guard`` says how, for the record."""

    def __init__(self, message: str, guard: Mapping[str, Json]) -> None:
        super().__init__(message, kind="no_progress", retryable=False)
        self.guard = guard
