"""How long the merge takes, and how it grows: N results of 2 KB and 2 N of them, in several shapes.

``python -m benchmarks.merge [--n 10000] [--shape NAME] [--json]``. Processor time of the pure merge alone (arbitration,
items, record; not the artifacts), each run once after one small warm-up. ``ok``: within the goals, 10,000 results in
under 3 s and twice the results in at most 2.3 times the time (the goals are those of the shape ``overlaps``).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Final

from coordinator.merge import Delivery, MergeInputs, Verdict, merge

SIZE: Final = 2_000
GOAL_S: Final = 3.0
GOAL_RATIO: Final = 2.3
GOAL_N: Final = 10_000

_random = random.Random(7)
WORDS: Final = ["".join(_random.choices("abcdefghijklmnopqrstuvwxyz", k=_random.randint(2, 9))) for _ in range(3_000)]
SIGNS: Final = [chr(0x4E00 + number) for number in range(3_000)]


def words(rng: random.Random, size: int = SIZE) -> str:
    """English-looking text."""
    return " ".join(rng.choices(WORDS, k=size // 5))[:size]


def signs(rng: random.Random, size: int = SIZE) -> str:
    """Chinese-looking text of about ``size`` bytes."""
    return "".join(rng.choices(SIGNS, k=size // 3))


def overlaps(rng: random.Random, n: int) -> list[str]:
    """What the goals are about: a third stands in another, a tenth is a copy, half of it Chinese."""
    out: list[str] = []
    while len(out) < n:
        text = (words if len(out) % 2 else signs)(rng, SIZE + 600)
        out += [text, text[100:900], words(rng), signs(rng)]
        if len(out) % 3 == 0:
            out += [text, text[: len(text) // 2]]
    return out[:n]


def distinct(rng: random.Random, n: int) -> list[str]:
    """Nothing in common."""
    return [words(rng) for _ in range(n)]


def copies(rng: random.Random, n: int) -> list[str]:
    """Few texts, many times each."""
    texts = [words(rng) for _ in range(max(1, n // 100))]
    return [rng.choice(texts) for _ in range(n)]


def common_start(rng: random.Random, n: int) -> list[str]:
    """All begin with the same 1,500 characters."""
    head = words(rng, 1_500)
    return [head + words(rng, SIZE - 1_500) for _ in range(n)]


def common_but_the_end(rng: random.Random, n: int) -> list[str]:
    """All the same but for a number at the very end, and of many lengths."""
    head = words(rng, SIZE)
    return [f"{head[: SIZE - rng.randint(1, 60)]}{number:05}." for number in range(n)]


def repetitive(rng: random.Random, n: int) -> list[str]:
    """The same two characters all along, with a number at the end, and of many lengths."""
    return [f"{'ab' * (SIZE // 2 - rng.randint(1, 60))}{number:05}." for number in range(n)]


def sentences(rng: random.Random, n: int) -> list[str]:
    """Made of a hundred sentences in any order."""
    pool = [words(rng, 100) for _ in range(100)]
    return [". ".join(rng.choices(pool, k=20)) for _ in range(n)]


def lines(rng: random.Random, n: int) -> list[str]:
    """Short results from a template, and long ones among them."""
    return [
        f"主机 10.0.{number // 250}.{number % 250} 端口 {rng.randint(1, 9999)} 开放" if number % 2 else words(rng)
        for number in range(n)
    ]


Shape = Callable[[random.Random, int], list[str]]
SHAPES: Final[dict[str, Shape]] = {
    shape.__name__: shape
    for shape in (overlaps, distinct, copies, common_start, common_but_the_end, repetitive, sentences, lines)
}


def inputs(shape: Shape, n: int) -> MergeInputs:
    """``n`` deliveries in that shape; every tenth has a verdict."""
    texts = shape(random.Random(11), n)
    deliveries = tuple(
        Delivery(f"T{number}", f"master_{number}", 1_719_600_000 + number, text, (number,), prefix=f"T{number}")
        for number, text in enumerate(texts)
    )
    verdicts = tuple(
        Verdict(f"T{number}", "confirmed" if number % 20 else "rejected", "verifier_1", 1_719_700_000, (n + number,))
        for number in range(0, n, 10)
    )
    return MergeInputs(deliveries, verdicts)


def measure(shape: Shape, n: int) -> tuple[float, int]:
    """(seconds of processor time, results kept)."""
    made = inputs(shape, n)
    gc.collect()
    begin = time.process_time()
    merged = merge(made)
    kept = len(merged.detail["source_tasks"]) and len(merged.merge_order)
    return time.process_time() - begin, kept


def run(n: int, names: list[str]) -> list[dict[str, object]]:
    """One row a shape."""
    rows: list[dict[str, object]] = []
    for name in names:
        shape = SHAPES[name]
        measure(shape, min(n, 200))
        once, kept = measure(shape, n)
        twice, _ = measure(shape, 2 * n)
        ratio = twice / once if once else 0.0
        row = {
            "shape": name, "n": n, "bytes": SIZE, "kept": kept, "seconds": round(once, 3),
            "seconds_twice": round(twice, 3), "ratio": round(ratio, 2),
        }  # fmt: skip
        if name == "overlaps" and n >= GOAL_N:
            row["ok"] = once * GOAL_N / n < GOAL_S and ratio <= GOAL_RATIO
        rows.append(row)
    return rows


def main() -> int:
    """0 where the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=GOAL_N)
    parser.add_argument("--shape", choices=sorted(SHAPES), action="append")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = run(given.n, given.shape or list(SHAPES))
    if given.json:
        print(json.dumps({"benchmark": "merge", "rows": rows}))
    else:
        print(f"{'shape':20} {'n':>7} {'kept':>7} {'s':>8} {'2n: s':>8} {'ratio':>6}")
        for row in rows:
            print(
                f"{row['shape']:20} {row['n']:7} {row['kept']:7} {row['seconds']:8} {row['seconds_twice']:8}"
                f" {row['ratio']:6}"
            )
    return 1 if any(row.get("ok") is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
