"""What the stand-in says: a deterministic account of the data between the fences of a prompt.

Guarantees: pure; every number and name in the answer comes from the request. Where a schema asks for a judgement, the
most careful word of its list is taken (``partial``, ``unknown``, ``false``); lists are copied from the input or empty.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from workers.words import WORDS

Json = Any

_FENCE: Final = re.compile(r"^(`{3,})(\w*)\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)
_CJK: Final = re.compile(r"[\u4e00-\u9fff]")
_ASKED: Final = frozenset(WORDS[lang][key].rstrip(":：") for lang in ("en", "zh") for key in ("goal", "prompt"))
"""Headings of what is wanted: it is worded only where nothing else is there."""
GROUPS: Final = ("severity", "level", "rule", "found_by", "verdict", "status", "kind", "file")
"""Keys by which lists of objects are counted, in this order, where they are there."""
CAREFUL: Final = ("partial", "unknown", "unverified", "none", "other", "low", "info")
MOST: Final = 5
TEXT_HEAD: Final = 200

_EN: Final[Mapping[str, str]] = {
    "label": "[offline stand-in: worded by code from the input below; no model has judged it]",
    "nothing": "The request holds no data to word.",
    "list": "{name}: {n} entries",
    "by": "by {key}: {counts}",
    "object": "{name}: {fields}",
    "text": "{name}: {text}",
    "items": "{n} entries",
    "cannot": "the offline stand-in can't judge; a person or a model has to",
    "input": "input",
    "more": "{n} more",
}
_ZH: Final[Mapping[str, str]] = {
    "label": "[离线替身：由代码根据下列输入措辞，没有模型做过判断]",
    "nothing": "请求中没有可以措辞的数据。",
    "list": "{name}：{n} 条",
    "by": "按 {key}：{counts}",
    "object": "{name}：{fields}",
    "text": "{name}：{text}",
    "items": "{n} 条",
    "cannot": "离线替身无法判断，需要人或模型来做",
    "input": "输入",
    "more": "另有 {n} 项",
}


def answer(messages: Sequence[Mapping[str, Json]], schema: Mapping[str, Json] | None = None) -> str:
    """The whole answer to a request: text, or one JSON object of the shape asked for."""
    asked = [str(each.get("content") or "") for each in messages if each.get("role") in ("user", "tool")]
    words = _ZH if _CJK.search(asked[0] if asked else "") else _EN
    blocks = list(_blocks(asked[-1:] if len(asked) == 1 else asked))
    found = [(name, value) for name, value in blocks if not _is_schema(value)]
    text = _account(found, words)
    if schema is None:
        return text
    return json.dumps(_shaped(schema, "", text, dict(_lists(found)), words), ensure_ascii=False)


def _blocks(texts: Sequence[str]) -> Iterator[tuple[str, Json]]:
    """The fenced blocks of a prompt with the heading above each, JSON where it says so."""
    for text in texts:
        for found in _FENCE.finditer(text):
            above = text[: found.start()].rstrip("\n").rsplit("\n", 1)[-1].strip().rstrip(":：")
            body = found.group(3)
            if found.group(2) == "json":
                try:
                    yield above, json.loads(body)
                    continue
                except ValueError:
                    pass
            yield above, body


def _is_schema(value: Json) -> bool:
    return isinstance(value, dict) and "properties" in value and value.get("type") == "object"


def _account(blocks: Sequence[tuple[str, Json]], words: Mapping[str, str]) -> str:
    lines: list[str] = []
    for name, value in [block for block in blocks if block[0] not in _ASKED] or blocks:
        lines += _lines(name or words["input"], value, words, 0)
    return "\n".join([words["label"], "", *(lines or [words["nothing"]])])


def _lines(name: str, value: Json, words: Mapping[str, str], depth: int) -> list[str]:
    indent = "  " * depth + "- "
    if isinstance(value, list):
        lines = [indent + words["list"].format(name=name, n=len(value))]
        texts = [" ".join(each.split()) for each in value if isinstance(each, str)]
        lines += ["  " * (depth + 1) + "- " + text[:TEXT_HEAD] for text in texts[: 2 * MOST]]
        objects = [each for each in value if isinstance(each, dict)]
        for key in GROUPS:
            counts = _counts(objects, key)
            if counts:
                lines.append("  " * (depth + 1) + "- " + words["by"].format(key=key, counts=_joined(counts, words)))
        return lines
    if isinstance(value, dict):
        lines = [indent + words["object"].format(name=name, fields=_fields(value))]
        for key, inner in value.items():
            if isinstance(inner, list | dict) and inner and depth < 3:
                lines += _lines(key, inner, words, depth + 1)
        return lines
    flat = " ".join(str(value).split())
    return [indent + words["text"].format(name=name, text=flat[:TEXT_HEAD] + ("…" if len(flat) > TEXT_HEAD else ""))]


def _counts(objects: Sequence[Mapping[str, Json]], key: str) -> list[tuple[str, int]]:
    """How often each value of ``key`` occurs, most frequent first, then by name."""
    counted: Counter[str] = Counter()
    for each in objects:
        value = each.get(key)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str | int) and not isinstance(one, bool):
                counted[str(one)] += 1
    return sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))


def _joined(counts: Sequence[tuple[str, int]], words: Mapping[str, str]) -> str:
    shown = [f"{name} {n}" for name, n in counts[:MOST]]
    if len(counts) > MOST:
        shown.append(words["more"].format(n=len(counts) - MOST))
    return ", ".join(shown)


def _fields(value: Mapping[str, Json]) -> str:
    plain = [f"{key} = {each}" for key, each in value.items() if isinstance(each, str | int | float | bool)]
    return ", ".join(part[:TEXT_HEAD] for part in plain[:12]) or ", ".join(map(str, list(value)[:12]))


def _lists(blocks: Sequence[tuple[str, Json]]) -> Iterator[tuple[str, list[Json]]]:
    """Every list of the input by its name: what an answer of that name may repeat."""
    stack: list[tuple[str, Json]] = list(reversed(blocks))
    while stack:
        name, value = stack.pop()
        if isinstance(value, list):
            yield name, value
        elif isinstance(value, dict):
            stack += reversed(list(value.items()))


def _shaped(
    schema: Mapping[str, Json], name: str, text: str, lists: Mapping[str, list[Json]], words: Mapping[str, str]
) -> Json:
    """A value of the shape asked for that says nothing of its own."""
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        options: list[Json] = schema["enum"]
        return next((word for word in CAREFUL if word in options), options[-1])
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), list) and schema[word]:
            return _shaped(schema[word][0], name, text, lists, words)
    kinds = schema.get("type")
    kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
    if kind == "object" or "properties" in schema:
        properties: Mapping[str, Json] = schema.get("properties") or {}
        required = schema.get("required")
        wanted = required if isinstance(required, list) and required else list(properties)
        return {key: _shaped(properties.get(key) or {}, key, text, lists, words) for key in wanted}
    if kind == "array":
        if name in lists and not schema.get("maxItems"):
            return lists[name]
        item: Mapping[str, Json] = schema.get("items") or {}
        single = words["cannot"] if item.get("type", "string") == "string" else text
        return [_shaped(item, name, single, lists, words) for _ in range(int(schema.get("minItems") or 0))]
    if kind in ("integer", "number"):
        return schema.get("minimum", 0)
    if kind == "boolean":
        return False
    if kind == "null":
        return None
    most = schema.get("maxLength")
    return text[:most] if isinstance(most, int) else text
