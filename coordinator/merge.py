"""The merge: from deliveries, verdicts and the tasks' standing to one merged result. Code only, pure.

Guarantees: the same inputs give the same result and the same ``merge_id``, in whatever order they are handed over; what
stands in the way is refused by name, or with ``force`` named as missing; no task disappears unlisted, and nothing that
was rejected is delivered. Never reads a log or a clock and writes nothing: the manager and the command line do.

The rules are those of ``coordinator.arbitrate`` (whole results) and ``coordinator.items`` (lists with a merge key).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from coordinator import artifact as artifacts
from coordinator.arbitrate import Arbitration, Conflict, Overlap, arbitrate, by_task, counting, disagreement
from coordinator.deliveries import Delivery, MergeInputs, Verdict, natural, prefix_of
from coordinator.items import ItemMerge, MergedItem, merge_items
from protocol.errors import MergeRefused
from protocol.record import Json, canonical, digest

__all__ = ["Delivery", "MergeInputs", "Merged", "Verdict", "merge", "merge_id", "obstacles", "prefix_of"]

LISTED: Final = 100
"""So many entries of a list go into the record; the artifact has all of them."""
DETAIL_BYTES: Final = 128 * 1024
"""Half of what a record's ``detail`` may hold: long ids make the lists shorter still."""
REASON_CHARS: Final = 300
ANYWAY: Final = frozenset({"failed", "blocked", "lost", "processing", "assigned", "retrying", "waiting"})
"""States that stand in the way whosever task it is; a verifier's task that never started does not."""
DONE: Final = frozenset({"completed", "merged"})
NO_OBSTACLE: Final = frozenset({"completed", "merged", "cancelled", "gone"})
"""Nothing more will come of these, and nobody has to decide anything: what lacks is told."""


def obstacles(inputs: MergeInputs) -> tuple[tuple[str, str], ...]:
    """What stands in the way, (task, state and reason), in plan order, else by task: a master task that is not
    completed; any task that is failed, blocked or lost, or in somebody's hands. A cancelled task does not."""
    found = [
        (task, f"{state}: {reason}" if reason else state)
        for task, state, reason in inputs.standing
        if state in ANYWAY or (state not in NO_OBSTACLE and task not in inputs.verifiers)
    ]
    place = _plan_place(inputs)
    return tuple(sorted(found, key=lambda row: (place.get(row[0], len(place)), natural(row[0]))))


@dataclass(frozen=True)
class Merged:
    """A merge. ``missing``: (task, what is wrong) of what a forced merge lacks; ``not_delivered``: (task, why)."""

    inputs: MergeInputs
    decided: Arbitration
    items: ItemMerge
    merge_id: str
    status: str
    missing: tuple[tuple[str, str], ...]
    not_delivered: tuple[tuple[str, str], ...]
    source_tasks: tuple[str, ...]
    """Every task with a delivery, in plan order where there is one, else in server order."""

    @property
    def merge_order(self) -> tuple[str, ...]:
        """The tasks whose result is kept, in the order of the merged result."""
        kept = set(self.decided.kept)
        return tuple(task for task in self.source_tasks if task in kept)

    @cached_property
    def detail(self) -> dict[str, Json]:
        """The ``task_merged`` record's detail. Lists (and the lists in them) have at most 100 entries; ``counts`` has
        the true length of each that was cut, and the artifact has the whole."""
        whole = self._whole()
        most = LISTED
        while True:
            counts: dict[str, Json] = {}
            cut = {name: _cut(value, most, name, counts) for name, value in whole.items()}
            detail = cut | ({"counts": counts} if counts else {})
            if most <= 1 or len(canonical(detail)) <= DETAIL_BYTES:
                return detail
            most //= 2

    @cached_property
    def artifact(self) -> dict[str, Json]:
        """The merged result as JSON: the record's fields whole, ``tasks``, ``items`` with every item's origin,
        ``rejected_items``, ``set_aside_items`` (``coordinator.artifact.to_json``)."""
        return artifacts.to_json(self._parts())

    @cached_property
    def markdown(self) -> str:
        """The merged result as Markdown, one heading a task."""
        return artifacts.to_markdown(self._parts())

    @property
    def decisions(self) -> list[dict[str, Json]]:
        """Each decision and why: ``{kind, tasks, kept, why}``; kinds ``rejected``, ``conflict``, ``identical``,
        ``overlap``."""
        out: list[dict[str, Json]] = [
            {"kind": "rejected", "tasks": [task], "kept": None, "why": why}
            for task, why in self.decided.rejected.items()
        ]
        out += [
            {"kind": "conflict", "tasks": list(c.tasks), "kept": c.kept, "why": c.why} for c in self.decided.conflicts
        ]
        out += [{"kind": o.type, **_overlap(o), "why": o.why} for o in self.decided.overlaps]
        for row in out:
            row.pop("type", None)
        return out

    def plain(self) -> dict[str, Json]:
        """What ``merge-outputs --deliveries`` prints: tasks and decisions without the results."""
        decided = self.decided
        out: dict[str, Json] = {
            "kept": list(self.merge_order),
            "deduped_from": list(decided.deduped),
            "overlaps": [_overlap(entry) for entry in decided.overlaps],
            "conflicts": [{"tasks": list(entry.tasks), "kept": entry.kept} for entry in decided.conflicts],
            "not_delivered": _reasons(self.not_delivered),
            "empty": list(decided.empty),
            "status": self.status,
        }
        if self.items.counts:
            out["items"] = [item.to_json() for item in self.items.items]
            out["rejected_items"] = [item.to_json() for item in self.items.rejected]
        if self.missing:
            out["missing"] = _reasons(self.missing)
        return out

    def _whole(self) -> dict[str, Json]:
        decided, items = self.decided, self.items
        out: dict[str, Json] = {
            "status": self.status,
            "source_tasks": list(self.source_tasks),
            "kept": list(self.merge_order),
            "merge_order": list(self.merge_order),
            "verification_status": {task: decided.status[task] for task in self.source_tasks},
            "overlaps": [_overlap(entry) | {"why": entry.why} for entry in decided.overlaps],
            "conflicts": [_conflict(entry) for entry in decided.conflicts],
            "deduped_from": list(decided.deduped),
            "not_delivered": _reasons(self.not_delivered),
            "empty": list(decided.empty),
            "missing": _reasons(self.missing),
            "policy": dict(self.inputs.policy),
        }
        if self.inputs.aside:
            out["not_results"] = _reasons(self.inputs.aside)
        if items.counts:
            out["items"] = {
                "delivered": len(items.items),
                "rejected": len(items.rejected),
                "set_aside": len(items.set_aside),
                "found_by_several": sum(_finders(item) > 1 for item in items.items),
            }
        return out

    def _parts(self) -> artifacts.Parts:
        titles = {delivery.task: delivery.title for delivery in self.decided.deliveries.values() if delivery.title}
        fields = {"session": self.inputs.session, "merge_id": self.merge_id} | self._whole()
        fields.pop("items", None)
        return artifacts.Parts(self.decided, self.items, self.source_tasks, titles, self.not_delivered, fields)


def merge(inputs: MergeInputs, *, force: bool = False) -> Merged:
    """Merge what was delivered.

    Raises MergeRefused with every obstacle, unless ``force``: then they are listed as ``missing`` and the status is
    ``partial``. Raises Refused for a policy that nobody knows.
    """
    standing = obstacles(inputs)
    if standing and not force:
        shown = ", ".join(f"{task!r} is {why}" for task, why in standing[:5])
        more = f" and {len(standing) - 5} more" if len(standing) > 5 else ""
        raise MergeRefused(
            f"not everything is delivered: {shown}{more}",
            obstacles=standing,
            mend="settle them (`rolecall task retry|reassign|cancel|accept`), or merge what is there with --force",
        )
    inputs = replace(inputs, policy={"disagreement": disagreement(inputs.policy), **inputs.policy})
    decided = arbitrate(inputs)
    order = _order(inputs, decided.deliveries)
    items = merge_items(inputs, decided, order)
    missing = dict(standing)
    if standing or inputs.finish_status == "partial":
        missing |= {task: reason for task, reason in inputs.missing if task not in decided.deliveries}
    return Merged(
        inputs=inputs,
        decided=decided,
        items=items,
        merge_id=merge_id(inputs),
        status="partial" if missing or not decided.kept or _open_questions(inputs, decided) else "delivered",
        missing=tuple(missing.items()),
        not_delivered=_not_delivered(inputs, decided, missing),
        source_tasks=order,
    )


def merge_id(inputs: MergeInputs) -> str:
    """``MERGE_`` and a digest of all that the merge depends on: results, who delivered them and in which order, the
    verdicts that count, policy, standing. No writer's clock, and not the order in which they are handed over."""
    deliveries = by_task(inputs.deliveries)
    verdicts = counting(inputs.verdicts, deliveries)
    parts: dict[str, Json] = {
        "session": inputs.session,
        "deliveries": [
            [d.task, d.who, d.question, list(d.merge_key or ()), digest(canonical(d.result))]
            for d in deliveries.values()
        ],
        "order": list(_order(inputs, deliveries)),
        "verdicts": [
            [v.task, v.who, v.verdict, list(v.reasons), [dict(item) for item in v.items]]
            for task in sorted(verdicts)
            for v in verdicts[task]
        ],
        "policy": {"disagreement": disagreement(inputs.policy), **inputs.policy},
        "standing": sorted([list(row) for row in inputs.standing]),
        "missing": sorted([list(row) for row in inputs.missing]),
        "aside": sorted([list(row) for row in inputs.aside]),
    }
    return f"MERGE_{digest(canonical(parts))}"


def _plan_place(inputs: MergeInputs) -> dict[str, int]:
    return {task: number for number, task in enumerate(inputs.plan_order)}


def _order(inputs: MergeInputs, deliveries: Mapping[str, Delivery]) -> tuple[str, ...]:
    """Plan order, else server order: what the plan does not know comes after it."""
    place = _plan_place(inputs)
    end = len(place)

    def key(row: tuple[int, str]) -> tuple[int, int, int]:
        number, task = row
        index = deliveries[task].plan_index
        if task in place:
            return 0, place[task], number
        return (0, index, number) if index is not None and not place else (1, end, number)

    return tuple(task for _, task in sorted(enumerate(deliveries), key=key))


def _open_questions(inputs: MergeInputs, decided: Arbitration) -> set[str]:
    """Questions of master tasks that no try answered: all rejected, or cancelled."""
    asked = {delivery.question for delivery in decided.deliveries.values()}
    asked |= {
        inputs.prefixes.get(task) or prefix_of(task) for task, _, _ in inputs.standing if task not in inputs.verifiers
    }
    answered = {d.question for task, d in decided.deliveries.items() if task not in decided.rejected}
    return asked - answered


def _not_delivered(
    inputs: MergeInputs, decided: Arbitration, missing: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Master tasks of which nothing is delivered: rejected, or without a delivery; in plan order, else by id."""
    rows = dict(decided.rejected)
    for task, state, reason in inputs.standing:
        if task not in inputs.verifiers and state not in DONE:
            rows[task] = missing.get(task) or (f"{state}: {reason}" if reason else state)
    rows |= {task: why for task, why in missing.items() if task not in rows and task not in inputs.verifiers}
    place = _plan_place(inputs)
    return tuple((task, rows[task]) for task in sorted(rows, key=lambda t: (place.get(t, len(place)), natural(t))))


def _overlap(entry: Overlap) -> dict[str, Json]:
    out: dict[str, Json] = {"tasks": list(entry.tasks), "type": entry.type, "kept": entry.kept}
    return out | {"also_kept": list(entry.also_kept)} if entry.also_kept else out


def _conflict(entry: Conflict) -> dict[str, Json]:
    return {"tasks": list(entry.tasks), "kept": entry.kept, "prefix": entry.prefix, "why": entry.why}


def _reasons(rows: Iterable[tuple[str, str]]) -> list[Json]:
    return [{"task": task, "reason": reason} for task, reason in rows]


def _finders(item: MergedItem) -> int:
    return len(item.to_json()["found_by"])


def _cut(value: Json, most: int, name: str, counts: dict[str, Json]) -> Json:
    """A list or object with its first ``most`` entries; what was cut is counted."""
    if isinstance(value, (list, dict)) and len(value) > most:
        counts[name] = len(value)
        value = value[:most] if isinstance(value, list) else dict(list(value.items())[:most])
    return [_short(entry, most) for entry in value] if isinstance(value, list) else value


def _short(entry: Json, most: int) -> Json:
    if not isinstance(entry, dict):
        return entry
    out: dict[str, Json] = {}
    for name, value in entry.items():
        if isinstance(value, list) and len(value) > most:
            out |= {name: value[:most], f"{name}_count": len(value)}
        elif isinstance(value, str) and len(value) > REASON_CHARS:
            out[name] = value[: REASON_CHARS - 1] + "…"
        else:
            out[name] = value
    return out
