"""The projections of a log: what an append keeps beside it, made anew from the records alone.

Guarantees: the same records give the same projections that the appends made, on every store (a test plays random
histories and compares); a row that is no record changes nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from protocol.cursor import entry_key
from protocol.record import Json, Record, sameness, word
from protocol.tasks import TaskState, fold, is_about_agent, is_start, mark

Raw = tuple[str, Mapping[str, Json]]
"""An entry of a log as it is there, (position, fields): whoever wrote it, it may be no record."""
LOST: Final = "!lost"


def record_of_raw(fields: Mapping[str, Json]) -> Record | None:
    """The record in an entry's fields, None where they are none."""
    try:
        return Record.model_validate(dict(fields))
    except ValidationError:
        return None


def is_task_record(record: Record) -> bool:
    """True where the record is identified by its task, event and attempt; else its id alone decides."""
    return record.is_task and not is_about_agent(record)


def same_digest(record: Record) -> str:
    """The digest under which the store knows a record's id. A violation that the store wrote carries that of the
    record that was refused, in its id."""
    if record.event == "protocol_violation" and record.who == "store" and "raw" in record.detail:
        parts = record.id.split("_")
        if isinstance(record.detail["raw"], dict) and "event" in record.detail["raw"] and len(parts) in (2, 3):
            return parts[1]
    return sameness(record)


@dataclass
class Projection:
    """``tasks``: task -> state; ``ids``: id of every record that is no task's -> ``digest,entry``; ``marks``: what the
    space's metadata says of its log (``n matter finish merged``; empty ones are left out)."""

    tasks: dict[str, TaskState] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def see(self, entry: str, record: Record | None) -> None:
        """Take up the next entry of the log (None: it is no record)."""
        self.count += 1
        if record is None:
            return
        fold(self.tasks, [(entry, record)])
        event = record.event
        if (event.startswith("task_") and event != "task_merged") or event == "decision":
            self.marks["matter"] = entry
        if is_task_record(record):
            return
        self.ids.setdefault(record.id, f"{same_digest(record)},{entry}")
        if event == "decision":
            action = word(record.detail.get("action"))
            if action == "finish":
                self.marks["finish"] = entry
            elif action == "resume":
                self.marks.pop("finish", None)
        elif event == "task_merged":
            self.marks["merged"] = entry

    @property
    def held(self) -> dict[str, str]:
        """Task in the hands of a fleet worker -> its start; a lost task -> ``!lost``."""
        out: dict[str, str] = {}
        for task, state in self.tasks.items():
            if state.state == "processing" and is_start(state.owner):
                out[task] = state.owner
            elif state.state == "lost":
                out[task] = LOST
        return out

    @property
    def due(self) -> dict[str, int]:
        """Retrying task -> ms at which it is due; of one that was never assigned there is nothing to repeat."""
        return {
            task: state.due_ms
            for task, state in self.tasks.items()
            if state.state == "retrying" and state.last_assignment is not None
        }

    @property
    def assigned(self) -> dict[str, int]:
        """Assigned task -> ms of its assignment: what may stand in the outbox."""
        out: dict[str, int] = {}
        for task, state in self.tasks.items():
            if state.state == "assigned":
                entry = state.entry_of("task_assigned", state.attempt) or "0-0"
                out[task] = entry_key(entry)[0]
        return out


def twin(record: Record, tasks: Mapping[str, TaskState], ids: Mapping[str, str]) -> str:
    """The entry under which the projections know this record's identity, '' where they don't."""
    if is_task_record(record):
        state = tasks.get(record.id)
        found = state.seen.get(mark(record)) if state else None
        return found[1] if found else ""
    return ids.get(record.id, "").rpartition(",")[2]
