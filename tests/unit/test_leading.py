"""Leading one session, on a log in memory: what is refused, what is already there, what is not in the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from coordinator import leading, snapshot
from coordinator.leading import Lead, LeaseLost, RoleBook, Stores
from protocol.errors import ConfigError, StoreError
from protocol.ports import Appended
from protocol.record import Json, Record
from protocol.stores.redis_dispatch import Ref
from protocol.stores.redis_log import Step
from tests.memory import SPACE, MemoryLog, graph

START = "stub@host:1:aa"


class World:
    """Everything that a lead talks to, in memory."""

    def __init__(self, root: dict[str, Json]) -> None:
        self.log = MemoryLog()
        self.queued: list[Ref] = []
        self.rings: list[str] = []
        self.files: dict[str, bytes] = {}
        self.roles: dict[str, dict[str, Any]] = {"stub": {"name": "Stub"}}
        self.reads = 0
        self.stores = Stores(log=self.log, streams=self, bell=self, artifacts=self, roles=self)
        self.log.add(self.log.record("task_started", SPACE, {"goal": "目标", "flow": "plan", **root}, who="person_li"))

    def lead(self, term: int = 1, holder: str = "leader@a:1:x") -> Lead:
        return Lead(SPACE, term, holder, self.stores, RoleBook(self), lambda: 7.0)

    async def enqueue(self, refs: Sequence[Ref]) -> list[Ref]:
        self.queued.extend(refs)
        return []

    async def ring(self, spaces: Sequence[str]) -> None:
        self.rings.extend(spaces)

    async def get(self, space: str, sha256: str) -> bytes:
        if sha256 not in self.files:
            raise StoreError("gone", retryable=False)
        return self.files[sha256]

    async def all(self) -> dict[str, dict[str, Any]]:
        self.reads += 1
        return self.roles

    def work(self) -> None:
        """Deliver everything that is assigned."""
        for task, state in list(self.log.tasks.items()):
            if state.state == "assigned":
                self.write("task_processing", task, {"attempt": state.attempt, "worker": START})
                self.write("task_completed", task, {"attempt": state.attempt, "result": task})

    def write(self, event: str, task: str, detail: dict[str, Json]) -> None:
        assert self.log.add(self.log.record(event, task, detail), owner=START)[0].outcome == "added"

    def events(self) -> list[tuple[str, str]]:
        return [(r.event, r.id) for _, r in self.log.entries]

    def finish(self) -> Record | None:
        return next((r for _, r in self.log.entries if r.detail.get("action") == "finish"), None)


async def test_a_step_is_appended_then_enqueued_and_a_finish_is_rung() -> None:
    world = World(graph({"a": [], "b": ["a"]}))
    lead = world.lead()
    await lead.go()
    assert world.queued == [Ref("stub", SPACE, "a", 1)]
    assert world.rings == []
    world.work()
    await lead.go()
    world.work()
    await lead.go()
    assert [r.task for r in world.queued] == ["a", "b"]
    assert world.rings == [SPACE]
    assert lead.finished


async def test_nothing_is_decided_twice_by_a_leader_that_starts_over() -> None:
    world = World(graph({"a": [], "b": ["a"]}))
    await world.lead().go()
    before = world.events()
    await world.lead(term=2).go()
    assert world.events() == before


async def test_a_term_that_is_over_is_given_up() -> None:
    world = World(graph({"a": []}))
    world.log.lease = (2, "leader@b:1:y")
    with pytest.raises(LeaseLost):
        await world.lead(term=1).go()
    assert world.events() == [("task_started", SPACE)]
    assert world.queued == []


async def test_a_command_that_the_law_refuses_is_left_out_and_the_rest_goes_on() -> None:
    world = World(graph({"a": [], "b": []}))
    append = world.log.append_step
    refused: list[str] = []

    async def racing(space: str, records: Sequence[Record], *, term: int, holder: str) -> Step:
        if not refused:  # a person cancels `a` between the leader's fold and its append
            world.write("task_pending", "a", {"role": "stub"})
            world.log.add(
                world.log.record("decision", "DEC_1", {"action": "cancel", "task": "a", "by": "p", "why": ""})
            )
        step = await append(space, records, term=term, holder=holder)
        refused.append(step.reason)
        return step

    world.log.append_step = racing  # type: ignore[method-assign]
    await world.lead().go()
    assert refused[0] == "illegal_transition"
    assert world.queued == [Ref("stub", SPACE, "b", 1)]
    assert world.log.tasks["a"].state == "cancelled"


async def test_what_another_leader_wrote_already_is_no_reason_to_write_it_for_ever() -> None:
    world = World(graph({"a": []}))
    steps = 0

    async def already(space: str, records: Sequence[Record], *, term: int, holder: str) -> Step:
        nonlocal steps
        steps += 1
        assert steps < 5, "the same step again and again"
        return Step(ok=True, outcomes=tuple(Appended("already", "1-1") for _ in records))

    world.log.append_step = already  # type: ignore[method-assign]
    await world.lead().go()
    assert steps == 1


async def test_a_space_that_is_full_ends_the_session_with_what_there_is() -> None:
    world = World(graph({"a": [], "b": ["a"]}))
    lead = world.lead()
    await lead.go()
    world.work()
    append = world.log.append_step

    async def full(space: str, records: Sequence[Record], *, term: int, holder: str) -> Step:
        if any(r.event == "task_assigned" for r in records):
            return Step(ok=False, refused_at=0, reason="too_large", message="the space holds 1000000 records")
        return await append(space, records, term=term, holder=holder)

    world.log.append_step = full  # type: ignore[method-assign]
    await lead.go()
    finish = world.finish()
    assert finish is not None
    assert finish.detail["status"] == "partial"
    assert finish.detail["missing"] == [{"task": "b", "reason": "not run"}]


async def test_a_snapshot_is_written_every_so_many_records_and_read_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leading, "SNAPSHOT_EVERY", 20)
    world = World(graph({f"t{n}": [] for n in range(10)}))
    await world.lead().go()
    assert world.log.snap is not None
    loaded = snapshot.load(SPACE, world.log.snap)
    assert loaded is not None
    assert loaded.count == 21
    read: list[str] = []
    tail = world.log.tail

    async def watched(space: str, after: str, count: int) -> list[tuple[str, Record]]:
        read.append(after)
        return await tail(space, after, count)

    world.log.tail = watched  # type: ignore[method-assign]
    world.work()
    successor = world.lead(term=2)
    await successor.go()
    assert read[0] == loaded.last
    assert successor.finished


async def test_a_snapshot_that_is_ahead_of_the_log_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "SNAPSHOT_EVERY", 1)
    world = World(graph({"a": []}))
    await world.lead().go()
    del world.log.entries[1:]
    world.log.tasks.clear()
    await world.lead(term=2).go()
    assert world.events() == [("task_started", SPACE), ("task_pending", "a"), ("task_assigned", "a")]


async def test_a_plan_in_an_artifact_is_fetched_and_one_that_is_gone_fails_the_session() -> None:
    world = World({"plan_artifact": {"sha256": "ab" * 32, "size": 1}})
    world.files["ab" * 32] = b'{"tasks": [{"id": "a", "role": "stub"}]}'
    await world.lead().go()
    assert [r.task for r in world.queued] == ["a"]
    gone = World({"plan_artifact": {"sha256": "ab" * 32, "size": 1}})
    await gone.lead().go()
    finish = gone.finish()
    assert finish is not None
    assert finish.detail["status"] == "failed"
    assert "gone" in finish.detail["why"]


async def test_roles_are_read_once_for_known_ones_and_again_where_one_is_missing() -> None:
    world = World(graph({"a": [], "b": ["a"]}))
    lead = world.lead()
    for _ in range(3):
        await lead.go()
        world.work()
    assert world.reads == 1
    late = World({"plan": {"tasks": [{"id": "a", "role": "late"}]}})
    await late.lead().go()
    finish = late.finish()
    assert finish is not None
    assert "'late'" in finish.detail["why"]


async def test_a_flow_or_version_that_is_not_here_is_an_error_of_the_configuration() -> None:
    for root in ({"flow": "dance"}, {"flow": "plan", "flow_version": 99, "plan": []}):
        world = World(root)
        with pytest.raises(ConfigError):
            await world.lead().go()
        assert len(world.events()) == 1


async def test_the_trace_context_of_the_root_travels_with_every_command() -> None:
    world = World({})
    world.log.entries.clear()
    root = world.log.record("task_started", SPACE, {"goal": "g", **graph({"a": []})})
    trace = root.trace.model_copy(update={"traceparent": "00-1-2-01"})
    world.log.tasks.clear()
    world.log.add(root.model_copy(update={"trace": trace}))
    await world.lead().go()
    assert {r.trace.traceparent for _, r in world.log.entries} == {"00-1-2-01"}
