"""What is wrong with a log: one pass over its entries as they are, against the space's state.

Guarantees: pure, and the same for every store; each anomaly names the records; a clean log gives none. Nothing is
mended here and nothing is trusted: entries that no append wrote are judged again.

Kinds: ``format_fault`` (no record, or refused by a gate), ``silent_agent``, ``time_backwards`` (a writer's clock),
``stuck_task``, ``workspace_violation``, ``transition_violation``, ``delegation_violation``, ``duplicate_identity``,
``missing_twin`` (an entry that the state does not know, or the other way round).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from protocol.cursor import entry_key
from protocol.errors import GateRefused
from protocol.gates import check_schema, validate
from protocol.projection import Raw, is_task_record, twin
from protocol.record import DETAIL_MAX_BYTES, Json, Record, word
from protocol.tasks import (
    FINISHED,
    TaskState,
    apply,
    apply_decision,
    command_identity,
    is_start,
    judge,
    judge_decision,
    merge_root,
)
from protocol.workspaces import mark_of, refused_mark

LOST_S: Final = 300.0
STUCK_S: Final = 900.0
BACKWARDS_S: Final = 1
"""Writers round to whole seconds: so much is no step back."""
OF_REASON: Final[Mapping[str, str]] = {
    "foreign_workspace": "workspace_violation", "illegal_transition": "transition_violation",
    "superseded_attempt": "transition_violation", "not_the_owner": "transition_violation",
    "upward_delegation": "delegation_violation", "duplicate_id": "duplicate_identity",
    "gate_1": "format_fault", "gate_2": "format_fault", "gate_3": "format_fault", "gate_4": "format_fault",
    "too_large": "format_fault",
}  # fmt: skip
HELD: Final = frozenset({"started", "assigned", "processing"})
BUSY: Final = frozenset({"assigned", "processing", "retrying", "waiting"})


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One anomaly: its kind, what it is in words, the ids of the records and their entries."""

    kind: str
    message: str
    records: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {"kind": self.kind, "message": self.message, "records": list(self.records),
                "entries": list(self.entries)}  # fmt: skip


@dataclass
class _Agent:
    """An agent as its records show it. ``watched``: it registered and is no fleet worker's."""

    last_ms: int = 0
    last_id: str = ""
    last_entry: str = ""
    time: int = 0
    watched: bool = False
    fleet: bool = False


@dataclass
class _Seen:
    """The log up to an entry."""

    found: list[Anomaly] = field(default_factory=list)
    tasks: dict[str, TaskState] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    entries: set[str] = field(default_factory=set)
    agents: dict[str, _Agent] = field(default_factory=dict)
    signs: dict[str, int] = field(default_factory=dict)
    """Task -> ms of the last heartbeat that named it."""
    roots: set[str] = field(default_factory=set)
    merged_ms: int = 0

    def add(self, kind: str, message: str, record: Record | None, entry: str, *more: tuple[str, str]) -> None:
        first = ((record.id, entry),) if record is not None else (("", entry),)
        pairs = (*more, *first)
        self.found.append(Anomaly(kind, message, tuple(i for i, _ in pairs if i), tuple(e for _, e in pairs if e)))


def find_anomalies(
    rows: Iterable[Raw],
    states: Mapping[str, TaskState],
    ids: Mapping[str, str],
    *,
    now_ms: int,
    lost_s: float = LOST_S,
    stuck_s: float = STUCK_S,
    detail_max_bytes: int = DETAIL_MAX_BYTES,
) -> list[Anomaly]:
    """Every anomaly of a log, oldest first.

    ``rows``: all of its entries, oldest first; ``states`` and ``ids``: the space's projections, read after them;
    ``now_ms``: the store's clock.
    """
    seen = _Seen()
    for entry, fields in rows:
        seen.entries.add(entry)
        record = _formed(seen, entry, fields, detail_max_bytes)
        if record is not None:
            _agent(seen, entry, record)
            if _lawful(seen, entry, record):
                known = twin(record, states, ids)
                if known != entry:
                    where = f"the state has its identity at {known}" if known else "the state does not know it"
                    seen.add("missing_twin", f"{record.event} of {record.id!r}: {where}", record, entry)
    _without_entry(seen, states, ids)
    _silent(seen, states, now_ms, lost_s)
    _stuck(seen, states, now_ms, stuck_s)
    return seen.found


def _formed(seen: _Seen, entry: str, fields: Mapping[str, Json], most: int) -> Record | None:
    """The record of an entry, judged by gates 3 and 4; what is wrong with it is noted."""
    try:
        record = validate(dict(fields))
    except GateRefused as refused:
        id = fields.get("id")
        more = ((id, ""),) if isinstance(id, str) else ()
        seen.add("format_fault", f"the entry {entry} is no record: {_words(refused)}", None, entry, *more)
        return None
    try:
        check_schema(record, detail_max_bytes=most)
    except GateRefused as refused:
        # What leaders and managers append needs no gate: their `by` is an object, and a violation may hold a record.
        problems = [p for p in refused.problems if not (p[0] == "detail.by" and command_identity(record))]
        if problems and not (record.event == "protocol_violation" and refused.kind == "too_large"):
            seen.add("format_fault", f"{record.id!r}: {problems[0][0]}: {problems[0][1]}", record, entry)
    if record.event == "protocol_violation":
        reason = word(record.detail.get("reason"))
        kind = OF_REASON.get(reason, "format_fault")
        seen.add(kind, f"{reason}: {str(record.detail.get('message') or record.what)[:300]}", record, entry)
    return record


def _words(refused: GateRefused) -> str:
    return "; ".join(f"{path}: {words}" for path, words in refused.problems[:3])[:300]


def _agent(seen: _Seen, entry: str, record: Record) -> None:
    """The writer's clock, and whether it is to be heard from again."""
    ms = entry_key(entry)[0]
    agent = seen.agents.setdefault(record.who, _Agent())
    if agent.last_entry and record.time < agent.time - BACKWARDS_S:
        back = agent.time - record.time
        seen.add(
            "time_backwards", f"the clock of {record.who!r} went back {back} s at {record.id!r}", record, entry,
            (agent.last_id, agent.last_entry),
        )  # fmt: skip
    agent.time, agent.last_ms, agent.last_id, agent.last_entry = record.time, ms, record.id, entry
    detail, event = record.detail, record.event
    command = command_identity(record)
    if event == "task_processing" and is_start(word(detail.get("worker"))):
        agent.fleet = True
    elif event in ("heartbeat", "checkpoint", "task_processing") or (event == "task_started" and not command):
        agent.watched = True
    if event == "heartbeat" and (task := word(detail.get("current_task"))):
        seen.signs[task] = ms
    if event == "task_started" and ("flow" in detail or record.id == record.session):
        seen.roots.add(record.id)
    if event == "task_agent_lost" and (lost := seen.agents.get(word(detail.get("agent")))):
        lost.watched = False
    if event == "task_merged":
        seen.merged_ms = ms


def _lawful(seen: _Seen, entry: str, record: Record) -> bool:
    """Judge a record that stands in the log as if it were to be appended; take it up where it passes."""
    why = refused_mark(mark_of(record), record.who)
    if why:
        seen.add("workspace_violation", why, record, entry)
    if is_task_record(record):
        before = seen.tasks.get(record.id)
        ruling = judge(before, record, before.owner if before else "")
        if ruling.outcome == "new":
            seen.tasks[record.id] = apply(before, record, entry)
            return True
        if ruling.outcome == "already" or ruling.reason == "duplicate_id":
            first = ruling.entry or (before.entry_of(record.event, record.attempt) if before else "") or ""
            words = f"{record.event} of {record.id!r} attempt {record.attempt} stands twice"
            seen.add("duplicate_identity", words, record, entry, (record.id, first))
        else:
            seen.add("transition_violation", f"{ruling.reason}: {ruling.message}", record, entry)
        return False
    if record.id in seen.ids:
        seen.add(
            "duplicate_identity", f"the id {record.id!r} stands twice", record, entry, (record.id, seen.ids[record.id])
        )
        return False
    seen.ids[record.id] = entry
    _settle(seen, entry, record)
    return True


def _settle(seen: _Seen, entry: str, record: Record) -> None:
    """What a decision or a merge does to a task."""
    detail = record.detail
    if record.event == "decision" and (task := word(detail.get("task"))):
        action, before = word(detail.get("action")), seen.tasks.get(task)
        ruling = judge_decision(before, action, task, word(detail.get("question")))
        if ruling.outcome == "refused":
            seen.add("transition_violation", f"{ruling.reason}: {ruling.message}", record, entry)
        elif before is not None:
            seen.tasks[task] = apply_decision(before, action, word(detail.get("role")))
    elif record.event == "task_merged" and (root := seen.tasks.get(record.trace.parent_id or "")):
        seen.tasks[record.trace.parent_id or ""] = merge_root(root)


def _without_entry(seen: _Seen, states: Mapping[str, TaskState], ids: Mapping[str, str]) -> None:
    """What the state has and the log has not. What came after the log was read is left alone."""
    last = max(map(entry_key, seen.entries), default=(0, 0))
    for task, state in states.items():
        for mark, (_, entry) in state.seen.items():
            if entry not in seen.entries and entry_key(entry) <= last:
                seen.found.append(
                    Anomaly(
                        "missing_twin",
                        f"the state has {mark!r} of {task!r} at {entry}: no entry there",
                        (task,),
                        (entry,),
                    )
                )
    for id, packed in ids.items():
        entry = packed.rpartition(",")[2]
        if entry not in seen.entries and entry_key(entry) <= last:
            seen.found.append(
                Anomaly("missing_twin", f"the state has {id!r} at {entry}: there is no such entry", (id,), (entry,))
            )


def _silent(seen: _Seen, states: Mapping[str, TaskState], now_ms: int, lost_s: float) -> None:
    """Agents that are not fleet workers, while work is open: silence counts by arrival, exactly the limit is not yet
    too long, and who waits for an answer is not judged."""
    if all(s.state in FINISHED for task, s in states.items() if task not in seen.roots):
        return
    waiting = {s.agent for s in states.values() if s.state == "waiting"}
    for name, agent in seen.agents.items():
        if not agent.watched or agent.fleet or now_ms - agent.last_ms <= lost_s * 1000:
            continue
        held = [t for t, s in states.items() if s.state in HELD and (s.owner == f"~{name}" or s.agent == name)]
        if not held and (name in waiting or seen.merged_ms > agent.last_ms):
            continue
        holds = f", it holds {', '.join(held[:5])}" if held else ""
        words = f"no sign of {name!r} for {(now_ms - agent.last_ms) / 1000:.0f} s{holds}"
        seen.found.append(
            Anomaly(
                "silent_agent", words, (agent.last_id, *(t for t in held if t != agent.last_id)), (agent.last_entry,)
            )
        )


def _stuck(seen: _Seen, states: Mapping[str, TaskState], now_ms: int, stuck_s: float) -> None:
    """Tasks that stand in a state for too long: nothing new about them, no heartbeat that names them. What waits for an
    answer is not judged, and what is pending only where nothing is under way."""
    busy = any(s.state in BUSY for s in states.values())
    for task, state in states.items():
        if state.state in FINISHED or state.state == "waiting" or task in seen.roots:
            continue
        if state.state == "pending" and busy:
            continue
        entries = [entry for _, entry in state.seen.values()]
        last = max(entries, key=entry_key, default="0-0")
        since = max(entry_key(last)[0], seen.signs.get(task, 0), state.due_ms)
        if now_ms - since > stuck_s * 1000:
            words = f"{task!r} is {state.state!r} (attempt {state.attempt}) for {(now_ms - since) / 1000:.0f} s"
            seen.found.append(Anomaly("stuck_task", words, (task,), (last,)))
