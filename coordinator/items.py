"""Lists merged item by item: equal merge keys are one item, with everyone who found it.

Guarantees: an item is delivered only where a delivered result holds it and its best verdict is not ``rejected``; every
other item of every list is listed apart. Depends on the set of results and their order, never on the order in which
they are handed over. Only lists of tasks with a ``merge_key`` are looked at: the result itself, or its ``items``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from coordinator.arbitrate import Arbitration, combine, disagreement
from coordinator.deliveries import RANK, VERDICTS, Delivery, MergeInputs, Status, Verdict, comparable
from protocol.record import Json, canonical

FINDER: Final = "tool"
"""The field of an item that says what found it; it differs by nature and is no difference."""

Key = tuple[tuple[str, ...] | None, tuple[tuple[str, str], ...]]
"""The merge key's names (None: the item has no key and equals only its like) and its values as they are compared."""
State = Literal["delivered", "rejected", "set_aside"]
STATES: Final[tuple[State, ...]] = ("delivered", "rejected", "set_aside")


@dataclass(frozen=True)
class Finding:
    """One item of one result. ``said``: (verifier, verdict, reasons) of those who judged it."""

    delivery: Delivery
    item: Json
    verdict: Status
    said: tuple[tuple[str, str, tuple[str, ...]], ...]
    delivered: bool
    outvoted: bool


@dataclass(frozen=True)
class MergedItem:
    """All findings of one key, the one that stands for them first."""

    key: Key
    findings: tuple[Finding, ...]
    verdict: Status
    state: State

    def to_json(self) -> dict[str, Json]:
        """The item with its origin: ``key, item, verdict, reasons, found_by`` and, where there are any, ``verdicts``
        (each judgement of it) and ``differences`` (fields in which the findings differ)."""
        first = self.findings[0]
        out: dict[str, Json] = {
            "key": {name: first.item[name] for name in self.key[0]} if self.key[0] else None,
            "item": first.item,
            "verdict": self.verdict,
            "reasons": list(dict.fromkeys(r for f in self.findings if f.verdict == self.verdict for r in _reasons(f))),
            "found_by": self._found_by(),
        }
        said = [
            {"task": finding.delivery.task, "who": who, "verdict": verdict, "reasons": list(reasons)}
            for finding in self.findings
            for who, verdict, reasons in finding.said
        ]
        if said:
            out["verdicts"] = said
        if differences := self._differences():
            out["differences"] = differences
        return out

    def _found_by(self) -> list[dict[str, Json]]:
        finders: dict[tuple[str, str], dict[str, Json]] = {}
        for finding in self.findings:
            delivery = finding.delivery
            tool = finding.item.get(FINDER) if isinstance(finding.item, dict) else None
            row: dict[str, Json] = {"task": delivery.task, "who": delivery.who, "verdict": finding.verdict}
            if delivery.role:
                row["role"] = delivery.role
            if tool is not None:
                row[FINDER] = tool
            if finding.outvoted:
                row["set_aside"] = True
            finders.setdefault((delivery.task, canonical(tool).decode()), row)
        return list(finders.values())

    def _differences(self) -> list[dict[str, Json]]:
        if len(self.findings) == 1 or self.key[0] is None:
            return []
        skipped = {*self.key[0], FINDER}
        out: list[dict[str, Json]] = []
        for name in dict.fromkeys(name for finding in self.findings for name in finding.item if name not in skipped):
            values: dict[tuple[str, str], tuple[Json, dict[str, None]]] = {}
            for finding in self.findings:
                if name in finding.item:
                    value = finding.item[name]
                    values.setdefault(comparable(value), (value, {}))[1][finding.delivery.task] = None
            if len(values) > 1:
                out.append({"field": name, "values": [{"value": v, "tasks": list(t)} for v, t in values.values()]})
        return out


@dataclass(frozen=True)
class ItemMerge:
    """``counts``: task -> how many items its list has; the tasks whose result was taken apart."""

    items: tuple[MergedItem, ...] = ()
    rejected: tuple[MergedItem, ...] = ()
    set_aside: tuple[MergedItem, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


def items_of(delivery: Delivery) -> list[Json] | None:
    """The list that is merged item by item: the result, or its ``items``; None where there is no list or no key."""
    if not delivery.merge_key:
        return None
    result = delivery.result
    found = result.get("items") if isinstance(result, dict) else result
    return found if isinstance(found, list) else None


def merge_items(inputs: MergeInputs, decided: Arbitration, order: Sequence[str]) -> ItemMerge:
    """Merge the lists of all deliveries. ``order``: the tasks in merge order."""
    rule = disagreement(inputs.policy)
    groups: dict[Key, list[Finding]] = {}
    counts: dict[str, int] = {}
    for task in order:
        delivery = decided.deliveries[task]
        items = items_of(delivery)
        if items is None:
            continue
        counts[task] = len(items)
        for key, finding in _findings(delivery, items, decided, rule):
            groups.setdefault(key, []).append(finding)
    merged = [_merged(key, findings) for key, findings in groups.items()]
    states: dict[State, tuple[MergedItem, ...]] = {
        state: tuple(item for item in merged if item.state == state) for state in STATES
    }
    return ItemMerge(states["delivered"], states["rejected"], states["set_aside"], counts)


def _findings(
    delivery: Delivery, items: Iterable[Json], decided: Arbitration, rule: str
) -> Iterable[tuple[Key, Finding]]:
    task, names = delivery.task, delivery.merge_key or ()
    verdicts = decided.verdicts.get(task, ())
    judged = [(verdict, _by_key(verdict, names)) for verdict in verdicts]
    refused = decided.rejected.get(task)
    outvoted = task in decided.outvoted
    for item in items:
        key = _key(item, names)
        said = [(verdict.who, *_word(verdict, entries.get(key))) for verdict, entries in judged]
        verdict = combine(verdicts, rule, [word for _, word, _ in said])
        if refused is not None and verdict != "rejected":
            said.append(("merge", "rejected", (refused,)))
            verdict = "rejected"
        yield key, Finding(delivery, item, verdict, tuple(said), not outvoted and refused is None, outvoted)


def _merged(key: Key, findings: list[Finding]) -> MergedItem:
    # The sort is stable: among equals the first in merge order stands for all.
    ranked = tuple(sorted(findings, key=lambda f: (not f.delivered, RANK[f.verdict])))
    verdict = min((f.verdict for f in findings), key=RANK.__getitem__)
    state: State = "set_aside"
    if verdict == "rejected":
        state = "rejected"
    elif any(f.delivered for f in findings):
        state = "delivered"
    return MergedItem(key, ranked, verdict, state)


def _by_key(verdict: Verdict, names: Sequence[str]) -> dict[Key, Mapping[str, Json]]:
    """A verdict's entries by the item that they judge; of two for one item the harder one."""
    out: dict[Key, Mapping[str, Json]] = {}
    for entry in verdict.items:
        if entry.get("verdict") in VERDICTS:
            key = _key(entry, names)
            before = out.get(key)
            if before is None or RANK[entry["verdict"]] > RANK[before["verdict"]]:
                out[key] = entry
    return out


def _word(verdict: Verdict, entry: Mapping[str, Json] | None) -> tuple[str, tuple[str, ...]]:
    """What a verdict says of one item: its own entry, else the verdict on the whole."""
    if entry is None:
        return verdict.verdict, verdict.reasons
    reasons = entry.get("reasons")
    listed = reasons if isinstance(reasons, (list, tuple)) else [] if reasons is None else [reasons]
    return str(entry["verdict"]), tuple(str(reason) for reason in listed)


def _key(item: Json, names: Sequence[str]) -> Key:
    if isinstance(item, Mapping) and all(name in item for name in names):
        ordered = tuple(sorted(set(names)))
        return ordered, tuple(comparable(item[name]) for name in ordered)
    return None, (comparable(item),)


def _reasons(finding: Finding) -> Iterable[str]:
    """The reasons of those who said what the finding's verdict is; of all where they disagree."""
    same = [reasons for _, word, reasons in finding.said if word == finding.verdict]
    for reasons in same or [reasons for _, _, reasons in finding.said]:
        yield from reasons
