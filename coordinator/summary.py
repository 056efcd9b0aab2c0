"""What a log amounts to: counts by event and agent, what is open, blocked or lost, verdicts, progress.

Guarantees: one pass over the records, pure; lists have at most ``LISTED`` entries with the true count beside them, so
that the summary of any log fits into a record. Decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from coordinator.arbitrate import by_task, combine, counting, disagreement
from coordinator.deliveries import MergeInputs
from coordinator.mergeinputs import from_records
from protocol.record import Json, Record

LISTED: Final = 100
OPEN: Final = ("started", "pending", "assigned", "processing", "retrying")
SETTLED: Final = frozenset({"completed", "merged", "cancelled"})


def summarize(records: Iterable[Record]) -> dict[str, Json]:
    """The summary of a log's records, in their order.

    ``records`` (how many), ``first_time`` and ``last_time`` (Unix seconds, as the writers saw them), ``events`` (by
    event), ``agents`` (by name: records, last event, current task and progress of the last heartbeat), ``tasks``
    {total, by_state}, ``open``, ``blocked``, ``lost``, ``failed``, ``waiting`` ({count, tasks: [{task, state,
    reason}]}), ``verdicts`` {confirmed, partial, rejected, unverified, tasks: {task: verdict}}, ``progress`` {done, of,
    percent}, ``merges``, ``violations``.
    """
    listed = list(records)
    # Without the store's entries the place in the log is as good an order; times of retries are not asked for here.
    inputs = from_records((f"{number + 1}-0", record) for number, record in enumerate(listed))
    events = Counter(record.event for record in listed)
    times = [record.time for record in listed]
    return {
        "session": inputs.session,
        "records": len(listed),
        "first_time": min(times, default=None),
        "last_time": max(times, default=None),
        "events": dict(sorted(events.items())),
        "agents": _agents(listed),
        **_tasks(inputs),
        "verdicts": _verdicts(inputs),
        "merges": [record.id for record in listed if record.event == "task_merged"][-LISTED:],
        "violations": dict(
            sorted(Counter(_reason(record) for record in listed if record.event == "protocol_violation").items())
        ),
    }


def _agents(records: Iterable[Record]) -> dict[str, Json]:
    counts: Counter[str] = Counter()
    last: dict[str, dict[str, Json]] = {}
    for record in records:
        counts[record.who] += 1
        row = last.setdefault(record.who, {})
        row |= {"last_event": record.event, "last_time": record.time}
        if record.event == "heartbeat":
            row |= {name: record.detail.get(name) for name in ("current_task", "status", "progress")}
    busiest = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    out: dict[str, Json] = {
        "count": len(counts),
        "by_name": {who: {"records": number, **_small(last[who])} for who, number in busiest[:LISTED]},
    }
    return out


def _tasks(inputs: MergeInputs) -> dict[str, Json]:
    """Counts and lists of the tasks; the root of a session is not work."""
    completed = len(inputs.deliveries) + len(inputs.aside)
    judged = sum(1 for task in inputs.verifiers if task not in _standing(inputs) and task not in dict(inputs.aside))
    states = Counter(state for _, state, _ in inputs.standing)
    states["completed"] += completed + judged + states.pop("gone", 0)
    total = sum(states.values())
    done = sum(number for state, number in states.items() if state in SETTLED)

    def listing(wanted: Callable[[str], bool]) -> dict[str, Json]:
        rows = [row for row in inputs.standing if wanted(row[1])]
        shown = [{"task": task, "state": state, "reason": reason[:300]} for task, state, reason in rows[:LISTED]]
        return {"count": len(rows), "tasks": shown}

    return {
        "tasks": {"total": total, "by_state": {state: n for state, n in sorted(states.items()) if n}},
        "open": listing(lambda state: state in OPEN),
        "blocked": listing(lambda state: state == "blocked"),
        "lost": listing(lambda state: state == "lost"),
        "failed": listing(lambda state: state == "failed"),
        "waiting": listing(lambda state: state == "waiting"),
        "progress": {"done": done, "of": total, "percent": 100 * done // total if total else 0},
    }


def _standing(inputs: MergeInputs) -> set[str]:
    return {task for task, _, _ in inputs.standing}


def _verdicts(inputs: MergeInputs) -> dict[str, Json]:
    """How many deliveries each verdict has, as a merge would count them."""
    deliveries = by_task(inputs.deliveries)
    counted = counting(inputs.verdicts, deliveries)
    rule = disagreement(inputs.policy)
    status = {task: combine(counted.get(task, ()), rule) for task in deliveries}
    numbers = Counter(status.values())
    judged = [(task, word) for task, word in status.items() if word != "unverified"]
    return {
        **{word: numbers[word] for word in ("confirmed", "partial", "rejected", "unverified")},
        "tasks": dict(judged[:LISTED]),
    }


def _small(row: dict[str, Json]) -> dict[str, Json]:
    """A heartbeat's fields as they are counted here: long texts are cut, whole objects left out."""
    out: dict[str, Json] = {}
    for name, value in row.items():
        if isinstance(value, str):
            out[name] = value[:100]
        elif value is None or isinstance(value, (int, float)):
            out[name] = value
    return out


def _reason(record: Record) -> str:
    reason = record.detail.get("reason")
    return reason if isinstance(reason, str) and len(reason) <= 40 else "other"
