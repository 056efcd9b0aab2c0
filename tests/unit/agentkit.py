"""What the tests of the agent share: a conversation in memory, a model that says what it is told, counted tools.

Guarantees: `MemoryConversation` keeps the rules of the real one (numbers without a hole, the fence, one step for all);
`Killed` stands for SIGKILL: whoever raises it saves nothing more.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from protocol.errors import FenceLost
from protocol.kit.modellist import ModelEntry
from protocol.kit.rolefiles import RoleFile
from protocol.ports import Dispatch, Loaded, Mail, Outcome, Saved
from protocol.record import Json
from workers.agent import Surroundings, run_agent
from workers.compat import Calls
from workers.stream import OnDelta, Reply, Usage
from workers.tools import Tool, ToolResult


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Store:
    """One agent's conversation as the server has it; ``owner`` and ``attempt`` are the task's state."""

    entries: list[Saved] = field(default_factory=list)
    meta: dict[str, Json] = field(default_factory=dict)
    mailbox: list[Mail] = field(default_factory=list)
    owner: str = "w@h:1:a"
    attempt: int = 1
    writes: int = 0
    cancelled: bool = False

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.entries]


@dataclass
class MemoryConversation:
    """Port ``Conversation``, in memory. ``kill_at``: the write with this number (from 1) never happens."""

    store: Store
    dispatch: Dispatch
    kill_at: int = 0

    async def load(self) -> Loaded:
        return Loaded(tuple(self.store.entries), dict(self.store.meta), len(self.store.mailbox))

    async def write(
        self,
        first: int,
        entries: Sequence[tuple[str, Mapping[str, Json]]],
        *,
        meta: Mapping[str, Json] | None = None,
        taken: Sequence[str] = (),
    ) -> int:
        made = self.dispatch
        if self.store.cancelled or (self.store.attempt, self.store.owner) != (made.attempt, made.owner):
            raise FenceLost("cancelled" if self.store.cancelled else "superseded_attempt")
        self.store.writes += 1
        if self.store.writes == self.kill_at:
            raise Killed
        assert first == len(self.store.entries) + 1, "entries have no holes"
        for at, (kind, body) in enumerate(entries):
            saved = Saved(first + at, kind, made.task, made.attempt, 0, copy.deepcopy(dict(body)))
            self.store.entries.append(saved)
        self.store.meta |= meta or {}
        self.store.mailbox = [mail for mail in self.store.mailbox if mail.entry not in taken]
        return len(self.store.mailbox)

    async def close(
        self, first: int, entries: Sequence[tuple[str, Mapping[str, Json]]], *, meta: Mapping[str, Json] | None = None
    ) -> bool:
        made, store = self.dispatch, self.store
        if not store.cancelled or store.attempt != made.attempt or first != len(store.entries) + 1:
            return False
        store.entries += [
            Saved(first + at, kind, made.task, made.attempt, 0, copy.deepcopy(dict(body)))
            for at, (kind, body) in enumerate(entries)
        ]
        store.meta |= meta or {}
        return True

    async def mail(self, limit: int = 100) -> tuple[Mail, ...]:
        return tuple(self.store.mailbox[:limit])


Say = Reply | Exception | BaseException | Callable[[Sequence[Mapping[str, Json]]], Reply]


class ScriptedModel:
    """Port ``Model``: says the next of ``script`` at each call, and remembers what it was asked."""

    def __init__(self, script: Sequence[Say], spec: ModelEntry | None = None) -> None:
        self.script = list(script)
        self.spec = spec or ModelEntry("main", "words-1", "http://127.0.0.1:9/v1")
        self.asked: list[list[dict[str, Json]]] = []
        self.schemas: list[Mapping[str, Json] | None] = []
        self.thinking: list[bool] = []
        self.most: list[int | None] = []

    async def complete(
        self,
        messages: Sequence[Mapping[str, Json]],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Json] | None = None,
        thinking: bool = False,
        most: int | None = None,
        on_delta: OnDelta | None = None,
    ) -> Reply:
        strict(messages)
        self.most.append(most)
        self.asked.append(copy.deepcopy([dict(each) for each in messages]))
        self.schemas.append(schema)
        self.thinking.append(thinking)
        said = self.script.pop(0)
        if isinstance(said, BaseException):
            raise said
        return said if isinstance(said, Reply) else said(messages)


def strict(messages: Sequence[Mapping[str, Json]]) -> None:
    """What strict endpoints insist on: each call of an assistant's message has exactly one result, right after it."""
    open_ids: list[str] = []
    for each in messages:
        assert set(each) <= {"role", "content", "tool_calls", "tool_call_id"}, "no keys of our own are sent"
        if each["role"] == "tool":
            assert each["tool_call_id"] in open_ids, f"a result for no open call: {each!r}"
            open_ids.remove(each["tool_call_id"])
            continue
        assert not open_ids, f"calls without results before {each!r}"
        open_ids = [call["id"] for call in each.get("tool_calls") or ()]
        assert len(set(open_ids)) == len(open_ids)
    assert not open_ids


@dataclass
class CountedTools:
    """Port ``Tools``: ``look`` is safe to repeat, ``pay`` is not; every run is counted."""

    runs: Counter[str] = field(default_factory=Counter)
    on_call: Callable[[str, Mapping[str, Json]], ToolResult | BaseException | None] | None = None

    def list(self) -> Sequence[Tool]:
        schema = {"type": "object", "properties": {"what": {"type": "string"}}}
        return (Tool("look", "looks", schema, idempotent=True), Tool("pay", "pays", schema))

    async def call(self, name: str, args: Mapping[str, Json]) -> ToolResult:
        self.runs[f"{name}:{args.get('what', '')}"] += 1
        given = self.on_call(name, args) if self.on_call else None
        if isinstance(given, BaseException):
            raise given
        return given or ToolResult(True, {"seen": args.get("what", "")})


class OpenFence:
    """Port ``TurnFence``: passes, or says that the attempt is lost."""

    lost = ""

    async def check(self) -> None:
        if self.lost:
            raise FenceLost(self.lost)


def says(text: str, **more: Json) -> Reply:
    """A final answer."""
    return replace(Reply(text, usage=Usage(10, 5, 15, calls=1), model="words-1-real"), **more)


def calls(*wanted: tuple[str, str, Json], text: str = "", **more: Json) -> Reply:
    """An answer with tool calls ``(id, name, arguments)``."""
    made = Calls()
    for call_id, name, arguments in wanted:
        made.add({"id": call_id, "function": {"name": name, "arguments": arguments}}, whole=True)
    reply = Reply(
        text, tool_calls=made.done(), finish="tool_calls", usage=Usage(20, 5, 25, calls=1), model="words-1-real"
    )
    return replace(reply, **more)


def role(**more: Json) -> RoleFile:
    """A role of the tests; its words are Chinese on purpose."""
    given: dict[str, Json] = {
        "id": "reviewer",
        "name": "审阅者",
        "description": "审阅",
        "body": "你审阅代码。",
        "max_turns": 10,
    } | more
    return RoleFile(**given)


def dispatch(attempt: int = 1, task: str = "T1", **detail: Json) -> Dispatch:
    """Attempt ``attempt`` of a task, owned by the worker of that attempt."""
    given = {"role": "reviewer", "attempt": attempt, "prompt": "请审阅这段代码"} | detail
    return Dispatch("s1", task, attempt, "reviewer", "reviewer_1", "s1", f"w@h:{attempt}:a", attempt - 1, given)


async def run(
    store: Store,
    model: ScriptedModel,
    tools: CountedTools | None = None,
    *,
    attempt: int = 1,
    task: str = "T1",
    role_file: RoleFile | None = None,
    around: Surroundings | None = None,
    kill_at: int = 0,
    fence: OpenFence | None = None,
    **detail: Json,
) -> Outcome:
    """Run one attempt; the store's fence is set to it first, as a claim does."""
    given = dispatch(attempt, task, **detail)
    store.attempt, store.owner = attempt, given.owner
    return await run_agent(
        given,
        fence or OpenFence(),
        role=role_file or role(),
        conversation=MemoryConversation(store, given, kill_at),
        model=model,
        tools=tools or CountedTools(),
        around=around or Surroundings(random=lambda: 0.0, clock=lambda: 1_700_000_000.0),
    )
