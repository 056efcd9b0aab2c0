"""Messages of a conversation: envelopes, the prompt of a task, and the form that an endpoint gets.

Guarantees: pure but for the base prompt, a text that ships; what others wrote stands between fences that its own text
can't close, and the name in the first line comes from the channel, never from the text. Never lets an id or a name span
lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from protocol.envelope import envelope as envelope  # their first home: imported from here as well
from protocol.envelope import fenced as fenced
from protocol.envelope import one_line as one_line
from protocol.kit.outside import prompt
from protocol.kit.rolefiles import RoleFile
from protocol.ports import Dispatch, Mail
from protocol.record import Json
from workers.words import Lang, say

Message = dict[str, Json]
"""``role``, ``content``, ``message_id``, and where it applies ``tool_calls``, ``tool_call_id``, ``metadata``."""

RESULTS_MAX_CHARS: Final = 200_000
"""Characters that the results of earlier tasks may take in one prompt, shared out evenly."""
_TOOL_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


def as_json(value: Json) -> str:
    """A JSON value as people and models read it."""
    return json.dumps(value, ensure_ascii=False, indent=1)


def as_text(value: Json) -> str:
    """Text as it is, anything else as JSON."""
    return value if isinstance(value, str) else as_json(value)


def data(value: Json) -> str:
    """A value, fenced: text as text, anything else as JSON."""
    return fenced(value) if isinstance(value, str) else fenced(as_json(value), "json")


def message(role: str, content: str, message_id: str, **metadata: Json) -> Message:
    """One message as it is saved."""
    out: Message = {"role": role, "content": content, "message_id": message_id}
    if metadata:
        out["metadata"] = metadata
    return out


def task_message(dispatch: Dispatch, schema: Mapping[str, Json] | None, message_id: str, lang: Lang) -> Message:
    """The task as its agent is told it: goal, prompt, input, results of its dependencies, what to deliver."""
    detail = dispatch.detail
    parts: list[str] = []
    if detail.get("goal"):
        parts += [say(lang, "goal"), data(detail["goal"])]
    if detail.get("prompt"):
        parts += [say(lang, "prompt"), data(detail["prompt"])]
    if isinstance(detail.get("verifies"), str):
        parts.append(say(lang, "verifies", task=one_line(detail["verifies"])))
    if detail.get("input") is not None:
        parts += [say(lang, "input"), data(detail["input"])]
    results = results_of(detail.get("results"))
    share = RESULTS_MAX_CHARS // max(1, len(results))
    for task, result in results:
        text, language = (result, "text") if isinstance(result, str) else (as_json(result), "json")
        left = len(text) - share
        shown = text[:share] + "\n" + say(lang, "cut_short", left=left) if left > 0 else text
        parts += [say(lang, "result", task=one_line(task)), fenced(shown, language)]
    if schema is not None:
        parts += [say(lang, "schema"), fenced(as_json(dict(schema)), "json")]
    sender = detail.get("from")
    name = sender if isinstance(sender, str) and sender else say(lang, "leader")
    body = envelope(lang, name, "task", message_id, "\n".join(parts))
    return message("user", body, message_id, message_source="system", visibility="chat", starts_work=True)


def results_of(results: Json) -> list[tuple[str, Json]]:
    """The results of dependencies as ``(task, value)``: from a mapping by task, or a list of objects with ``task``."""
    if isinstance(results, Mapping):
        return [(str(task), value) for task, value in results.items()]
    out: list[tuple[str, Json]] = []
    for at, item in enumerate(results if isinstance(results, list) else (), 1):
        named = isinstance(item, Mapping) and isinstance(item.get("task"), str)
        out.append((item["task"], item.get("result", item)) if named else (str(at), item))
    return out


def mail_message(mail: Mail, lang: Lang) -> Message:
    """A message from the mailbox; its author is the channel's."""
    extra: dict[str, Json] = {"agent_id": mail.sender_agent} if mail.sender_agent is not None else {}
    visibility = "compact" if mail.source == "sub_agent" else "chat"
    kind = mail.kind if mail.kind in ("task", "message", "completion report", "answer") else "message"
    body = envelope(lang, mail.sender, kind, mail.id, fenced(mail.text))
    return message(
        "user", body, mail.id, message_source=mail.source, visibility=visibility, starts_work=kind == "task", **extra
    )


def system_prompt(role: RoleFile, lang: Lang, base: str = "") -> Message:
    """The base prompt (by default the loop's text for the role's kind), then the role's own."""
    first = base or prompt(role.kind, fleet=True, lang=lang)
    return {"role": "system", "content": f"{first}\n\n# {role.name}\n\n{role.body}".rstrip()}


def tool_name(name: str) -> str:
    """A name that every endpoint accepts in the history."""
    return _TOOL_NAME.sub("_", name)[:64] or "unknown_tool"


def for_endpoint(messages: Sequence[Message]) -> list[Message]:
    """What is sent: our own keys left out."""
    sent = ("role", "content", "tool_calls", "tool_call_id")
    return [{key: each[key] for key in sent if key in each} for each in messages]


def tokens(text: str) -> int:
    """A careful estimate: a token for four ASCII characters, one for each other character."""
    ascii_only = len(text) if text.isascii() else sum(map(str.isascii, text))
    return ascii_only // 4 + len(text) - ascii_only + 1


def tokens_of(messages: Sequence[Message]) -> int:
    """The estimate for a whole request, tool calls included."""
    total = 0
    for each in messages:
        total += 4 + tokens(as_text(each.get("content") or ""))
        if each.get("tool_calls"):
            total += tokens(json.dumps(each["tool_calls"], ensure_ascii=False))
    return total
