"""Starting a session: what is refused before there is a space, and what the root record says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from coordinator.session import Order, check, session_id, start
from protocol.errors import AppendRefused, ConfigError, PlanRefused
from protocol.ports import Appended
from protocol.record import Record
from protocol.stores.redis_artifacts import ArtifactRef

PLAN = {"tasks": [{"id": "a", "role": "stub", "prompt": "看"}]}


class Store:
    """Spaces, artifacts and rings, in memory; ``taken`` ids exist already."""

    def __init__(self, taken: int = 0) -> None:
        self.taken = taken
        self.spaces: dict[str, Mapping[str, str]] = {}
        self.records: list[Record] = []
        self.files: list[bytes] = []
        self.rings: list[str] = []
        self.outcome = Appended("added", "1-1")

    async def create(self, space: str, *, meta: Mapping[str, str]) -> bool:
        if len(self.spaces) < self.taken:
            self.spaces[space] = {}
            return False
        self.spaces[space] = meta
        return True

    async def append(self, space: str, records: list[Record], *, owner: str = "") -> list[Appended]:
        self.records += records
        return [self.outcome]

    async def put(self, space: str, data: bytes) -> ArtifactRef:
        self.files.append(data)
        return ArtifactRef("ab" * 32, len(data))

    async def name(self, space: str, ref: ArtifactRef) -> None:
        assert self.records, "named after the record that names it"

    async def ring(self, spaces: list[str]) -> None:
        self.rings += spaces

    async def start(self, order: Order, **more: Any) -> str:
        return await start(order, log=self, artifacts=self, bell=self, who="person_li", clock=lambda: 1e9, **more)


async def test_the_root_record_says_what_is_to_be_done() -> None:
    store = Store()
    order = Order("第一行\n第二行", plan=PLAN, models={"stub": "big"}, guards={"tokens": 9}, policy="hold")
    session = await store.start(order, known_roles={"stub"})
    [root] = store.records
    assert Record.model_validate(root.to_json()) == root
    assert (root.id, root.who, root.event, root.session, root.trace.parent_id) == (
        session,
        "person_li",
        "task_started",
        session,
        None,
    )
    assert root.detail == {
        "goal": "第一行\n第二行",
        "flow": "plan",
        "flow_version": 1,
        "policy": "hold",
        "plan": PLAN,
        "models": {"stub": "big"},
        "guards": {"tokens": 9},
    }
    assert store.spaces[session] == {
        "kind": "session",
        "policy": "hold",
        "session": session,
        "flow": "plan",
        "title": "第一行",
    }
    assert store.rings == [session]


async def test_an_id_that_is_taken_gives_the_next_number() -> None:
    assert re.fullmatch(r"conv_\d{8}_\d{6}_001", session_id(1e9, 1))
    assert (await Store(taken=2).start(Order("x", plan=PLAN))).endswith("_003")


async def test_a_long_title_is_cut_and_a_plans_goal_counts_where_none_is_given() -> None:
    store = Store()
    session = await store.start(Order("", plan={**PLAN, "goal": "计划里的目标"}))
    assert store.records[0].detail["goal"] == "计划里的目标"
    assert store.spaces[session]["title"] == "计划里的目标"
    session = await store.start(Order("长" * 100, flow="solo", role="stub"))
    assert len(store.spaces[session]["title"]) == 60


async def test_a_large_plan_goes_into_an_artifact() -> None:
    store = Store()
    tasks = [{"id": f"t{n}", "role": "stub", "prompt": "x" * 1_000} for n in range(200)]
    await store.start(Order("大", plan={"tasks": tasks}))
    [data] = store.files
    assert store.records[0].detail["plan_artifact"] == {"sha256": "ab" * 32, "size": len(data)}
    assert "plan" not in store.records[0].detail


@pytest.mark.parametrize(
    ("order", "error", "words"),
    [
        (Order("x", flow="dance", plan=PLAN), ConfigError, "no flow 'dance'"),
        (Order("x", flow="solo"), ConfigError, "needs a role"),
        (Order("x" * 70_000, plan=PLAN), ConfigError, "characters"),
        (Order("x", plan={"tasks": [{"id": "a", "role": "stub", "depends_on": ["a"]}]}), PlanRefused, "'a'"),
        (Order("x", plan={"tasks": [{"id": "a", "role": "nobody"}]}), PlanRefused, "'nobody'"),
        (Order("x"), PlanRefused, "'planner'"),
        (Order("x", flow="solo", role="stub", verify="checker"), PlanRefused, "'checker'"),
        (Order("x", plan={**PLAN, "mine": {"when": {1}}}), PlanRefused, "no JSON"),
    ],
)
async def test_what_can_not_be_led_is_refused_before_there_is_a_space(order: Order, error: type, words: str) -> None:
    store = Store()
    with pytest.raises(error, match=words):
        await store.start(order, known_roles={"stub"})
    assert not store.spaces
    assert not store.records


async def test_a_refused_root_is_said() -> None:
    store = Store()
    store.outcome = Appended("refused", "", "duplicate_id", "a different record exists")
    with pytest.raises(AppendRefused, match="a different record exists"):
        await store.start(Order("x", plan=PLAN))
    assert store.rings == []


def test_roles_are_not_checked_where_none_are_given() -> None:
    plan = check(Order("x", plan={"tasks": [{"id": "a", "role": "nobody"}]}), None)
    assert plan is not None
    assert [t.role for t in plan.tasks] == ["nobody"]
