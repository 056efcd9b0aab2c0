"""Plans: read from YAML and JSON, what is wrong with them named by task, and nothing lost on the way."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator import planfile
from coordinator.planfile import PlanTask
from protocol.errors import PlanRefused

YAML = """
goal: 审查这个仓库
guards: {dispatches: 20}
models: {reviewer: small}
tasks:
  - id: scan
    role: scanner
    prompt: |
      看一遍 src
    input: {path: src}
    merge_key: [file, line]
    verify: checker
  - id: report
    role: writer
    depends_on: scan
    priority: 5
    input: {found: {$result: scan, path: items}}
"""


def refused(data: Any, **more: Any) -> PlanRefused:
    with pytest.raises(PlanRefused) as caught:
        planfile.check(data, **more)
    return caught.value


def tasks(*listed: dict[str, Any]) -> dict[str, Any]:
    return {"tasks": [{"role": "stub", **t} for t in listed]}


def test_yaml_and_json_give_the_same_plan() -> None:
    plan = planfile.read(YAML)
    assert planfile.read(json.dumps(planfile.parse(YAML))) == plan
    assert plan.goal == "审查这个仓库"
    assert plan.guards == {"dispatches": 20}
    assert plan.models == {"reviewer": "small"}
    assert [t.id for t in plan.tasks] == ["scan", "scan.verify", "report"]
    assert plan.tasks[0].prompt == "看一遍 src\n"
    assert plan.tasks[0].merge_key == ("file", "line")
    assert plan.tasks[2].depends_on == ("scan",)
    assert plan.roles == {"scanner": ["scan"], "checker": ["scan.verify"], "writer": ["report"]}


def test_a_verifier_comes_behind_its_task_and_depends_on_it() -> None:
    verifier = planfile.read(YAML).tasks[1]
    assert (verifier.role, verifier.verifies, verifier.parent, verifier.depends_on) == (
        "checker",
        "scan",
        "scan",
        ("scan",),
    )


def test_a_task_may_wait_for_a_verdict() -> None:
    plan = planfile.check(tasks({"id": "a", "verify": "checker"}, {"id": "b", "depends_on": ["a.verify"]}))
    assert plan.tasks[-1].depends_on == ("a.verify",)


def test_a_plan_task_survives_its_json() -> None:
    for task in planfile.read(YAML).tasks:
        assert PlanTask.from_json(json.loads(json.dumps(task.to_json()))) == task


def test_nested_subtasks_stand_under_their_task_and_run_after_it() -> None:
    plan = planfile.check(
        tasks({"id": "a", "subtasks": [{"id": "b", "role": "x", "subtasks": [{"id": "c", "role": "x"}]}]})
    )
    assert [(t.id, t.parent, t.depth, t.depends_on) for t in plan.tasks] == [
        ("a", "", 0, ()),
        ("b", "a", 1, ("a",)),
        ("c", "b", 2, ("b",)),
    ]


def test_more_than_three_levels_of_subtasks_are_refused() -> None:
    nested: dict[str, Any] = {"id": "t4", "role": "x"}
    for level in (3, 2, 1, 0):
        nested = {"id": f"t{level}", "role": "x", "subtasks": [nested]}
    assert refused([nested]).reason == "too_deep"
    assert planfile.check([nested["subtasks"][0]]).tasks[-1].depth == 3


@pytest.mark.parametrize(
    ("data", "reason", "named"),
    [
        (tasks({"id": "a"}, {"id": "a"}), "duplicate_id", ("a",)),
        (tasks({"id": "a", "verify": "v"}, {"id": "a.verify"}), "duplicate_id", ("a.verify",)),
        (tasks({"id": "a", "depends_on": ["a"]}), "self_dependency", ("a",)),
        (tasks({"id": "a", "depends_on": ["没有"]}), "missing_dependency", ("没有", "a")),
        (tasks({"id": "a", "alternative_of": "gone"}), "missing_dependency", ("gone", "a")),
        (tasks({"id": "a", "input": {"x": [{"$result": "b"}]}}, {"id": "b"}), "missing_dependency", ("a", "b")),
        (tasks({"id": "a", "alternative_of": "b"}, {"id": "b", "alternative_of": "a"}), "cycle", ("a", "b")),
        (tasks({"id": "a", "role": "no role"}), "bad_task", ("a",)),
        (tasks({"id": "a", "prompt": 3}), "bad_task", ("a",)),
        (tasks({"id": "a", "priority": True}), "bad_task", ("a",)),
        (tasks({"id": "a", "depend_on": ["b"]}), "bad_task", ("a",)),
        (tasks({"id": "a", "prompt": "x" * 200_000}), "bad_task", ("a",)),
        (tasks({"id": "a", "title": "长" * 257}), "bad_task", ("a",)),
        (tasks({"id": "MERGE_a"}), "bad_task", ()),
        (tasks({"id": "任务"}), "bad_task", ()),
        (tasks({"id": True}), "bad_task", ()),
        ({"tasks": [3]}, "bad_task", ()),
        ("text", "bad_task", ()),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_wrong_is_refused_naming_the_tasks(data: Any, reason: str, named: tuple[str, ...]) -> None:
    error = refused(data)
    assert error.reason == reason
    assert set(named) <= set(error.tasks)
    assert all(name in str(error) for name in named)


def test_every_cycle_is_named_and_what_hangs_on_it_is_not() -> None:
    edges = {"a": ["b"], "b": ["a"], "c": ["d"], "d": ["c"], "behind": ["a"], "good": []}
    error = refused([{"id": t, "role": "x", "depends_on": d} for t, d in edges.items()])
    assert error.reason == "cycle"
    assert sorted(error.tasks) == ["a", "b", "c", "d"]
    assert "a -> b -> a" in str(error)


def test_a_slip_in_a_key_is_told_with_the_mend_and_a_key_of_ones_own_is_kept_out() -> None:
    assert "did you mean 'depends_on'" in str(refused(tasks({"id": "a", "depends_onn": []})))
    assert planfile.check(tasks({"id": "a", "备注": "mine", "rationale": "x"})).tasks[0].id == "a"


def test_an_unknown_role_is_refused_with_its_tasks_and_the_known_ones() -> None:
    plan = planfile.check(tasks({"id": "a", "role": "reviewr"}, {"id": "b", "role": "writer"}))
    with pytest.raises(PlanRefused) as caught:
        plan.check_roles({"reviewer", "writer"})
    assert caught.value.reason == "unknown_role"
    assert caught.value.tasks == ("a",)
    assert "did you mean 'reviewer'" in str(caught.value)
    assert "known roles: reviewer, writer" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tasks: [", "neither JSON nor YAML"),
        ("tasks: {a: b: c}", "line 1"),
        ("a: &x [1]\nb: !!python/object:os.system x", "neither JSON nor YAML"),
        ("[" * 5_000, "nested too deep"),
        ("[" * 900 + "]" * 900, "nested too deep"),
    ],
)
def test_text_that_is_no_plan_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(PlanRefused, match=words) as caught:
        planfile.read(text, name="计划.yaml")
    assert "计划.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bomb_of_aliases_is_refused() -> None:
    levels = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    levels += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(PlanRefused, match="more than"):
        planfile.read("\n".join(levels))


def test_a_value_that_is_no_json_is_refused_by_task() -> None:
    with pytest.raises(PlanRefused, match="task 'a'"):
        planfile.read("tasks: [{id: a, role: x, input: {when: .nan, who: !!binary aGk=}}]")


def test_ten_thousand_tasks_in_a_chain_are_checked_without_recursion() -> None:
    chain = [{"id": f"t{n}", "role": "x", "depends_on": [f"t{n - 1}"] if n else []} for n in range(10_000)]
    assert len(planfile.check(chain).tasks) == 10_000
    assert refused([*chain, {"id": "more", "role": "x"}]).reason == "too_many"


class TestProposal:
    """A delivery's subtasks: a user's file with limits of their own."""

    def check(self, subtasks: Any, depth: int = 1, taken: tuple[str, ...] = ("a", "other")) -> planfile.Plan:
        return planfile.check_proposal(subtasks, parent="a", depth=depth, taken=taken)

    def test_it_may_depend_on_siblings_and_on_existing_tasks(self) -> None:
        plan = self.check([{"id": "a1", "role": "x"}, {"id": "a2", "role": "x", "depends_on": ["a1", "other"]}])
        assert [t.depends_on for t in plan.tasks] == [("a",), ("a", "a1", "other")]
        assert {t.parent for t in plan.tasks} == {"a"}

    @pytest.mark.parametrize(
        ("subtasks", "depth", "reason"),
        [
            ([{"id": "other", "role": "x"}], 1, "duplicate_id"),
            ([{"id": "a1", "role": "x", "depends_on": ["gone"]}], 1, "missing_dependency"),
            ([{"id": f"a{n}", "role": "x"} for n in range(51)], 1, "too_many"),
            ([{"id": "a1", "role": "x"}], 4, "too_deep"),
            ([{"id": "a1", "role": "x", "subtasks": [{"id": "a2", "role": "x"}]}], 3, "too_deep"),
            ({"id": "a1"}, 1, "bad_task"),
            ([{"id": "a1"}], 1, "bad_task"),
        ],
    )
    def test_its_limits(self, subtasks: Any, depth: int, reason: str) -> None:
        with pytest.raises(PlanRefused) as caught:
            self.check(subtasks, depth)
        assert caught.value.reason == reason

    def test_fifty_with_a_verifier_each_are_fifty(self) -> None:
        plan = self.check([{"id": f"a{n}", "role": "x", "verify": "v"} for n in range(50)])
        assert len(plan.tasks) == 100
