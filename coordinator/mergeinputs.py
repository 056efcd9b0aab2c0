"""From a log to what a merge is made from.

Guarantees: one pass over the records, in the log's order, which is the order that decides; a delivery is the record of
the attempt that completed the task, or the result that a person accepted; a verdict is never a result. Never reads a
store: results that are artifacts are handed in (``needed_artifacts`` names them). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from coordinator.deliveries import VERDICTS, Delivery, MergeInputs, Verdict, prefix_of
from coordinator.deliveriesfile import from_deliveries_file
from protocol.record import Json, Record
from protocol.tasks import TaskState, fold, is_about_agent

__all__ = ["from_deliveries_file", "from_records", "needed_artifacts", "prefix_of"]

JUDGES: Final = frozenset({"verifier", "manager"})
"""Kinds of agents whose own tasks give no result to merge."""
DONE: Final = frozenset({"completed", "merged"})
_KIND: Final = re.compile(r"[_-]")


@dataclass
class _Task:
    """What the records say of a task beside its state."""

    prefix: str = ""
    merge_key: tuple[str, ...] = ()
    plan_index: int | None = None
    title: str = ""
    role: str = ""
    who: str = ""
    verifies: str = ""
    purpose: str = ""
    reason: str = ""
    delivered: tuple[int, Record] | None = None


@dataclass
class _Log:
    """The log, folded."""

    tasks: dict[str, _Task] = field(default_factory=dict)
    states: dict[str, TaskState] = field(default_factory=dict)
    root: Record | None = None
    finish: Mapping[str, Json] = field(default_factory=dict)
    session: str = ""


def from_records(
    records: Iterable[tuple[str, Record]],
    *,
    resolve: Mapping[str, Json] | None = None,
    roles: Mapping[str, Mapping[str, Json]] | None = None,
    policy: Mapping[str, Json] | None = None,
) -> MergeInputs:
    """Fold a whole log, (entry, record) in the log's order.

    ``resolve``: sha256 -> content of the results that are artifacts; one that is not in it is gone, and its task has no
    result. None: artifacts stand for themselves, by digest. ``roles``: the published roles (``kind``, ``merge_key``).
    ``policy``: of the merge; by default the root record's ``merge_policy``.
    """
    log = _read(records)
    known = roles or {}
    deliveries: list[Delivery] = []
    verdicts: list[Verdict] = []
    standing: list[tuple[str, str, str]] = []
    aside: list[tuple[str, str]] = []
    verifiers: set[str] = set()
    root = log.root.id if log.root else ""
    for name, task in log.tasks.items():
        state = log.states.get(name)
        if state is None or name == root:
            continue
        role = known.get(task.role, {})
        judges = _judges(task, role)
        if judges:
            verifiers.add(name)
        if task.delivered is None:
            if state.state in DONE:
                aside.append((name, "completed without a delivery on record"))
            else:
                standing.append((name, state.state, task.reason))
            continue
        place, record = task.delivered
        if "verdict" in record.detail:
            verdicts += _verdict(place, record, resolve)
        elif judges or task.purpose:
            why = f"the flow has read it ({task.purpose})" if task.purpose else "a verifier's task without a verdict"
            aside.append((name, why))
        elif _gone(record, resolve):
            standing.append((name, "gone", f"the artifact {_artifact(record)} with its result is no longer there"))
        else:
            deliveries.append(_delivery(name, task, role, place, record, resolve))
    merge_policy = log.root.detail.get("merge_policy") if log.root else None
    return MergeInputs(
        deliveries=tuple(deliveries),
        verdicts=tuple(verdicts),
        standing=tuple(standing),
        plan_order=_plan_order(log.tasks),
        policy=policy if policy is not None else merge_policy if isinstance(merge_policy, dict) else {},
        root=root,
        session=log.root.session if log.root else log.session,
        verifiers=frozenset(verifiers),
        missing=tuple(_missing(log.finish)),
        finish_status=_text(log.finish.get("status")),
        prefixes={name: task.prefix for name, task in log.tasks.items() if task.prefix},
        aside=tuple(aside),
    )


def needed_artifacts(records: Iterable[Record]) -> list[str]:
    """The digests of the artifacts that ``from_records`` wants resolved, each once."""
    found: dict[str, None] = {}
    for record in records:
        delivers = record.event == "task_completed" or record.detail.get("action") == "accept"
        if delivers and (sha := _artifact(record)):
            found[sha] = None
    return list(found)


def _read(records: Iterable[tuple[str, Record]]) -> _Log:
    log = _Log()
    for place, (entry, record) in enumerate(records):
        fold(log.states, [(entry, record)])
        log.session = log.session or record.session  # the first: a later record must not look like news
        if record.event == "decision":
            _decision(log, place, record)
        elif record.is_task and not is_about_agent(record):
            task = log.tasks.setdefault(record.id, _Task())
            _describe(task, record)
            if record.event == "task_completed" and task.delivered is None:
                task.delivered = place, record
            if log.root is None and _is_root(record):
                log.root = record
    return log


def _is_root(record: Record) -> bool:
    """A session's root: started by nobody's task, with a flow, or under the session's own id."""
    rootless = record.event == "task_started" and record.trace.parent_id is None
    return rootless and ("flow" in record.detail or record.id == record.session)


def _decision(log: _Log, place: int, record: Record) -> None:
    action, name = record.detail.get("action"), record.detail.get("task")
    if action == "finish":
        log.finish = record.detail
    elif action == "resume":
        log.finish = {}
    elif isinstance(name, str) and (task := log.tasks.get(name)) is not None:
        if action == "accept" and task.delivered is None:
            task.delivered = place, record
        elif action == "cancel":
            task.reason = _text(record.detail.get("why")) or f"cancelled by {record.who}"
        elif action in ("retry", "reassign"):
            task.reason = ""


def _describe(task: _Task, record: Record) -> None:
    """Take up what a task's record says of it; a later one counts."""
    detail = record.detail
    task.prefix = _text(detail.get("prefix")) or task.prefix
    task.title = _text(detail.get("title")) or task.title
    task.role = _text(detail.get("role")) or task.role
    task.verifies = _text(detail.get("verifies")) or task.verifies
    if isinstance(detail.get("by"), dict):
        task.purpose = _text(detail.get("purpose")) or task.purpose
    index = detail.get("plan_index")
    if isinstance(index, int) and not isinstance(index, bool):
        task.plan_index = index
    key = detail.get("merge_key")
    if isinstance(key, (list, tuple)) and key and all(isinstance(name, str) for name in key):
        task.merge_key = tuple(key)
    if record.event in ("task_started", "task_processing", "task_completed"):
        task.who = record.who
    task.reason = _reason(record)


def _reason(record: Record) -> str:
    detail = record.detail
    error = detail.get("error")
    if record.event == "task_failed" and isinstance(error, dict):
        return _text(error.get("message")) or _text(error.get("kind"))
    if record.event == "task_agent_lost":
        return f"its agent {_text(detail.get('agent')) or 'somebody'} is lost"
    if record.event == "task_pending" and detail.get("waiting_for"):
        return f"it waits for the answer to {_text(detail.get('waiting_for'))}"
    return _text(detail.get("reason")) if record.event in ("task_blocked", "task_retrying") else ""


def _judges(task: _Task, role: Mapping[str, Json]) -> bool:
    """True for a verifier's own task: it was told what to verify, or its agent is of that kind (by its role, where
    that is known, else by its name)."""
    if task.verifies or (task.delivered is not None and "verdict" in task.delivered[1].detail):
        return True
    kind = _text(role.get("kind")) or _KIND.split(task.who, maxsplit=1)[0]
    return kind in JUDGES


def _delivery(
    name: str, task: _Task, role: Mapping[str, Json], place: int, record: Record, resolve: Mapping[str, Json] | None
) -> Delivery:
    key = role.get("merge_key")
    own = tuple(str(part) for part in key) if isinstance(key, (list, tuple)) else ()
    return Delivery(
        task=name,
        who=record.who,
        time=record.time,
        result=_content(record, resolve),
        order=(place,),
        prefix=task.prefix or None,
        role=task.role or None,
        merge_key=task.merge_key or own or None,
        plan_index=task.plan_index,
        title=task.title,
    )


def _verdict(place: int, record: Record, resolve: Mapping[str, Json] | None) -> list[Verdict]:
    """The verdict on a record; none where its word or its task is none (it is no result either)."""
    detail = record.detail
    word = next((known for known in VERDICTS if known == detail.get("verdict")), None)
    verified = _text(detail.get("verifies")) or record.trace.parent_id or ""
    if word is None or not verified:
        return []
    judged = (detail, detail.get("findings"), _content(record, resolve))
    found = (part.get("items") for part in judged if isinstance(part, dict))
    items = next((listed for listed in found if isinstance(listed, list)), [])
    reasons = detail.get("reasons")
    listed = reasons if isinstance(reasons, list) else [] if reasons is None else [reasons]
    return [
        Verdict(
            verified, word, record.who, record.time, (place,),
            tuple(reason if isinstance(reason, str) else str(reason) for reason in listed),
            tuple(item for item in items if isinstance(item, dict)),
        )
    ]  # fmt: skip


def _artifact(record: Record) -> str:
    """The digest of the artifact that holds the result, '' where the result is in the record."""
    artifact = record.detail.get("artifact")
    return _text(artifact.get("sha256")) if "result" not in record.detail and isinstance(artifact, dict) else ""


def _gone(record: Record, resolve: Mapping[str, Json] | None) -> bool:
    sha = _artifact(record)
    return bool(sha) and resolve is not None and sha not in resolve


def _content(record: Record, resolve: Mapping[str, Json] | None) -> Json:
    sha = _artifact(record)
    if not sha:
        return record.detail.get("result")
    return {"artifact": sha} if resolve is None else resolve.get(sha)


def _plan_order(tasks: Mapping[str, _Task]) -> tuple[str, ...]:
    placed = sorted((task.plan_index, name) for name, task in tasks.items() if task.plan_index is not None)
    return tuple(name for _, name in placed)


def _missing(finish: Mapping[str, Json]) -> Iterable[tuple[str, str]]:
    rows = finish.get("missing")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("task"), str):
            yield row["task"], _text(row.get("reason")) or "not done"


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
