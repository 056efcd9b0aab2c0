"""The merged result for people and programs: Markdown with one heading a task, JSON with every item's origin.

Guarantees: every task has its heading and its entry, also the ones whose result was not kept, with the reason; nothing
of a rejected result is in either. A result's own headings and fences stay inside its section. Pure; texts are shown as
they were delivered, the JSON has them unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from coordinator.arbitrate import Arbitration
from coordinator.deliveries import Delivery
from coordinator.items import ItemMerge, MergedItem
from protocol.record import Json, canonical

ITEM_CHARS: Final = 400
_HEADING: Final = re.compile(r" {0,3}(#{1,6})(?=\s|$)")
_UNDERLINE: Final = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})(.*)$")
_TICKS: Final = re.compile(r"`+")


@dataclass(frozen=True)
class Parts:
    """What both forms are made from. ``fields``: what stands beside the tasks and items, as the record has it."""

    decided: Arbitration
    items: ItemMerge
    order: Sequence[str]
    titles: Mapping[str, str]
    not_delivered: Sequence[tuple[str, str]]
    fields: Mapping[str, Json]


def to_json(parts: Parts) -> dict[str, Json]:
    """``{...fields, tasks: [...], items: [...], rejected_items: [...], set_aside_items: [...]}``.

    A task's entry: ``task, title, who, role, state (kept deduped outvoted rejected empty), verdict, verdicts`` and, by
    state, ``result`` (kept), ``into`` (deduped), ``kept`` and ``set_aside`` (outvoted: the other side's result),
    ``reason`` (rejected). The result of a task whose list was merged item by item lacks the list: ``item_count``.
    """
    return {
        **parts.fields,
        "tasks": [_entry(parts, task) for task in parts.order],
        "items": [item.to_json() for item in parts.items.items],
        "rejected_items": [item.to_json() for item in parts.items.rejected],
        "set_aside_items": [item.to_json() for item in parts.items.set_aside],
    }


def _entry(parts: Parts, task: str) -> dict[str, Json]:
    decided = parts.decided
    delivery = decided.deliveries[task]
    out: dict[str, Json] = {"task": task, "title": parts.titles.get(task, ""), "who": delivery.who}
    if delivery.role:
        out["role"] = delivery.role
    out["verdict"] = decided.status[task]
    out["verdicts"] = [
        {"who": verdict.who, "verdict": verdict.verdict, "reasons": list(verdict.reasons)}
        for verdict in decided.verdicts.get(task, ())
    ]
    if task in decided.rejected:
        out |= {"state": "rejected", "reason": decided.rejected[task]}
    elif task in decided.empty:
        out["state"] = "empty"
    elif task in decided.outvoted:
        out |= {"state": "outvoted", "kept": decided.outvoted[task], "set_aside": _whole(parts, delivery)}
    elif task in decided.deduped:
        out |= {"state": "deduped", "into": decided.deduped[task]}
    else:
        out |= {"state": "kept", "result": _whole(parts, delivery)}
    if task in parts.items.counts:
        out["item_count"] = parts.items.counts[task]
    return out


def _whole(parts: Parts, delivery: Delivery) -> Json:
    """The result without a list that is told item by item: a rejected item must not come along in it."""
    if delivery.task not in parts.items.counts:
        return delivery.result
    result = delivery.result
    return {name: value for name, value in result.items() if name != "items"} if isinstance(result, dict) else None


def to_markdown(parts: Parts) -> str:
    """The whole as Markdown: a title, what is missing, then one heading a task in merge order."""
    fields = parts.fields
    lines = [f"# Merged result of {line(str(fields.get('session') or 'these deliveries'))}", ""]
    kept = _count(len(parts.decided.kept), "result")
    lines += [f"Status: {fields['status']}. {kept} of {len(parts.order)} kept.", ""]
    missing = fields.get("missing")
    if isinstance(missing, list) and missing:
        lines += ["Missing:", "", *(f"- {line(row['task'])}: {line(row['reason'])}" for row in missing), ""]
    shown: dict[str, list[MergedItem]] = {}
    place = {task: number for number, task in enumerate(parts.order)}
    for item in parts.items.items:
        # An item stands once, under the first task that found it and was kept.
        tasks = [f.delivery.task for f in item.findings if f.delivered and f.delivery.task in parts.decided.kept]
        tasks = tasks or [decided for f in item.findings if (decided := parts.decided.deduped.get(f.delivery.task))]
        shown.setdefault(min(tasks, key=lambda task: place[task]), []).append(item)
    for task in parts.order:
        lines += [f"## {_heading(parts, task)}", "", *_section(parts, task, shown.get(task, ())), ""]
    for task, reason in parts.not_delivered:
        if task not in place:
            lines += [f"## {_heading(parts, task)}", "", f"Not delivered: {line(reason)}", ""]
    rejected = parts.items.rejected
    if rejected:
        lines += [f"{_count(len(rejected), 'item')} rejected:", "", *_listed(rejected)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _heading(parts: Parts, task: str) -> str:
    title = line(parts.titles.get(task, ""))
    return f"{title} ({task})" if title and title != task else task


def _section(parts: Parts, task: str, items: Sequence[MergedItem]) -> list[str]:
    decided = parts.decided
    delivery = decided.deliveries[task]
    if task in decided.rejected:
        return [f"Not delivered: {line(decided.rejected[task])}"]
    if task in decided.empty:
        return [f"Empty result of {delivery.who}."]
    if task in decided.outvoted:
        return [f"Set aside, since {decided.outvoted[task]} answers the same question otherwise and was kept."]
    if task in decided.deduped:
        return [f"Contained in the result of {decided.deduped[task]}."]
    lines = [f"*By {delivery.who}, {decided.status[task]}.*", ""]
    whole = _whole(parts, delivery)
    if isinstance(whole, str):
        lines += contained_markdown(whole)
    elif whole is not None and whole != {}:
        lines += fenced(pretty(whole))
    if task in parts.items.counts:
        here = f"{_count(len(items), 'item')} listed here of {parts.items.counts[task]} delivered"
        lines += ["", f"{here}{':' if items else '.'}", "", *_listed(items)]
    return lines


def _listed(items: Iterable[MergedItem]) -> list[str]:
    return [_bullet(item.to_json()) for item in items]


def _bullet(item: Mapping[str, Json]) -> str:
    body, key = item["item"], item["key"]
    if isinstance(key, dict) and isinstance(body, dict):
        rest = {k: v for k, v in body.items() if k not in key}
        text = ":".join(_scalar(value) for value in key.values())
        message = rest.get("message") or rest.get("title") or rest.get("text")
        text += f" {_scalar(message)}" if message else f" {_scalar(rest)}" if rest else ""
    else:
        text = _scalar(body)
    finders = ", ".join(dict.fromkeys(str(row.get("tool") or row["who"]) for row in item["found_by"]))
    reasons = "; ".join(item["reasons"])
    said = f"{item['verdict']}: {reasons}" if reasons else str(item["verdict"])
    return f"- {line(text)} ({line(said)}; found by {line(finders)})"


def _scalar(value: Json) -> str:
    text = value if isinstance(value, str) else canonical(value).decode()
    return text if len(text) <= ITEM_CHARS else text[: ITEM_CHARS - 1] + "…"


def line(text: str) -> str:
    """``text`` on one line: nothing in it can start a heading, a list or a fence of its own."""
    return " ".join(text.split())


def pretty(value: Json) -> str:
    """JSON over several lines, for people."""
    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    except TypeError:  # an integer past 64 bits
        return json.dumps(value, indent=2, ensure_ascii=False)


def fenced(text: str, kind: str = "json") -> list[str]:
    """``text`` in a fence that is longer than any in it."""
    ticks = "`" * max(3, *(len(run) + 1 for run in _TICKS.findall(text)), 3)
    return [f"{ticks}{kind}", *text.split("\n"), ticks]


def contained_markdown(text: str) -> list[str]:
    """The lines of a delivered text, two levels deeper: its headings can't pass for a task's; an open fence is
    closed."""
    out: list[str] = []
    fence = ""
    for row in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        found = _FENCE.match(row)
        if fence:
            if found and found.group(1).startswith(fence) and not found.group(2).strip():
                fence = ""
        elif found and not ("`" in found.group(2) and found.group(1)[0] == "`"):
            fence = found.group(1)
        elif heading := _HEADING.match(row):
            marks = "#" * min(6, len(heading.group(1)) + 2)
            row = marks + row[heading.end() :]
        elif _UNDERLINE.match(row) and out and out[-1].strip():
            row = "\\" + row.lstrip()
        out.append(row)
    return [*out, fence] if fence else out


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
