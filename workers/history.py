"""A conversation folded from its saved entries: what a turn needs to know to go on where the last one stopped.

Guarantees: pure; the same entries give the same history, whoever folds them and whenever. An entry of an unknown kind
changes nothing. Never writes.

Entries by kind, and what their body says:

========  ==============================================================================================
message   a message from outside (task, mail) or from code (a nudge)
model     intent: the model is about to be called
reply     outcome: the model's message with its usage; ``taken`` False where it counts for nothing (cut off)
call      intent: one tool is about to be called
result    outcome: that call's message, whether it went well
ask       a question was put for one open call; the agent is parked until it is answered
note      something worth keeping for people: what an endpoint refused, a wait, a guard
compact   earlier messages give way to one summary; they stay in the stream
end       an attempt ended: delivered (with its ``detail``), failed, handed back
========  ==============================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from protocol.ports import Saved
from protocol.record import Json
from workers.compat import arguments_of
from workers.messages import Message
from workers.stream import Usage


@dataclass(slots=True)
class OpenCall:
    """A tool call of the last answer that has no result yet."""

    id: str
    name: str
    args: Mapping[str, Json]
    error: str = ""
    task: str = ""
    started: bool = False
    """An intent is saved: it may have run."""
    question: str = ""
    doubt: bool = False
    """The question is whether the call may be repeated, not one that the model asked."""
    asked: str = ""
    to: str = "person"


@dataclass(frozen=True, slots=True)
class Run:
    """A finished tool call of the task at hand."""

    call: str
    tool: str
    key: str
    ok: bool


@dataclass(slots=True)
class History:
    """The fold. ``task`` is the task at hand: turns, runs, usage and delivery are its alone."""

    task: str
    last: int = 0
    messages: list[Message] = field(default_factory=list)
    open: list[OpenCall] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    questions: int = 0
    begun: bool = False
    """The task's own message is in."""
    attempt: int = 0
    """The last attempt of the task that saved anything."""
    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    """Of the task, all its attempts."""
    spent: dict[int, Usage] = field(default_factory=dict)
    """Of each attempt of the task."""
    model: str = ""
    fingerprint: str = ""
    """As the endpoint named itself in its last answer."""
    runs: list[Run] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    """What each call of the task was (tool and arguments), since the last failure: the window of the guard."""
    nudges: Counter[str] = field(default_factory=Counter)
    notes: list[Mapping[str, Json]] = field(default_factory=list)
    ended: Mapping[str, Json] | None = None
    """The last end of an attempt of this task, until it goes on."""
    redelivered: bool = False

    def fold(self, entries: Iterable[Saved]) -> History:
        """Take entries in, in order."""
        for entry in entries:
            self.last = entry.n
            mine = entry.task == self.task
            if mine:
                self.attempt = max(self.attempt, entry.attempt)
            fold = _FOLDS.get(entry.kind)
            if fold is not None:
                fold(self, entry.body, entry.task, mine)
        return self

    def find(self, call_id: str) -> OpenCall | None:
        """The open call of that id."""
        return next((call for call in self.open if call.id == call_id), None)

    def next_id(self, prefix: str) -> str:
        """The id of the next message of that kind: ``msg_system_003``."""
        return f"{prefix}_{self.counts[prefix] + 1:03d}"

    def last_message(self) -> Message:
        """The newest message, or an empty one."""
        return self.messages[-1] if self.messages else {}

    def _add(self, given: Json) -> None:
        if isinstance(given, dict):
            self.messages.append(given)
            prefix, _, number = str(given.get("message_id", "")).rpartition("_")
            if number.isdigit():
                self.counts[prefix] = max(self.counts[prefix], int(number))

    def _message(self, body: Mapping[str, Json], task: str, mine: bool) -> None:
        self._add(body.get("message"))
        if mine and body.get("about") == "task":
            self.begun = True
        if mine and isinstance(body.get("nudge"), str):
            self.nudges[body["nudge"]] += 1
            self.ended = None

    def _model(self, body: Mapping[str, Json], task: str, mine: bool) -> None:
        if mine:
            self.ended = None

    def _reply(self, body: Mapping[str, Json], task: str, mine: bool) -> None:
        if mine:
            self.turns += 1
            usage = _usage(body.get("usage"))
            self.usage += usage
            self.spent[self.attempt] = self.spent.get(self.attempt, Usage()) + usage
            self.model = str(body.get("model") or self.model)
            self.fingerprint = str(body.get("fingerprint") or self.fingerprint)
            self.ended = None
        if body.get("taken") is False:
            return
        for told in ("truncated", "empty"):
            self.nudges.pop(told, None)
        given = body.get("message")
        self._add(given)
        broken = body.get("broken")
        errors = broken if isinstance(broken, dict) else {}
        calls = given.get("tool_calls") if isinstance(given, dict) else None
        for call in calls or ():
            args, _ = arguments_of(call["function"]["arguments"])
            error = str(errors.get(call["id"], {}).get("error", ""))
            self.open.append(OpenCall(call["id"], call["function"]["name"], args, error, task))

    def _call(self, body: Mapping[str, Json], task: str, mine: bool) -> None:
        call = self.find(str(body.get("call")))
        if mine and (call is None or not call.started):  # a repeat after a takeover is the same call
            self.keys.append(str(body.get("key")))
        if call is not None:
            call.started = True
            call.question = ""

    def _result(self, body: Mapping[str, Json], task: str, mine: bool) -> None:
        call = self.find(str(body.get("call")))
        if call is None:
            return
        self.open.remove(call)
        self._add(body.get("message"))
        if mine and body.get("run", True):
            self.runs.append(Run(call.id, call.name, str(body.get("key", "")), body.get("ok") is True))

    def _ask(self, body: Mapping[str, Json], task: str, mine: bool) -> None:
        self.questions += 1
        call = self.find(str(body.get("call")))
        if call is not None:
            call.question, call.doubt = str(body.get("question")), body.get("doubt") is True
            call.asked, call.to = str(body.get("text", "")), str(body.get("to", "person"))

    def _note(self, body: Mapping[str, Json], task: str, mine: bool) -> None:
        if mine:
            self.notes.append(body)
            if body.get("kind") == "redelivered":
                self.redelivered = True
            if body.get("kind") == "guard":
                self.keys.append(str(body.get("key")))

    def _compact(self, body: Mapping[str, Json], task: str, mine: bool) -> None:
        """The messages before ``keep`` (a message id) give way to the pinned ones and the summary."""
        ids = [each.get("message_id") for each in self.messages]
        pinned = body.get("pinned")
        held = [
            each for each in self.messages if each.get("message_id") in (pinned if isinstance(pinned, list) else ())
        ]
        at = ids.index(body.get("keep")) if body.get("keep") in ids else len(ids)
        summary = body.get("message")
        head = [each for each in held if ids.index(each.get("message_id")) < at]
        tail = self.messages[at:]
        self.messages = [*head]
        self._add(summary)
        self.messages += tail
        if mine:
            self.notes.append({"kind": "compaction", "before": body.get("before"), "after": body.get("after")})

    def _end(self, body: Mapping[str, Json], task: str, mine: bool) -> None:
        if not mine:
            return
        self.ended = body
        if body.get("outcome") == "failed":  # the next try has all its turns, and its guards forget
            self.turns = 0
            self.keys.clear()
            self.nudges.clear()
        if body.get("outcome") == "delivered":
            self.redelivered = False


_FOLDS = {
    "message": History._message, "model": History._model, "reply": History._reply, "call": History._call,
    "result": History._result, "ask": History._ask, "note": History._note, "compact": History._compact,
    "end": History._end,
}  # fmt: skip


def _usage(value: Json) -> Usage:
    if not isinstance(value, Mapping):
        return Usage()
    names = ("prompt", "completion", "total", "reasoning", "cached", "calls", "unknown", "micros")
    return Usage(**{name: value[name] for name in names if isinstance(value.get(name), int)})
