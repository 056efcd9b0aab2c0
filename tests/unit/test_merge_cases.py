"""The shared cases of the merge: every one, in every order of its input."""

from __future__ import annotations

import json
from itertools import islice, permutations, product
from pathlib import Path

import pytest

from coordinator.merge import merge
from coordinator.mergeinputs import from_deliveries_file
from protocol.record import Json

CASES = [
    json.loads(row)
    for row in (Path(__file__).parent / "data" / "cases" / "merge.jsonl").read_text(encoding="utf-8").splitlines()
]
ORDERS = 24


def plain(given: Json) -> Json:
    return merge(from_deliveries_file(given)).plain()


def orders(given: Json) -> list[Json]:
    """The input in up to 24 orders of its two lists."""
    both = product(permutations(given["deliveries"]), permutations(given["verdicts"]))
    return [{"deliveries": list(d), "verdicts": list(v)} for d, v in islice(both, ORDERS)]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_shared_case(case):
    found, expect = plain(case["input"]), dict(case["expect"])
    expect.pop("scored", None)
    checked = 0
    for name in ("kept", "deduped_from", "overlaps", "empty"):
        if name in expect:
            assert found[name] == expect[name]
            checked += 1
    for entry in expect.get("conflicts", []):
        assert any(entry.items() <= listed.items() for listed in found["conflicts"]), (entry, found["conflicts"])
        checked += 1
    if expect.get("conflicts") == []:
        assert found["conflicts"] == []
    if "kept_exactly_one_of" in expect:
        assert len(set(found["kept"]) & set(expect["kept_exactly_one_of"])) == len(found["kept"]) == 1
        checked += 1
    for task in expect.get("not_kept", []):
        assert task not in found["kept"]
        checked += 1
    if "status_not" in expect:
        assert found["status"] != expect["status_not"]
        checked += 1
    for task in expect.get("listed_somewhere", []):
        assert json.dumps(task) in json.dumps(found)
        checked += 1
    assert checked, "a case that checks nothing"


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_order_of_the_input_does_not_matter(case):
    first = merge(from_deliveries_file(case["input"]))
    for given in orders(case["input"]):
        again = merge(from_deliveries_file(given))
        assert again.plain() == first.plain()
        assert (again.merge_id, again.detail, again.artifact) == (first.merge_id, first.detail, first.artifact)
        assert again.markdown == first.markdown


def test_all_cases_are_here():
    assert len(CASES) == 19
    assert {case["id"].split(".")[0] for case in CASES} == {"MG-01", "MG-02", "MG-03", "MG-04"}
