"""Task states, the one table of legal transitions, attempts and tries; folding records into states.

Guarantees: ``judge`` and ``apply`` are the whole law of a task's life; the server's script is generated from the same
tables and holds to the same law (a stateful test compares them). Never does I/O and never reads a clock.

::

    (first record: any)
    pending ──► assigned ──► processing ──► completed ──► (merged)
                   ▲             │ ├──► failed ──► retrying(n+1) ──► assigned(n+1)
                   │             │ ├──► waiting ──► assigned(n+1)
                   │             │ ├──► blocked ─┐
                   └─ lost ◄─────┘ └──► lost ────┴─ a decision (retry, reassign, accept, cancel)

"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from protocol.record import Json, Reason, Record, sameness, word

State = Literal[
    "started",
    "pending",
    "waiting",
    "assigned",
    "processing",
    "completed",
    "failed",
    "retrying",
    "blocked",
    "lost",
    "merged",
    "cancelled",
]

STATE_OF: Final[Mapping[str, State]] = {
    "task_started": "started",
    "task_pending": "pending",
    "task_assigned": "assigned",
    "task_processing": "processing",
    "task_completed": "completed",
    "task_failed": "failed",
    "task_retrying": "retrying",
    "task_blocked": "blocked",
    "task_agent_lost": "lost",
    "task_merged": "merged",
}
"""The state after an event; ``task_pending`` with ``waiting_for`` is ``waiting``."""

SAME_ATTEMPT: Final[Mapping[str, tuple[str, ...]]] = {
    "started": (
        "pending",
        "assigned",
        "processing",
        "waiting",
        "completed",
        "failed",
        "retrying",
        "blocked",
        "lost",
        "merged",
    ),
    "pending": ("started", "assigned", "blocked", "lost"),
    "assigned": ("processing", "blocked", "lost"),
    "processing": ("completed", "failed", "blocked", "lost", "waiting"),
    "failed": ("retrying", "blocked"),
    "retrying": ("assigned", "blocked"),
    "waiting": ("blocked",),
    "lost": ("blocked",),
    "blocked": (),
    "completed": ("merged",),
    "merged": (),
    "cancelled": (),
}
"""From a state, what may follow within one attempt (``lost -> blocked``: the last try was used up)."""

HIGHER_ATTEMPT: Final[Mapping[str, tuple[str, ...]]] = {
    state: ()
    if state in ("completed", "merged", "cancelled", "blocked")
    else ("assigned",)
    if state == "lost"
    else ("started", "pending", "assigned", "processing", "waiting", "completed", "failed", "retrying")
    for state in SAME_ATTEMPT
}
"""From a state, what may open a higher attempt. A task that a fleet worker owns is raised by an assignment or a
retry alone."""

RAISES_OWNED: Final = ("assigned", "retrying")

DELIVERIES: Final = ("completed", "failed", "waiting")
"""What an attempt's owner alone may write."""

DECISIONS: Final[Mapping[str, tuple[tuple[str, ...], State]]] = {
    "retry": (("blocked", "lost", "failed", "retrying"), "pending"),
    "reassign": (("blocked", "lost", "failed", "retrying", "pending", "assigned"), "pending"),
    "accept": (
        ("started", "pending", "waiting", "assigned", "processing", "failed", "retrying", "blocked", "lost"),
        "completed",
    ),
    "cancel": (
        ("started", "pending", "waiting", "assigned", "processing", "failed", "retrying", "blocked", "lost"),
        "cancelled",
    ),
}
"""What a decision with ``detail.task`` does to that task: from which states, to which. ``answer`` is judged by
the question that the task waits for and has no state of its own. Every other action leaves the task alone."""

EVENT_CODE: Final[Mapping[str, str]] = {
    "task_started": "S",
    "task_pending": "P",
    "task_assigned": "A",
    "task_processing": "W",
    "task_completed": "C",
    "task_failed": "F",
    "task_retrying": "R",
    "task_blocked": "B",
    "task_agent_lost": "L",
    "task_merged": "M",
}

_START: Final = re.compile(r"[A-Za-z0-9_\-]+@[^@:]+:[0-9]+:[^@:]+\Z")
DELAY_MAX_MS: Final = 10**12
"""A retry is due within some thirty years: sums of milliseconds stay exact in every language that keeps them."""
FINISHED: Final = frozenset({"completed", "merged", "cancelled"})
SETTLED_BY_PERSON: Final = frozenset({"blocked", "lost", "waiting"})


@dataclass(frozen=True, slots=True)
class TaskState:
    """One task as its records left it. ``due_ms`` is server time; ``seen`` maps code+attempt to (digest, entry)."""

    state: str
    attempt: int
    owner: str = ""
    role: str = ""
    agent: str = ""
    tries: int = 0
    due_ms: int = 0
    waiting_for: str = ""
    seen: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def fleet_owned(self) -> bool:
        """True while a fleet worker's start owns the attempt: only its writes pass."""
        return is_start(self.owner)

    @property
    def last_assignment(self) -> str | None:
        """The log entry of its newest dispatch, or None where it never was assigned."""
        newest = max((int(key[1:]) for key in self.seen if key[0] == "A"), default=None)
        return None if newest is None else self.seen[f"A{newest}"][1]

    def entry_of(self, event: str, attempt: int) -> str | None:
        """The log entry of this task's record (event, attempt), or None."""
        found = self.seen.get(f"{EVENT_CODE[event]}{attempt}")
        return found[1] if found else None


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the law says of a record: ``new``, ``already`` (with its entry) or ``refused`` (with reason and words)."""

    outcome: Literal["new", "already", "refused"]
    reason: Reason | None = None
    message: str = ""
    entry: str = ""


NEW: Final = Ruling("new")


def is_start(owner: str) -> bool:
    """True for a worker's start id ``<role>@<host>:<pid>:<random>``; outside agents own as ``~<who>``. Nothing else is
    one: who writes ``li@laptop`` by hand is no process that could be found dead."""
    return _START.match(owner) is not None


def target_state(record: Record) -> str:
    """The task state after ``record`` (a task event)."""
    if record.event == "task_pending" and record.detail.get("waiting_for"):
        return "waiting"
    return STATE_OF[record.event]


def mark(record: Record) -> str:
    """The identity of a task record within its task: event and attempt (parked is another thing than pending)."""
    return f"{'Q' if target_state(record) == 'waiting' else EVENT_CODE[record.event]}{record.attempt}"


def is_about_agent(record: Record) -> bool:
    """A loss of an agent that held no task stands under the agent's own id (``<agent>#2`` the second time); that of a
    task names its attempt, so that a task may be called as its agent is."""
    if record.event != "task_agent_lost" or "attempt" in record.detail:
        return False
    agent = record.detail.get("agent")
    if not isinstance(agent, str) or not agent:
        return False
    own = agent_id(agent)
    return record.id == own or record.id.startswith(f"{own}#")


def agent_id(agent: str) -> str:
    """An agent's name as a record's id: ids have no ``@``."""
    return agent.replace("@", "/")


def command_identity(record: Record) -> bool:
    """True for commands of a leader or manager (``detail.by`` is an object): their identity alone decides."""
    return isinstance(record.detail.get("by"), dict)


def judge(state: TaskState | None, record: Record, owner: str = "") -> Ruling:
    """Judge a task record against its task's state. ``owner`` is the writer's start id, empty for outside agents."""
    attempt, target = record.attempt, target_state(record)
    if state is None:
        return NEW
    seen = state.seen.get(mark(record))
    if seen is not None:
        if command_identity(record) or seen[0] == sameness(record):
            return Ruling("already", entry=seen[1])
        if attempt >= state.attempt:
            return Ruling(
                "refused", "duplicate_id", f"a different {record.event} of {record.id!r} attempt {attempt} exists"
            )
    if attempt < state.attempt:
        return Ruling(
            "refused",
            "superseded_attempt",
            f"{record.event} of attempt {attempt}: {record.id!r} is {state.state!r} at attempt {state.attempt}",
        )
    allowed = SAME_ATTEMPT if attempt == state.attempt else HIGHER_ATTEMPT
    if target not in allowed[state.state]:
        return Ruling("refused", "illegal_transition", f"{record.id!r} can't go from {state.state!r} to {target!r}")
    if attempt > state.attempt and state.fleet_owned and target not in RAISES_OWNED:
        return Ruling("refused", "not_the_owner", f"{record.id!r} attempt {state.attempt} is owned by {state.owner!r}")
    if _owned_write(state, record, target) and not _may_write(state, record, owner):
        return Ruling("refused", "not_the_owner", f"{record.id!r} attempt {state.attempt} is owned by {state.owner!r}")
    return NEW


def _owned_write(state: TaskState, record: Record, target: str) -> bool:
    """Writes of the attempt itself; assignment, loss and a manager's block or retry are not the owner's. A delivery is
    its owner's, whoever looks like a command."""
    if state.state not in ("processing", "failed") or not state.owner:
        return False
    return target in DELIVERIES or (target in ("retrying", "blocked") and not command_identity(record))


def _may_write(state: TaskState, record: Record, owner: str) -> bool:
    return owner == state.owner if state.fleet_owned else f"~{record.who}" == state.owner


def judge_decision(state: TaskState | None, action: str, task: str, question: str = "") -> Ruling:
    """Judge a decision about a task (``detail.action``, ``detail.task``)."""
    if action == "answer" and question:
        if state is None or state.state != "waiting" or state.waiting_for != question:
            now = state.state if state else "unknown"
            return Ruling("refused", "illegal_transition", f"question {question!r} is not open: {task!r} is {now!r}")
        return NEW
    if action not in DECISIONS:
        return NEW
    sources, target = DECISIONS[action]
    if state is None or state.state not in sources:
        now = state.state if state else "unknown"
        return Ruling("refused", "illegal_transition", f"{action!r}: {task!r} can't go from {now!r} to {target!r}")
    return NEW


def apply(state: TaskState | None, record: Record, entry: str) -> TaskState:
    """The state after an accepted task record that stands at ``entry`` (a stream id, server milliseconds first)."""
    before = state or TaskState(state="", attempt=record.attempt)
    target, detail = target_state(record), record.detail
    seen = dict(before.seen)
    seen[mark(record)] = (sameness(record), entry)
    held = before.state == "processing"
    tries = before.tries + (1 if target == "failed" or (target == "lost" and held) else 0)
    owner = ""
    if target == "processing":
        worker = word(detail.get("worker"))
        owner = worker if is_start(worker) else f"~{record.who}"
    elif target == "failed":
        owner = before.owner
    due = int(entry.split("-")[0]) + delay_ms(detail.get("delay_s")) if target == "retrying" else 0
    return TaskState(
        state=target,
        attempt=max(record.attempt, before.attempt),
        owner=owner,
        role=word(detail.get("role")) or before.role,
        agent=word(detail.get("agent") if record.event != "task_agent_lost" else None) or before.agent,
        tries=tries,
        due_ms=due,
        waiting_for=word(detail.get("waiting_for")) if target == "waiting" else "",
        seen=seen,
    )


def apply_decision(state: TaskState, action: str, role: str = "") -> TaskState:
    """The state after an accepted decision about the task."""
    if action not in DECISIONS:
        return state
    target = DECISIONS[action][1]
    tries = 0 if target == "pending" else state.tries
    return replace(state, state=target, owner="", due_ms=0, waiting_for="", tries=tries, role=role or state.role)


def merge_root(state: TaskState) -> TaskState:
    """A session's root after a merge: merged, if the law lets it be (what was cancelled stays so)."""
    if "merged" not in SAME_ATTEMPT[state.state]:
        return state
    return replace(state, state="merged", owner="", due_ms=0, waiting_for="")


def delay_ms(value: Json) -> int:
    """``detail.delay_s`` in milliseconds: 0 for what is no number, never negative, never beyond ``DELAY_MAX_MS``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:  # NaN is not either
        return 0
    return DELAY_MAX_MS if value * 1000 >= DELAY_MAX_MS else round(value * 1000)


def fold(states: dict[str, TaskState], records: Iterable[tuple[str, Record]]) -> dict[str, TaskState]:
    """Fold accepted records (entry, record) into task states, in place: the projection, rebuilt."""
    for entry, record in records:
        if record.event == "decision":
            task, action = record.detail.get("task"), record.detail.get("action")
            if isinstance(task, str) and isinstance(action, str) and task in states:
                states[task] = apply_decision(states[task], action, word(record.detail.get("role")))
        elif record.event == "task_merged" and record.id.startswith("MERGE_"):
            root = record.trace.parent_id
            if root and root in states:
                states[root] = merge_root(states[root])
        elif record.is_task and not is_about_agent(record):
            states[record.id] = apply(states.get(record.id), record, entry)
    return states


def pack(state: TaskState) -> str:
    """The state as the store keeps it: fields joined by ``|`` (no field's alphabet has it)."""
    seen = ";".join(f"{key}={digest},{entry}" for key, (digest, entry) in state.seen.items())
    return "|".join(
        (
            state.state,
            str(state.attempt),
            state.owner,
            state.role,
            state.agent,
            str(state.tries),
            str(state.due_ms),
            state.waiting_for,
            seen,
        )
    )


def unpack(text: str | bytes) -> TaskState:
    """The inverse of ``pack``."""
    raw = text.decode() if isinstance(text, bytes) else text
    state, attempt, owner, role, agent, tries, due, waiting, seen = raw.split("|")
    marks: dict[str, tuple[str, str]] = {}
    for part in filter(None, seen.split(";")):
        key, _, value = part.partition("=")
        digest, _, entry = value.partition(",")
        marks[key] = (digest, entry)
    return TaskState(state, int(attempt), owner, role, agent, int(tries), int(due), waiting, marks)


def lua_tables() -> str:
    """The tables of this file as Lua source: the script that appends is put together with it."""

    def group(name: str, table: Mapping[str, Iterable[str]]) -> str:
        rows = ",".join(f'["{k}"]={{{",".join(f"[{chr(34)}{v}{chr(34)}]=1" for v in vs)}}}' for k, vs in table.items())
        return f"local {name}={{{rows}}}\n"

    def plain(name: str, table: Mapping[str, str]) -> str:
        return f"local {name}={{{','.join(f'{k}={chr(34)}{v}{chr(34)}' for k, v in table.items())}}}\n"

    return (
        group("SAME", SAME_ATTEMPT)
        + group("HIGHER", HIGHER_ATTEMPT)
        + group("DECISION_FROM", {k: v[0] for k, v in DECISIONS.items()})
        + plain("DECISION_TO", {k: v[1] for k, v in DECISIONS.items()})
        + plain("STATE_OF", STATE_OF)
        + plain("CODE", EVENT_CODE)
    )
