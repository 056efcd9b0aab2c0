"""Which texts stand whole in which others, in time that grows about linearly with the text.

Guarantees: exact: every text that stands in another one is found, whatever the texts are, and of several that contain
it the same one is named for every order of the input. Pure. Each text is cut once a scale; a text is compared only with
places that share an anchor with it, the rarest of those looked at. Only texts of which every part is frequent in texts
that do not contain them cost more: one comparison a place.

How: of every text the grams at each ``step``-th place are noted. A text that stands in another one at any offset has,
for one of ``step`` neighbouring offsets, its gram there on the other's grid; so ``step`` look-ups find every place
where it can stand. Coarse scales serve long texts, fine ones short texts and those whose difference lies at the edge.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

SAMPLE_BYTES: Final = 4_000_000
"""How much text is looked at to tell rare grams from frequent ones; which are chosen changes the cost alone."""
FEW_PLACES: Final = 128
"""So many comparisons are cheaper than to look for a rarer anchor."""
BATCH_BYTES: Final = 1_000_000
"""Of single grams the places are noted in growing parts, best containers first: what is frequent is found early."""
EDGE: Final = 64
"""How far from a long text's ends a single gram is looked for: as far as the coarse scales can't see."""
_SHIFT: Final = 40
_PLACE: Final = (1 << _SHIFT) - 1
_UNSURE: Final = -1


@dataclass(frozen=True, slots=True)
class Text:
    """A text as UTF-8 (one stands in another exactly where its bytes do). ``sure``: preferred as a container."""

    data: bytes
    sure: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Grams of ``size`` bytes at every ``step``-th place."""

    step: int
    size: int

    @property
    def least(self) -> int:
        """The shortest text that this scale can find."""
        return self.step + self.size - 1

    def gram(self, data: bytes, place: int) -> int:
        """The gram at a place. Two grams may share a number; what they point at is compared in full."""
        cut = data[place : place + self.size]
        return int(memoryview(cut).cast(_CODES[self.size])[0]) if self.step == 1 else hash(cut)

    def grid(self, data: bytes) -> Iterator[tuple[int, Iterable[int], int]]:
        """The grams on the grid of ``data``: (first place, grams, distance of their places)."""
        if self.step > 1:
            size = self.size
            yield 0, [hash(data[at : at + size]) for at in range(0, len(data) - size + 1, self.step)], self.step
            return
        for shift in range(self.size):
            whole = (len(data) - shift) // self.size * self.size
            if whole > 0:
                yield shift, memoryview(data)[shift : shift + whole].cast(_CODES[self.size]), self.size


_CODES: Final[dict[int, Literal["Q", "I"]]] = {8: "Q", 4: "I"}
WIDE, COARSE, MIDDLE, FINE, SHORT = Scale(64, 512), Scale(64, 128), Scale(8, 24), Scale(1, 8), Scale(1, 4)
TRIED: Final = ((WIDE.least, (COARSE, WIDE, FINE)), (COARSE.least, (COARSE, FINE)), (MIDDLE.least, (MIDDLE, FINE)),
                (FINE.least, (FINE,)), (SHORT.least, (SHORT,)))  # fmt: skip
"""From a text's length to the scales that can serve it; the first one does, unless its anchor is too frequent."""


def containers(texts: Sequence[Text]) -> dict[int, int]:
    """Text -> the text that it stands in, both by their place in ``texts``; those that stand in none are left out.

    Of several the one named is sure before unsure, then the longest, then the first in ``texts``. The texts differ from
    one another, and none is empty.
    """
    ranked = sorted(range(len(texts)), key=lambda i: (not texts[i].sure, -len(texts[i].data), i))
    field = _Field([texts[i].data for i in ranked], sum(text.sure for text in texts))
    found = _tiny(field)
    hard: dict[int, dict[Scale, Anchor]] = {}
    for scale, ranks in _served(field).items():
        anchors = _anchors(field, scale, ranks)
        here, left = _look(field, scale, anchors, FEW_PLACES)
        found |= here
        hard |= {rank: {scale: anchors[rank]} for rank in left}
    for scale in (WIDE, FINE):
        able = [rank for rank in hard if scale in _scales(len(field.texts[rank]))]
        for rank, anchor in _anchors(field, scale, able).items() if able else ():
            hard[rank][scale] = anchor
    rarest: dict[Scale, dict[int, Anchor]] = {}
    for rank, choices in hard.items():
        scale = min(choices, key=lambda tried: choices[tried])
        rarest.setdefault(scale, {})[rank] = choices[scale]
    for scale, anchors in rarest.items():
        found |= _look(field, scale, anchors)[0]
    return {ranked[part]: ranked[whole] for part, whole in found.items()}


class _Field:
    """The texts by preference: the sure ones, then the others, each kind longest first. ``rank``: place in it."""

    def __init__(self, texts: list[bytes], sure: int) -> None:
        self.texts = texts
        self.sure = sure
        self._shorter = [-len(text) for text in texts]

    def bounds(self, length: int) -> tuple[int, int]:
        """Ranks that end the sure and the other texts that are longer than ``length``."""
        return (
            bisect_left(self._shorter, -length, 0, self.sure),
            bisect_left(self._shorter, -length, self.sure, len(self.texts)),
        )

    def batches(self, size: int | None) -> Iterator[tuple[int, int]]:
        """Ranks from and to, in order: about ``size`` bytes, then twice as many, and so on; None: all at once."""
        low = 0
        while low < len(self.texts):
            high, room = (low, size) if size else (len(self.texts), 0)
            while high < len(self.texts) and room > 0:
                room -= len(self.texts[high])
                high += 1
            yield low, high
            low, size = high, size and size * 2

    def count(self, scale: Scale, asked: set[int] | None = None) -> dict[int, int]:
        """How often grams (those asked for) stand on the grids of a sample, spread evenly over all texts."""
        stride = max(1, -(-sum(map(len, self.texts)) // SAMPLE_BYTES))
        seen: Counter[int] = Counter()
        for text in self.texts[::stride]:
            for _, grams, _ in scale.grid(text):
                seen.update(grams if asked is None else filter(asked.__contains__, grams))
        return seen


Anchor = tuple[int, int]
"""(how often its grams were seen in the sample, where in the text its look-ups start)"""


def _scales(length: int) -> tuple[Scale, ...]:
    return next((scales for least, scales in TRIED if length >= least), ())


def _served(field: _Field) -> dict[Scale, list[int]]:
    """The scale that looks first, for each text that is shorter than some other one."""
    out: dict[Scale, list[int]] = {}
    for rank, text in enumerate(field.texts):
        until_sure, until = field.bounds(len(text))
        if (until_sure or until > field.sure) and (scales := _scales(len(text))):
            out.setdefault(scales[0], []).append(rank)
    return out


def _anchors(field: _Field, scale: Scale, ranks: Iterable[int]) -> dict[int, Anchor]:
    """An anchor for each of the texts, of those looked at the rarest."""
    texts = {rank: field.texts[rank] for rank in ranks}
    if scale.step > 1:
        seen = field.count(scale)
        return {rank: _window(scale, text, seen) for rank, text in texts.items()}
    asked: set[int] = set()
    for text in texts.values():
        for _, part in _edges(scale, text):
            asked.update(*(grams for _, grams, _ in scale.grid(part)))
    seen = field.count(scale, asked)
    return {rank: _rarest(scale, text, seen) for rank, text in texts.items()}


def _edges(scale: Scale, text: bytes) -> list[tuple[int, bytes]]:
    """Where a single gram is looked for, (place, part): anywhere in a short text, near the ends of a long one (what is
    rare inside a long text, a coarse scale finds)."""
    room = EDGE + scale.size - 1
    return [(0, text)] if len(text) < 4 * room else [(0, text[:room]), (len(text) - room, text[-room:])]


def _rarest(scale: Scale, text: bytes, seen: dict[int, int]) -> Anchor:
    best: Anchor | None = None
    for start, part in _edges(scale, text):
        for first, grams, apart in scale.grid(part):
            for number, times in enumerate(map(seen.get, grams)):
                if best is None or (times or 0) < best[0]:
                    best = times or 0, start + first + number * apart
                    if not times:
                        return best
    assert best is not None, "a text has at least one gram of a scale that serves it"
    return best


def _window(scale: Scale, text: bytes, seen: dict[int, int]) -> Anchor:
    """``step`` neighbouring offsets whose grams all cover what is rare in the text, where its own grid shows it."""
    step, size, times = scale.step, scale.size, seen.get
    own = [times(hash(text[at : at + size]), 0) for at in range(0, len(text) - size + 1, step)]
    # Where two neighbours on the grid are rare, every offset from the first on covers what makes them so.
    pairs = [one + two for one, two in pairwise(own)] or own
    at = min(pairs.index(min(pairs)) * step, len(text) - size - step + 1)
    return sum([times(hash(text[o : o + size]), 0) for o in range(at, at + step)]), at


def _look(
    field: _Field, scale: Scale, anchors: dict[int, Anchor], most: int | None = None
) -> tuple[dict[int, int], list[int]]:
    """The container of each text that has one, and the texts for which ``most`` comparisons did not tell."""
    found: dict[int, int] = {}
    unsure: list[int] = []
    shortest = min(len(field.texts[rank]) for rank in anchors)
    left = dict(anchors)
    for low, high in field.batches(BATCH_BYTES if scale.step == 1 else None):
        places = _places(field, scale, left, range(low, high), shortest)
        for rank in list(left) if places else ():
            whole = _first(field, scale, rank, left[rank][1], places, most)
            if whole == _UNSURE:
                unsure.append(rank)
            elif whole is not None:
                found[rank] = whole
            if whole is not None:
                del left[rank]
    return found, unsure


def _places(
    field: _Field, scale: Scale, anchors: dict[int, Anchor], ranks: range, shortest: int
) -> dict[int, list[int]]:
    """Gram -> where it stands on the grids of ``ranks``, in their order; of the grams that the anchors look up."""
    wanted = {
        scale.gram(field.texts[rank], at)
        for rank, (_, start) in anchors.items()
        for at in range(start, start + scale.step)
    }
    places: dict[int, list[int]] = {}
    for rank in ranks:
        text = field.texts[rank]
        for first, grams, apart in scale.grid(text) if len(text) > shortest else ():
            if wanted.isdisjoint(grams):
                continue
            for number, gram in enumerate(grams):
                if gram in wanted:
                    places.setdefault(gram, []).append(rank << _SHIFT | first + number * apart)
    return places


def _first(
    field: _Field, scale: Scale, rank: int, start: int, places: dict[int, list[int]], most: int | None
) -> int | None:
    """The first rank whose text contains that of ``rank``; ``_UNSURE`` after more than ``most`` comparisons."""
    part = field.texts[rank]
    until_sure, until = field.bounds(len(part))
    best: int | None = None
    compared = 0
    for at in range(start, start + scale.step):
        known = places.get(scale.gram(part, at))
        if known is None:
            continue
        for low, end in ((0, until_sure), (field.sure, until)):
            high = end if best is None else min(end, best)
            if low >= high:
                continue
            for number in range(bisect_left(known, low << _SHIFT), len(known)):
                whole, place = known[number] >> _SHIFT, known[number] & _PLACE
                if whole >= high:
                    break
                if place >= at and field.texts[whole].startswith(part, place - at):
                    best = whole
                    break
                compared += 1
                if compared == most:
                    return _UNSURE
    return best


def _tiny(field: _Field) -> dict[int, int]:
    """Texts of one to three bytes: too short for an anchor, but there are few of them."""
    parts: dict[int, dict[bytes, int]] = {}
    for rank, text in enumerate(field.texts):
        if len(text) < SHORT.least:
            parts.setdefault(len(text), {})[text] = rank
    found: dict[int, int] = {}
    for length, left in parts.items():
        for rank, text in enumerate(field.texts):
            if len(text) <= length:
                continue
            if not left:
                break
            here = [part for part in left if part in text] if len(left) < length * len(text) // 16 else (
                left.keys() & {text[at : at + length] for at in range(len(text) - length + 1)}
            )  # fmt: skip
            for part in here:
                found[left.pop(part)] = rank
    return found
