"""The envelope of a message that reaches an agent or stands in a session's conversation, in every language there is.

Guarantees: pure; what others wrote stands between fences that its own text can't close; the name in the first line
comes from the channel, never from the text, and neither it nor an id spans lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

Lang = Literal["en", "zh"]

WORDS: Final[Mapping[Lang, Mapping[str, str]]] = {
    "en": {
        "from": "From {name}: {kind}",
        "task": "task",
        "message": "message",
        "completion report": "completion report",
        "answer": "answer",
        "leader": "leader",
        "person": "person",
    },
    "zh": {
        "from": "来自 {name}：{kind}",
        "task": "任务",
        "message": "消息",
        "completion report": "完成报告",
        "answer": "答复",
        "leader": "领导者",
        "person": "用户",
    },
}
_RUN: Final = re.compile(r"`{3,}")
_LINE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def fenced(text: str, language: str = "text") -> str:
    """``text`` between fences longer than any of its own."""
    longest = max((len(run) for run in _RUN.findall(text)), default=2)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def one_line(text: str) -> str:
    """A name for the first line of an envelope: no control characters, no line ends, at most 128 characters."""
    return _LINE.sub(" ", text).strip()[:128] or "?"


def envelope(lang: Lang, sender: str, kind: str, message_id: str, body: str) -> str:
    """First line who and what, second the id, a blank line, the body (whose foreign parts are fenced already)."""
    words = WORDS[lang]
    return f"{words['from'].format(name=one_line(sender), kind=words[kind])}\nid: {one_line(message_id)}\n\n{body}"
