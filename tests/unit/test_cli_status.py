"""What task states amount to: phases, counts, what waits for a person."""

from __future__ import annotations

import pytest

from coordinator.cli.fleet import chosen_roles, parse_counts
from coordinator.status import Marks, Phase, counts, phase, waiting
from protocol.errors import ConfigError, RoleError
from protocol.kit.rolefiles import Loaded, RoleFile
from protocol.tasks import TaskState


def states(*kinds: str, root: str = "") -> dict[str, TaskState]:
    out = {f"T{n}": TaskState(kind, 1, role="reviewer") for n, kind in enumerate(kinds)}
    return ({"S": TaskState(root, 1)} if root else {}) | out


@pytest.mark.parametrize(
    ("tasks", "marks", "expected"),
    [
        (states(), Marks(), "empty"),
        (states(root="started"), Marks(root="S"), "planning"),
        (states("pending", "pending", root="started"), Marks(root="S"), "planning"),
        (states("completed", "assigned", root="started"), Marks(root="S"), "running"),
        (states("completed", "retrying"), Marks(), "running"),
        (states("completed", "pending", root="started"), Marks(root="S"), "running"),
        (states("completed", "blocked"), Marks(), "waiting"),
        (states("completed", "lost", "pending"), Marks(), "waiting"),
        (states("waiting", root="started"), Marks(root="S"), "waiting"),
        (states("completed", "completed"), Marks(), "ready_to_merge"),
        (states("completed", root="started"), Marks(root="S"), "running"),
        (states("completed", root="started"), Marks(root="S", finish="completed"), "ready_to_merge"),
        (states("blocked", root="started"), Marks(root="S", finish="failed"), "failed"),
        (states("failed", "failed"), Marks(), "failed"),
        (states("completed", root="merged"), Marks(root="S", finish="completed", merged=True), "merged"),
        (states("completed", "completed"), Marks(merged=True), "merged"),
        (states("assigned", root="cancelled"), Marks(root="S"), "cancelled"),
        (states("cancelled", "cancelled"), Marks(), "cancelled"),
    ],
)
def test_phase(tasks: dict[str, TaskState], marks: Marks, expected: Phase) -> None:
    assert phase(tasks, marks) == expected


def test_the_root_of_a_flow_is_no_work() -> None:
    assert counts(states("completed", "blocked", root="started"), Marks(root="S")) == {"completed": 1, "blocked": 1}


def test_what_waits_names_the_command_that_settles_it() -> None:
    tasks = {
        "提问": TaskState("waiting", 2, waiting_for="ASK_1"),
        "T2": TaskState("blocked", 3),
        "T3": TaskState("completed", 1),
    }
    rows = waiting("空间", tasks, Marks())
    assert [(row["task"], row["state"]) for row in rows] == [("提问", "waiting"), ("T2", "blocked")]
    assert rows[0]["mend"] == "rolecall answer ASK_1 TEXT --space 空间"
    assert rows[1]["mend"] == "rolecall task retry T2 --space 空间"


def test_counts_of_processes_per_role() -> None:
    assert parse_counts("a=2, b ,c=0") == {"a": 2, "b": 1, "c": 0}
    assert parse_counts("") == {}
    for bad, words in (("a=x", "no number"), ("a=1,a=2", "twice"), ("a=-1", "no number")):
        with pytest.raises(ConfigError, match=words):
            parse_counts(bad)


def test_the_roles_that_up_starts() -> None:
    loaded = Loaded({name: RoleFile(id=name, name=name, description=name) for name in ("reader", "code-reviewer")})
    assert chosen_roles(loaded, {}, []) == {"reader": 1, "code-reviewer": 1}
    assert chosen_roles(loaded, {"code_reviewer": 3}, []) == {"code-reviewer": 3}
    assert chosen_roles(loaded, {"reader": 2}, [["reader", "code-reviewer"]]) == {"reader": 2, "code-reviewer": 1}
    with pytest.raises(RoleError, match="known: code-reviewer, reader"):
        chosen_roles(loaded, {"writer": 1}, [])
    with pytest.raises(RoleError, match="no role to start"):
        chosen_roles(Loaded({}), {}, [])
