"""The marks that models put where JSON wants others: quotes, separators, brackets, white space, tags.

Only tables and patterns. Every pattern is linear: possessive, or bounded. What these marks mean depends on where they
stand; inside strings they are content and nothing here is ever applied to them.
"""

from __future__ import annotations

import re
from typing import Final

SHAPE: Final[dict[str, str]] = {
    "{": "{", "｛": "{", "}": "}", "｝": "}",
    "[": "[", "［": "[", "【": "[", "]": "]", "］": "]", "】": "]",
    ",": ",", "，": ",", "、": ",", "﹐": ",", ";": ",", "；": ",",
    ":": ":", "：": ":", "﹕": ":", "∶": ":",
}  # fmt: skip
"""Structural marks outside strings, with the ASCII mark that they stand for."""

_DOUBLE: Final = "“”„‟＂〝〞"
_SINGLE: Final = "‘’‚‛＇"
_CORNER: Final = "「」『』｢｣"

FAMILY: Final[dict[str, str]] = {
    '"': '"',
    "'": "'",
    **dict.fromkeys(_DOUBLE, _DOUBLE),
    **dict.fromkeys(_SINGLE, _SINGLE),
    **dict.fromkeys(_CORNER, _CORNER),
}
"""A mark that opens a string -> the marks that may close it. An ASCII quote is closed by its like only."""

MIXED: Final[dict[str, str]] = {
    mark: next(group for group in ('"' + _DOUBLE, "'" + _SINGLE, _CORNER) if mark in group) for mark in FAMILY
}
"""The same for texts that open with an ASCII quote and close with a typographic one, or the other way round."""

OPENING: Final = "“‘「『｢〝„‚"
CLOSING: Final = "”’」』｣〞"


def _body(closers: str) -> re.Pattern[str]:
    marks = re.escape(closers)
    return re.compile(rf"[^{marks}\\]*+(?:\\.[^{marks}\\]*+)*+", re.DOTALL)


BODY: Final[dict[str, re.Pattern[str]]] = {closers: _body(closers) for closers in {*FAMILY.values(), *MIXED.values()}}
"""From inside a string to the next mark that might close it (escaped ones are skipped), or to the end of the text."""


def _quoted(closers: str) -> str:
    marks = re.escape(closers)
    return rf"[{marks}][^{marks}\\\n]*+(?:\\.[^{marks}\\\n]*+)*+[{marks}]"


QUOTED: Final = re.compile("|".join(_quoted(closers) for closers in dict.fromkeys(FAMILY.values())))
"""A short string with no doubt in it, on one line: for looking ahead to a key."""

_COLOUR: Final = r"\x1b(?:\[[0-9;:?]*+[ -/]*+[@-~]|\][^\x07\x1b\n]{0,200}+(?:\x07|\x1b\\))"
_NOTHING: Final = r"\s\x00-\x20\x7f-\x9f\ufeff\u200b-\u200f\u2060\u2066-\u2069"
GAP: Final = re.compile(rf"(?:{_COLOUR}|[{_NOTHING}])*+")
"""What is nothing between two tokens: white space of any script, control characters, byte order marks, colour codes."""
COMMAS: Final = re.compile(rf"[,，、;；﹐{_NOTHING}]*+")
PLAIN_GAP: Final = re.compile(r"[ \t\r\n]*+")

_WS: Final = r"[ \t\r\n]*+"
_STR: Final = r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"'
_NUM: Final = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+"
_SCALAR: Final = rf"(?:{_STR}|{_NUM}|true|false|null)"
_MEMBER: Final = rf"{_STR}{_WS}:{_WS}{_SCALAR}{_WS}"
_FLAT_OBJECT: Final = rf"\{{{_WS}(?:{_MEMBER}(?:,{_WS}{_MEMBER})*+)?+\}}"
_FLAT_LIST: Final = rf"\[{_WS}(?:{_SCALAR}{_WS}(?:,{_WS}{_SCALAR}{_WS})*+)?+\]"
_VALUE: Final = rf"(?:{_SCALAR}|{_FLAT_OBJECT}|{_FLAT_LIST})"

STRICT_STRING: Final = re.compile(_STR)
NUMBER: Final = re.compile(_NUM)
CLEAN_MEMBERS: Final = re.compile(rf"(?:{_STR}{_WS}:{_WS}{_VALUE}{_WS},{_WS}(?={_STR}{_WS}:))++")
CLEAN_ITEMS: Final = re.compile(rf'(?:{_VALUE}{_WS},{_WS}(?=[-"\[{{0-9tfn]))++')
"""Stretches of members or items that are JSON by the letter: passed over at once, whatever is damaged around them."""

SCALAR_ITEM: Final = re.compile(
    r"(?:[-+]?[0-9.\uff10-\uff19]++(?:[eE][-+]?[0-9]++)?+|(?i:true|false|null|none|nan|-?infinity))(?!\w)"
)

_LIKE_STR: Final = rf"(?:{_STR}|'[^'\"\\\x00-\x1f]*+'|[“”][^“”\"\\\x00-\x1f]*+[“”])"
_LIKE_SCALAR: Final = rf"(?:{_LIKE_STR}|{_NUM}|true|false|null|True|False|None)"
_LIKE_KEY: Final = rf"(?:{_LIKE_STR}|[A-Za-z_][A-Za-z0-9_]*+)"
_LIKE_MEMBER: Final = rf"{_LIKE_KEY}{_WS}[:：]{_WS}{_LIKE_SCALAR}{_WS}"
_LIKE_OBJECT: Final = rf"\{{{_WS}(?:{_LIKE_MEMBER}(?:[,，]{_WS}{_LIKE_MEMBER})*+)?+\}}"
_LIKE_LIST: Final = rf"\[{_WS}(?:{_LIKE_SCALAR}{_WS}(?:[,，]{_WS}{_LIKE_SCALAR}{_WS})*+)?+\]"
_LIKE_VALUE: Final = rf"(?:{_LIKE_SCALAR}|{_LIKE_OBJECT}|{_LIKE_LIST})"
LIKELY_MEMBERS: Final = re.compile(
    rf"(?:{_LIKE_KEY}{_WS}[:：]{_WS}{_LIKE_VALUE}{_WS}[,，]{_WS}(?={_LIKE_KEY}{_WS}[:：])){{1,2000}}+"
)
LIKELY_ITEMS: Final = re.compile(rf"(?:{_LIKE_VALUE}{_WS}[,，]{_WS}(?=[-\"'“”\[{{0-9tfnTFN])){{1,2000}}+")
"""Stretches that would be JSON but for single or typographic quotes, bare keys, Python literals, full-width marks: no
doubt about them either. (In portions, so that mending one needs little memory.)"""
LIKELY_STRING: Final = re.compile(f"({_LIKE_STR})")
LIKELY_KEY: Final = re.compile(rf"([A-Za-z_][A-Za-z0-9_]*+)(?={_WS}[:：])")
LIKELY_WORD: Final = re.compile(r'(?<!["\w])(?:True|False|None)(?!["\w])')
NUMBERISH: Final = re.compile(r"[-+.0-9\uff10-\uff19\uff0e\uff0d\uff0b\u2212][-+.\w\uff10-\uff19\uff0e\uff0d\uff0b]*+")
WORD: Final = re.compile(r"[^\W\d][\w$.\-]*+")
KEY_WORD: Final = re.compile(r"[\w$@][\w$.\-]*+")

LITERALS: Final[dict[str, str]] = {"true": "true", "false": "false", "null": "null", "none": "null"}
NOT_FINITE: Final = re.compile(r"[-+]?(?:nan|inf|infinity)\Z", re.IGNORECASE)

_REASONING: Final = "think|thinking|thought|thoughts|reasoning|reflection|scratchpad|analysis|inner_monologue"
CANDIDATE: Final = re.compile(rf"[{{}}｛｝\[［◁]|<(?=[\s/a-zA-Z])(?=\s{{0,3}}/?\s{{0,3}}(?i:{_REASONING})\b)|<(?=\|)")
"""Where something may begin in prose: a value, or a tag of a reasoning block."""
TAG_OPEN: Final = re.compile(
    rf"<\s{{0,3}}(?i:({_REASONING}))(?:\s[^<>]{{0,200}}+)?>|◁(?:think|thinking)▷|\[THINK\]"
    r"|<\|begin_of_thought\|>|<\|channel\|>\s{0,3}(?:analysis|commentary)[^<]{0,200}<\|message\|>"
)
TAG_CLOSE: Final = re.compile(
    rf"<\s{{0,3}}/\s{{0,3}}(?i:{_REASONING})\s{{0,3}}>|◁/(?:think|thinking)▷|\[/THINK\]"
    r"|<\|end_of_thought\|>|<\|end\|>|<\|channel\|>\s{0,3}final[^<]{0,200}<\|message\|>"
)
LONE_CLOSE: Final = re.compile(rf"^[ \t]*+(?:</(?i:{_REASONING})>|◁/think▷|\[/THINK\])[ \t\r]*+$", re.MULTILINE)
"""The end of a reasoning block on a line of its own (its beginning may have been part of the prompt)."""

FENCE_BEFORE: Final = re.compile(r"(?:```|~~~)[\w+\-]{0,20}\s*\Z")
FENCE_AFTER: Final = re.compile(r"\s{0,100}(?:```|~~~|\Z)")
FENCED_STRING: Final = re.compile(rf"\s*+(?:(?:```|~~~)[\w+\-]{{0,20}})?+\s*+({_STR})\s*+(?:```|~~~)?+\s*+\Z")
"""The whole text is one JSON string, perhaps in a fence."""
NO_PROSE: Final = re.compile(rf"(?:```+|~~~+)[ \t]{{0,3}}[\w+\-]{{0,20}}|{_COLOUR}")
NESTED_OBJECT: Final = re.compile(r"[{｛]\s{0,100}[\"'“”‘’＂]")
BRACES: Final = re.compile(r"[{}｛｝]")
KEY_BEFORE: Final = re.compile(r"[\"'][ \t]{0,10}:\s{0,10}\Z")
"""A quoted key just before a value: the object round it has lost its beginning."""
ESCAPED: Final = re.compile(r'[{\[]\s{0,100}\\"')
BARE_QUOTE: Final = re.compile(r'(?<!\\)"')
