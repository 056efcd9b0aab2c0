"""The shared cases of task graphs: refused before anything runs, or run to their end in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator import planfile
from protocol.errors import PlanRefused
from tests.memory import Play, graph

CASES = [json.loads(line) for line in (Path(__file__).parent / "data/cases/dag.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    edges: dict[str, list[str]] = given["depends_on"]
    root = graph(edges)
    if expect.get("refused"):
        with pytest.raises(PlanRefused) as refused:
            planfile.check(root["plan"])
        assert set(expect["names"]) <= set(refused.value.tasks)
        assert all(repr(name) in str(refused.value) or name in str(refused.value) for name in expect["names"])
        assert not set(expect.get("not_named", ())) & set(refused.value.tasks)
        play = Play(root)  # a session that was started all the same ends at once, with the reason
        finish = play.to_end()
        assert finish.detail["status"] == "failed"
        assert play.runs == expect["executed"] == []
        return
    play = Play(root)
    play.fail = {**dict.fromkeys(given.get("fail", ()), -1), **given.get("fail_first", {})}
    finish = play.to_end()
    done = [t for t in play.runs if play.view.state(t) == "completed"]
    for task, needs in edges.items():
        if task in done:
            assert all(done.index(n) < done.index(task) for n in needs)
    if "executed" in expect:
        assert play.runs == expect["executed"]
        assert finish.detail["status"] == "completed"
    for task, count in expect.get("runs", {}).items():
        assert play.counted()[task] == count
    missing = {m["task"]: m for m in finish.detail["missing"]}
    for task, words in expect.get("final", {}).items():
        if words.startswith("completed"):
            assert play.view.state(task) == "completed"
            assert task not in missing
        elif words.startswith("not run, cause "):
            assert play.view.state(task) == "pending"
            assert missing[task]["cause"] == words.removeprefix("not run, cause ")
            assert task not in play.runs
        else:
            assert missing[task]["reason"].startswith(("failed", "blocked"))
    if given.get("fail_first"):
        assert play.counted()["a"] == 2
