"""A history that outgrows the model's window: what stays, what gives way to a summary.

Guarantees: pure; the task's own message, people's words and every answer to a question stay whole; a tool call is never
parted from its result; nothing is removed from the store. The summary is made by code from what is there and says
nothing new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from protocol.record import Json
from workers.messages import Message, as_text, fenced, message, tokens_of
from workers.words import Lang, say

FULL: Final = 0.75
"""Share of the window from which on a history is compacted; the rest is for the answer and for the tools' own text."""
KEEP: Final = 0.4
"""Share of the window that is left of it at most."""
HEAD_CHARS: Final = 240
LINES_MAX: Final = 200


def compaction(
    history: Sequence[Message], *, fixed: int, window: int, pinned: Sequence[str], summary_id: str, lang: Lang
) -> dict[str, Json] | None:
    """The body of a ``compact`` entry, or None where the history fits.

    ``fixed`` is what system prompt and tools take, in tokens; ``pinned`` names messages that stay. Where even the
    newest messages are too large there is nothing to be done here, and the endpoint will say so.
    """
    before = fixed + tokens_of(history)
    if before <= window * FULL or len(history) < 3:
        return None
    held = set(pinned)
    room = int(window * KEEP) - fixed - tokens_of([each for each in history if each.get("message_id") in held])
    at = len(history) - 1
    used = tokens_of(history[at:])
    while at > 1 and used + tokens_of([history[at - 1]]) <= room:
        at -= 1
        used += tokens_of([history[at]])
    while at > 0 and history[at].get("role") == "tool":  # a result stays with its call
        at -= 1
    dropped = [each for each in history[:at] if each.get("message_id") not in held]
    if len(dropped) < 2:
        return None
    summary = _summary(dropped, summary_id, lang)
    kept = [each for each in history[:at] if each.get("message_id") in held]
    after = fixed + tokens_of([*kept, summary, *history[at:]])
    if after >= before:
        return None
    return {
        "keep": history[at].get("message_id"),
        "pinned": list(pinned),
        "message": summary,
        "before": before,
        "after": after,
        "dropped": len(dropped),
    }


def _summary(dropped: Sequence[Message], summary_id: str, lang: Lang) -> Message:
    """One line a message, heads only; of very many the first and the last."""
    names: dict[str, str] = {}
    lines: list[str] = []
    for each in dropped:
        for call in each.get("tool_calls") or ():
            names[call["id"]] = f"{call['function']['name']}({_head(call['function']['arguments'])})"
        whole = as_text(each.get("content") or "")
        text = whole if (each.get("metadata") or {}).get("answers") else _head(whole)
        if each.get("role") == "tool":
            lines.append(f"- {names.get(str(each.get('tool_call_id')), 'tool')} -> {text}")
        elif text:
            lines.append(f"- {each.get('role')}: {text}")
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX // 2], f"- … ({len(lines) - LINES_MAX})", *lines[-LINES_MAX // 2 :]]
    body = f"{say(lang, 'compacted')}\n\n{fenced(chr(10).join(lines))}"
    return message("user", body, summary_id, message_source="system", visibility="compact", starts_work=False)


def _head(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= HEAD_CHARS else flat[:HEAD_CHARS] + "…"


def pins(history: Sequence[Message], task_message: str) -> list[str]:
    """The ids of what stays whole: the task's message and people's words."""
    out = [task_message]
    for each in history:
        meta: Mapping[str, Json] = each.get("metadata") or {}
        if meta.get("message_source") == "user":
            out.append(str(each.get("message_id")))
    return out
