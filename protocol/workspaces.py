"""Workspaces: the areas of a space, who may read and write them, and what a path in them may be.

Guarantees: a ``Place`` that exists is inside its area: relative, NFC, no ``..``, no absolute part, no link can be named
that leaves it; nobody but its agent writes into a private workspace. The stores hold to the same table (the contract
suite compares them). Pure: never touches a file or a key.

=================  ==============  ==============  ===========  ============
area               master          verifier        manager      person
=================  ==============  ==============  ===========  ============
private            own: rw         own: rw         -            r
summaries          -               -               rw           r
shared             r               r               r            rw
queue              rw              r               r            rw
=================  ==============  ==============  ===========  ============
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from protocol.errors import Refused
from protocol.record import Record, is_name

Area = Literal["private", "summaries", "shared", "queue"]
Act = Literal["read", "write"]
AREAS: Final[tuple[Area, ...]] = ("private", "summaries", "shared", "queue")
KINDS: Final = ("master", "verifier", "manager", "person")
WRITERS: Final[Mapping[str, frozenset[str]]] = {
    "private": frozenset({"master", "verifier"}),
    "summaries": frozenset({"manager"}),
    "shared": frozenset({"person"}),
    "queue": frozenset({"master", "person"}),
}
READERS: Final[Mapping[str, frozenset[str]]] = {
    "private": frozenset({"master", "verifier", "person"}),
    "summaries": frozenset({"manager", "person"}),
    "shared": frozenset(KINDS),
    "queue": frozenset(KINDS),
}

PATH_MAX: Final = 500
PART_MAX_BYTES: Final = 200
FILE_MAX_BYTES: Final = 262_144
"""Areas hold small files; what is larger is an artifact."""
TEMPORARY: Final = ".~"
"""A file store's unfinished files begin with this: no path may."""
REASON: Final = "foreign_workspace"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in an area. ``agent`` is set in ``private`` alone; ``path`` is empty for the area (or workspace)."""

    area: Area
    agent: str = ""
    path: str = ""

    @property
    def inside(self) -> str:
        """The path below the area: of a private workspace with its agent first."""
        return "/".join(filter(None, (self.agent, self.path)))

    def __str__(self) -> str:
        return "/".join(filter(None, (self.area, self.agent, self.path)))


def parse_place(text: str) -> Place:
    """The place that ``AREA/PATH`` names. Raises Refused (``foreign_workspace``) for a path that could leave it."""
    area, _, rest = unicodedata.normalize("NFC", text).partition("/")
    known = next((name for name in AREAS if name == area), None)
    if known is None:
        raise _refused(text, f"{area!r} is no area: private/AGENT/…, summaries/…, shared/…, queue")
    if known == "queue":
        if rest:
            raise _refused(text, "the queue holds no files")
        return Place(known)
    if known == "private":
        agent, slash, rest = rest.partition("/")
        if not is_name(agent):
            raise _refused(text, f"{agent!r} can't be an agent's name: 1 to 64 of A-Z a-z 0-9 _ -")
        return Place(known, agent, _path(rest, text) if slash and rest else "")
    return Place(known, "", _path(rest, text) if rest else "")


def _path(path: str, whole: str) -> str:
    if len(path) > PATH_MAX:
        raise _refused(whole, f"a path of {len(path)} characters: at most {PATH_MAX}")
    for part in path.split("/"):
        why = _wrong(part)
        if why:
            raise _refused(whole, why)
    return path


def _wrong(part: str) -> str:
    """Why a part of a path may not be; '' where it may."""
    if not part:
        return "an absolute path, or an empty part"
    if part in (".", ".."):
        return f"the part {part!r} leaves its place"
    if part.startswith(TEMPORARY):
        return f"{part!r}: names that begin with {TEMPORARY!r} are the store's own"
    if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in "\\\x7f" for char in part):
        return f"the part {part!r} has control characters or a backslash"
    if len(part.encode()) > PART_MAX_BYTES:
        return f"a name of {len(part.encode())} bytes: at most {PART_MAX_BYTES}"
    return ""


def _refused(text: str, why: str) -> Refused:
    return Refused(
        f"workspace {text!r}: {why}", reason=REASON, path="workspace", mend="give AREA/PATH, relative and without '..'"
    )


def kind_of(who: str) -> str:
    """An agent's kind by its name, where no role says more: ``<kind>_<task>_<node>``, else master."""
    first = who.replace("-", "_").split("_")[0]
    return first if first in KINDS else "master"


def refusal(place: Place, who: str, kind: str, act: Act = "write") -> str | None:
    """Why ``who`` may not do it; None where it may."""
    if act == "write":
        return refused_mark(f"{place.area}|{place.agent}|{kind}", who)
    if place.area == "private" and place.agent != who and kind != "person":
        return f"{who!r} read from the private workspace of {place.agent!r}"
    if kind not in READERS[place.area]:
        return f"a {kind} can't read {place.area!r}"
    return None


def mark_of(record: Record) -> str:
    """``area|agent|kind of the writer`` of a record that writes to an area, '' of any other. A path that could leave
    its area makes a mark that nobody may write to."""
    named = record.detail.get("workspace")
    if not isinstance(named, dict):
        return ""
    area, path = named.get("area"), named.get("path")
    text = "/".join(part for part in (area, path) if isinstance(part, str) and part)
    try:
        place = parse_place(text)
    except Refused:
        shown = repr(text.replace("|", " ")[:200]).strip("'\"")
        return f"{shown}||{kind_of(record.who)}"
    return f"{place.area}|{place.agent}|{kind_of(record.who)}"


def refused_mark(mark: str, who: str) -> str | None:
    """Why ``who`` may not write where ``mark`` says; None where it may, or where nothing is written."""
    if not mark:
        return None
    area, agent, kind = mark.split("|")
    if area == "private" and agent != who:
        return f"{who!r} wrote into the private workspace of {agent!r}"
    if kind not in WRITERS.get(area, ()):
        return f"a {kind} can't write to {area!r}"
    return None
