"""One space's log and projections in memory: what ``append.lua`` does on the server, for the state file.

Guarantees: the same law, outcomes and violations as the server's script (``protocol.tasks`` judges both); every
position is unique and never goes backwards, also when the machine's clock does. Pure: it is read from a file and
written to one elsewhere, and is thrown away where the write fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from protocol.cursor import entry_key
from protocol.errors import Refused
from protocol.ports import Appended, Step
from protocol.record import Json, Record, Trace, sameness, word
from protocol.tasks import (
    DECISIONS,
    TaskState,
    apply,
    apply_decision,
    command_identity,
    is_about_agent,
    is_start,
    judge,
    judge_decision,
    merge_root,
    target_state,
)
from protocol.workspaces import REASON, mark_of, refused_mark

RECORDS_MAX: Final = 50_000
ALWAYS: Final = frozenset({
    "task_processing", "task_completed", "task_failed", "task_retrying", "task_blocked", "task_agent_lost",
    "task_merged", "decision", "protocol_violation", "error",
})  # fmt: skip
"""What a full space still takes: what settles the work that is there."""
Row = dict[str, Any]
"""``{"entry": position, "record": the seven fields}``: as the file has it and ``read-records --follow`` prints it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What became of one record. ``kept``: a refusal leaves a violation (a full space and a stale read do not)."""

    outcome: Literal["new", "already", "refused"]
    reason: str = ""
    message: str = ""
    entry: str = ""
    kept: bool = True


@dataclass
class Ledger:
    """A space. ``last`` is the newest position; ``tasks`` and ``ids`` are projections as the file has them (``ids``:
    id of every record that is no task's -> ``digest,entry``)."""

    space: str
    meta: dict[str, str]
    last: str = "0-0"
    tasks: dict[str, dict[str, Json]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def admit(
        self, records: Sequence[Record], *, owner: str = "", now_ms: int, most: int = RECORDS_MAX
    ) -> list[Appended]:
        """Append records, one outcome each; a refusal leaves a violation."""
        matter = self.meta.get("matter", "0-0")
        out: list[Appended] = []
        for record in records:
            rule = self._rule(record, owner, matter, most)
            if rule.outcome == "new":
                out.append(Appended("added", self._take(record, now_ms)))
            elif rule.outcome == "already":
                out.append(Appended("already", rule.entry))
            else:
                entry = self._violation(record, rule, now_ms) if rule.kept else ""
                out.append(Appended("refused", entry, rule.reason, rule.message))
        return out

    def admit_all(self, records: Sequence[Record], *, now_ms: int, most: int = RECORDS_MAX) -> Step:
        """Append all or none. After a refusal this ledger has been changed in part: throw it away."""
        matter = self.meta.get("matter", "0-0")
        outcomes: list[Appended] = []
        for at, record in enumerate(records):
            rule = self._rule(record, "", matter, most)
            if rule.outcome == "refused":
                return Step(ok=False, refused_at=at, reason=rule.reason, message=rule.message)
            new = rule.outcome == "new"
            outcomes.append(Appended("added", self._take(record, now_ms)) if new else Appended("already", rule.entry))
        return Step(ok=True, outcomes=tuple(outcomes))

    def state(self, task: str) -> TaskState | None:
        """One task's state."""
        found = self.tasks.get(task)
        return None if found is None else state_from(found)

    def states(self) -> dict[str, TaskState]:
        """Every task's state."""
        return {task: state_from(found) for task, found in self.tasks.items()}

    def _rule(self, record: Record, owner: str, matter: str, most: int) -> Rule:
        why = refused_mark(mark_of(record), record.who)
        if why:
            return Rule("refused", REASON, why)
        if _is_task(record):
            ruling = judge(self.state(record.id), record, owner)
            new = record.event not in ALWAYS and record.attempt == 1 and target_state(record) != "waiting"
            if ruling.outcome == "new" and new and self._is_full(most):
                return self._full(most)
            return Rule(ruling.outcome, ruling.reason or "", ruling.message, ruling.entry)
        known = self.ids.get(record.id)
        if known is not None:
            digest, _, entry = known.partition(",")
            if command_identity(record) or digest == sameness(record):
                return Rule("already", entry=entry)
            return Rule("refused", "duplicate_id", f"a different record {record.id!r} exists")
        held = self.state(record.trace.parent_id or "") if is_start(owner) else None
        if held is not None and (held.state != "processing" or held.owner != owner):
            # A word beside an attempt (heartbeat, notice, question): its worker's while it holds the task.
            words = f"{record.trace.parent_id!r} is {held.state!r}, owned by {held.owner!r}"
            return Rule("refused", "not_the_owner", words, kept=False)
        if record.event == "decision":
            task = word(record.detail.get("task"))
            if task:
                action, question = word(record.detail.get("action")), word(record.detail.get("question"))
                ruling = judge_decision(self.state(task), action, task, question)
                return Rule(ruling.outcome, ruling.reason or "", ruling.message)
        elif record.event == "task_merged":
            as_of = word(record.detail.get("as_of"))
            if as_of and not _not_after(matter, as_of):
                return Rule(
                    "refused", "stale_read", f"a record came after {as_of}: compute the merge again", kept=False
                )
        elif self._is_full(most) and record.event not in ALWAYS:
            return self._full(most)
        return Rule("new")

    def _take(self, record: Record, now_ms: int) -> str:
        """Write an admitted record and what follows from it; its position."""
        entry = self._write(record.to_json(), now_ms)
        if _is_task(record):
            self.tasks[record.id] = state_to(apply(self.state(record.id), record, entry))
            return entry
        self.ids[record.id] = f"{sameness(record)},{entry}"
        detail = record.detail
        if record.event == "decision":
            action, task = word(detail.get("action")), word(detail.get("task"))
            before = self.state(task) if task else None
            if before is not None and action in DECISIONS:
                self.tasks[task] = state_to(apply_decision(before, action, word(detail.get("role"))))
            if action == "finish":
                self.meta["finish"] = entry
            elif action == "resume":
                self.meta.pop("finish", None)
        elif record.event == "task_merged":
            self.meta["merged"] = entry
            root = record.trace.parent_id or ""
            state = self.state(root)
            if state is not None:
                self.tasks[root] = state_to(merge_root(state))
        return entry

    def _violation(self, record: Record, rule: Rule, now_ms: int) -> str:
        digest = sameness(record)
        id = f"PV_{digest}" + (f"_{record.attempt}" if _is_task(record) else "")
        known = self.ids.get(id)
        if known is not None:
            return known.partition(",")[2]
        fields = {
            "id": id, "who": "store", "time": now_ms // 1000, "event": "protocol_violation",
            "what": f"{rule.reason}: {record.event} of {record.id}"[:400],
            "detail": {"reason": rule.reason, "message": rule.message, "raw": record.to_json()},
            "trace": record.trace.to_json(),
        }  # fmt: skip
        entry = self._write(fields, now_ms)
        self.ids[id] = f"{digest},{entry}"
        return entry

    def _write(self, fields: dict[str, Json], now_ms: int) -> str:
        ms, seq = entry_key(self.last)
        self.last = entry = f"{now_ms}-0" if now_ms > ms else f"{ms}-{seq + 1}"
        self.rows.append({"entry": entry, "record": fields})
        event = fields["event"]
        if (event.startswith("task_") and event != "task_merged") or event == "decision":
            self.meta["matter"] = entry
        return entry

    def _is_full(self, most: int) -> bool:
        return len(self.rows) >= most

    def _full(self, most: int) -> Rule:
        words = f"the space holds {len(self.rows)} records (limit {most}): begin a new one, or use the fleet's store"
        return Rule("refused", "too_large", words, kept=False)


def _is_task(record: Record) -> bool:
    return record.is_task and not is_about_agent(record)


def _not_after(matter: str, as_of: str) -> bool:
    try:
        return "-" in as_of and entry_key(matter) <= entry_key(as_of)
    except ValueError:
        return False


def state_to(state: TaskState) -> dict[str, Json]:
    """A task's state as a person reads it; what is empty is left out."""
    out: dict[str, Json] = {"state": state.state, "attempt": state.attempt}
    for name in ("owner", "role", "agent", "tries", "due_ms", "waiting_for"):
        value = getattr(state, name)
        if value:
            out[name] = value
    out["seen"] = {mark: f"{digest},{entry}" for mark, (digest, entry) in state.seen.items()}
    return out


def state_from(found: Mapping[str, Json]) -> TaskState:
    """The inverse of ``state_to``. Raises KeyError, TypeError or ValueError for what is none."""
    seen: dict[str, tuple[str, str]] = {}
    for mark, packed in found["seen"].items():
        digest, entry = packed.split(",")
        seen[mark] = digest, entry
    return TaskState(
        state=found["state"],
        attempt=found["attempt"],
        owner=found.get("owner", ""),
        role=found.get("role", ""),
        agent=found.get("agent", ""),
        tries=found.get("tries", 0),
        due_ms=found.get("due_ms", 0),
        waiting_for=found.get("waiting_for", ""),
        seen=seen,
    )


def record_of_row(row: Row) -> Record:
    """The record of a row. What the store wrote has passed the gates and is not judged again; raises Refused for what
    somebody else wrote and is no record."""
    fields = row["record"]
    try:
        trace = fields["trace"]
        return Record.model_construct(
            id=fields["id"],
            who=fields["who"],
            time=int(fields["time"]),
            event=cast("Any", fields["event"]),
            what=fields["what"],
            detail=dict(fields["detail"]),
            trace=Trace.model_construct(
                parent_id=trace.get("parent_id"),
                session_id=trace["session_id"],
                traceparent=trace.get("traceparent"),
                tracestate=trace.get("tracestate"),
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused(
            f"the entry {row['entry']} is no record: {error!r}", reason="damaged_record", path=str(row["entry"]),
            mend="detect-anomalies lists every such entry",
        ) from error  # fmt: skip
