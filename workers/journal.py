"""What a turn saves, and when: an intent before each act, its outcome after it, each through the attempt's fence.

Guarantees: nothing is done that was not announced in the store first, and nothing that was done is forgotten by it: the
next attempt folds the same history and goes on. A write that is refused (taken over, cancelled) raises FenceLost before
the act that it announces. Never calls a model or a tool.

::

    model intent ──► model ──► reply ──► call intent ──► tool ──► result ──► … ──► end
                                 │            └► (killed: repeated only if idempotent, else ask)
                                 └► ask ──► parked ──► answer = result ──► …
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Final, TypeVar

from protocol.errors import StoreError
from protocol.kit.logs import get_log
from protocol.kit.rolefiles import RoleFile
from protocol.ports import Clock, Conversation, Dispatch, Mail, Saved
from protocol.record import Json
from workers.history import History, OpenCall
from workers.messages import Message, mail_message, message, tool_name
from workers.stream import Reply
from workers.words import Lang, say

T = TypeVar("T")
log = get_log(__name__)
SUMMARY_CHARS: Final = 60
PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0)


class Journal:
    """One attempt's pen: the history as saved, and the only way to add to it."""

    def __init__(
        self, conversation: Conversation, dispatch: Dispatch, role: RoleFile, model_key: str, *, lang: Lang,
        clock: Clock, sleep: Callable[[float], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._conversation = conversation
        self._dispatch = dispatch
        self._role = role
        self._model_key = model_key
        self._lang: Lang = lang
        self._clock = clock
        self._sleep = sleep
        self.history = History(dispatch.task)
        self.waiting = 0
        """Messages in the mailbox, as the last write saw it."""

    async def load(self) -> History:
        """Fold what is saved."""
        loaded = await self._patiently(self._conversation.load)
        self.history = History(self._dispatch.task).fold(loaded.entries)
        self.waiting = loaded.mail
        return self.history

    async def begin(self, first: Message | None) -> None:
        """The attempt takes the conversation up: status and, for a new task, its message."""
        prompt = self._dispatch.detail.get("prompt") or self._dispatch.detail.get("goal") or self._dispatch.task
        lines = str(prompt).strip().splitlines() or [self._dispatch.task]
        entries: list[tuple[str, Mapping[str, Json]]] = []
        if first is not None:
            entries.append(("message", {"message": first, "about": "task"}))
        await self._save(
            *entries,
            meta={
                "status": "running", "role_id": self._role.id, "role_name": self._role.name,
                "model_key": self._model_key, "thinking_mode": self._role.thinking_mode or "fast",
                "task": self._dispatch.task, "attempt": self._dispatch.attempt, "worker": self._dispatch.owner,
                "task_summary": lines[0][:SUMMARY_CHARS], "pending_tool_calls": [],
            },
        )  # fmt: skip

    async def before_model(self, estimate: int) -> None:
        """Intent: the model is called with about ``estimate`` tokens."""
        await self._save(("model", {"turn": self.history.turns + 1, "tokens": estimate}))

    async def after_model(self, reply: Reply, *, taken: bool = True) -> None:
        """Outcome: the reply, as it may be sent back. Broken arguments are kept apart, in ``broken``, and go back as
        ``{}``. ``taken`` False: it counts for nothing and is kept for people alone."""
        body: dict[str, Json] = {"finish": reply.finish, "usage": asdict(reply.usage), "model": reply.model}
        prefix = f"out_{self._role.id}"
        made = message("assistant", reply.content, self.history.next_id(prefix))
        if reply.tool_calls:
            made["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": tool_name(call.name), "arguments": "{}" if call.error else call.raw or "{}"},
                }
                for call in reply.tool_calls
            ]
            broken = {call.id: {"error": call.error, "raw": call.raw} for call in reply.tool_calls if call.error}
            if broken:
                body["broken"] = broken
        if reply.fingerprint:
            body["fingerprint"] = reply.fingerprint
        if reply.reasoning:
            body["reasoning"] = reply.reasoning
        if not taken:
            body["taken"] = False
        body["message"] = made
        notes = [("note", {"kind": "endpoint", "text": text}) for text in reply.notes]
        await self._save(*notes, ("reply", body))

    async def before_tool(self, call: OpenCall, key: str) -> None:
        """Intent: this call is about to run. ``key`` is what the guard compares."""
        await self._save(("call", {"call": call.id, "tool": call.name, "key": key}))

    async def after_tool(
        self,
        call: OpenCall,
        text: str,
        *,
        ok: bool,
        key: str = "",
        run: bool = True,
        answers: str = "",
        more: Mapping[str, Json] | None = None,
    ) -> None:
        """Outcome: the call's one result, as the model reads it. ``run`` False: code answered instead of the tool;
        ``answers`` names the question that this settles."""
        made = message("tool", text, self.history.next_id(f"msg_{call.name}"))
        made["tool_call_id"] = call.id
        if answers:
            made["metadata"] = {"answers": answers}
        body: dict[str, Json] = {
            "call": call.id, "tool": call.name, "ok": ok, "key": key, "message": made, **(more or {})
        }  # fmt: skip
        if not run:
            body["run"] = False
        await self._save(("result", body))

    async def ask(self, call: OpenCall, question: str, text: str, to: str, *, doubt: bool = False) -> None:
        """A question stands for this call: the agent waits."""
        await self._save(
            ("ask", {"question": question, "call": call.id, "text": text, "to": to, "doubt": doubt}),
            meta={"status": "waiting", "pending_tool_calls": [self._pending(call, question)]},
        )

    async def waits(self, call: OpenCall) -> None:
        """The agent goes on waiting for the question of ``call``, which is saved already."""
        await self._save(meta={"status": "waiting", "pending_tool_calls": [self._pending(call, call.question)]})

    def _pending(self, call: OpenCall, question: str) -> dict[str, Json]:
        return {
            "tool_call_id": call.id, "tool_name": call.name, "question_id": question, "created_at": self._clock()
        }  # fmt: skip

    async def nudge(self, kind: str, text: str) -> None:
        """Code tells the agent something between two model calls; ``kind`` counts how often."""
        made = message(
            "user", text, self.history.next_id("msg_system"),
            message_source="system", visibility="compact", starts_work=False,
        )  # fmt: skip
        await self._save(("message", {"message": made, "nudge": kind}))

    async def take_mail(self) -> int:
        """Take up what lies in the mailbox; returns how many messages."""
        found: Sequence[Mail] = await self._patiently(self._conversation.mail)
        entries = [("message", {"message": mail_message(mail, self._lang), "about": "mail"}) for mail in found]
        if entries:
            await self._save(*entries, taken=[mail.entry for mail in found])
        return len(entries)

    async def note(self, kind: str, **body: Json) -> None:
        """Something worth keeping for people; the model does not see it."""
        await self._save(("note", {"kind": kind, **body}))

    async def compact(self, body: Mapping[str, Json]) -> None:
        """Earlier messages give way to a summary (see ``workers.history``)."""
        await self._save(("compact", body))

    async def end(self, outcome: str, status: str, **body: Json) -> None:
        """The attempt ends: ``delivered``, ``failed`` or ``handed_back``; ``status`` is the agent's from now on."""
        await self._save(("end", {"outcome": outcome, **body}), meta={"status": status})

    async def stop(self) -> bool:
        """The task was cancelled: each open call gets its one result, so that the history stays one that a strict
        endpoint takes, and the agent is terminated. False where the task is not cancelled, or somebody did it."""
        await self.load()
        first = self.history.last + 1
        entries: list[tuple[str, Mapping[str, Json]]] = []
        for call in list(self.history.open):
            text = say(self._lang, "stopped" if call.started else "not_run")
            made = message("tool", text, self.history.next_id(f"msg_{call.name}"))
            made["tool_call_id"] = call.id
            body = {"call": call.id, "tool": call.name, "ok": False, "key": "", "message": made, "run": False}
            self._fold(first + len(entries), ("result", body))
            entries.append(("result", body))
        entries.append(("end", {"outcome": "cancelled"}))
        return await self._conversation.close(first, entries, meta={"status": "terminated", "pending_tool_calls": []})

    def _fold(self, first: int, *entries: tuple[str, Mapping[str, Json]]) -> None:
        made = self._dispatch
        self.history.fold(
            Saved(first + at, kind, made.task, made.attempt, 0, body) for at, (kind, body) in enumerate(entries)
        )

    async def _save(
        self,
        *entries: tuple[str, Mapping[str, Json]],
        meta: Mapping[str, Json] | None = None,
        taken: Sequence[str] = (),
    ) -> None:
        first = self.history.last + 1
        self.waiting = await self._patiently(lambda: self._conversation.write(first, entries, meta=meta, taken=taken))
        self._fold(first, *entries)

    async def _patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        """Wait out a store that is away: a turn goes on with its attempt if the store still says that it may. Every
        write is safe to send again."""
        tries = 0
        while True:
            try:
                return await act()
            except StoreError as error:
                if not error.retryable:
                    raise
                if not tries:
                    log.warning("the store is away: the turn waits", agent=self._dispatch.agent, why=str(error))
            await self._sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
            tries += 1
