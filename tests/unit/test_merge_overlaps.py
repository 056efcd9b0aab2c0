"""Containment: the same answer as by comparing everything with everything, for texts of every kind."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.overlaps import Text, containers


def by_comparing_all(texts: list[Text]) -> dict[int, int]:
    preferred = sorted(range(len(texts)), key=lambda i: (not texts[i].sure, -len(texts[i].data), i))
    found: dict[int, int] = {}
    for part, text in enumerate(texts):
        for whole in preferred:
            if whole != part and text.data in texts[whole].data:
                found[part] = whole
                break
    return found


def of(texts: list[str], sure: tuple[int, ...] = ()) -> list[Text]:
    return [Text(text.encode(), number in sure) for number, text in enumerate(texts)]


def pieces(alphabet: str, longest: int, seed: int) -> list[Text]:
    """Distinct texts: windows of one text, some with an own end or start, and random ones."""
    rng = random.Random(seed)
    pool = "".join(rng.choices(alphabet, k=3 * longest))
    texts: set[str] = set()
    for number in range(40):
        start, size = rng.randrange(len(pool)), rng.randint(1, longest)
        kind = number % 4
        text = pool[start : start + size] if kind < 3 else "".join(rng.choices(alphabet, k=size))
        texts.add(str(number) + text if kind == 1 else text + str(number) if kind == 2 else text)
    return [Text(text.encode(), rng.random() < 0.3) for text in sorted(texts)]


@pytest.mark.parametrize("alphabet", ["a", "ab", "abcdefghij ", "甲乙", "通过未结论端口开放关闭"])
@pytest.mark.parametrize("longest", [3, 8, 25, 80, 250, 900])
def test_the_same_as_comparing_everything(alphabet, longest):
    for seed in range(2):
        texts = pieces(alphabet, longest, seed)
        assert containers(texts) == by_comparing_all(texts)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(alphabet="ab甲\n", min_size=1, max_size=30), unique=True, max_size=20), st.randoms())
def test_any_texts(texts, rng):
    listed = [Text(text.encode(), rng.random() < 0.5) for text in texts]
    assert containers(listed) == by_comparing_all(listed)


def test_a_sure_container_goes_before_a_longer_one():
    texts = of(["乙", "甲乙丙丁戊", "甲乙丙"], sure=(2,))
    assert containers(texts) == {0: 2, 2: 1}


def test_the_longest_of_several_and_of_these_the_first():
    assert containers(of(["b", "abc", "xbx", "ab"])) == {0: 1, 3: 1}


def test_a_long_common_start_hides_nothing():
    head = "同一段很长的开头。" * 200
    texts = of([*(f"{head}{n}号" for n in range(1_000, 1_300)), f"{head}1234号，另有说明", "1250号", "1400号"])
    assert containers(texts) == {234: 300, 301: 250}


def test_repetitive_texts_collapse_into_the_longest():
    texts = of(["a" * size for size in range(1, 700)])
    assert containers(texts) == {number: len(texts) - 1 for number in range(len(texts) - 1)}


def test_repetitive_texts_with_an_own_end_stay():
    texts = of([f"{'ab' * (900 - n % 40)}{n:05}." for n in range(200)])
    assert containers(texts) == by_comparing_all(texts) == {}


def test_short_texts_among_many_long_ones():
    rng = random.Random(5)
    long_ones = ["".join(rng.choices("0123456789abcdef", k=2_000)) for _ in range(40)]
    short = [f"{n:0{size}x}" for size in (1, 2, 3, 4, 5, 9) for n in range(0, 16 ** min(size, 3), 7)]
    texts = of([*long_ones, *dict.fromkeys(short)])
    assert containers(texts) == by_comparing_all(texts)


def test_nothing_and_one():
    assert containers([]) == {}
    assert containers(of(["x"])) == {}
