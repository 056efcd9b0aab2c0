"""The shared cases of stream recovery: what a role's stream, its group and its workers must survive.

Guarantees: every case of the file has its test, here or in a module named in ``TESTS``. Times are scaled by settings:
a lease (dead-after) is 1.5 s here, waits before a retry are 0.1 and 0.2 s; what a case says in seconds is read as
"several leases", "longer than a lease".
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from protocol.kit.crash import POINTS
from protocol.stores.client import awaited
from protocol.stores.redis_dispatch import RoleStreams
from tests.chaos.fleet import ChaosFleet
from tests.chaos.proxy import Proxy
from tests.chaos.tasks import ROLE, SPACE, assign, dispatch, events, open_space, state, until_all
from tests.names import is_test
from tests.support import wait_until

CASES = Path(__file__).parents[1] / "unit/data/cases/stream-recovery.jsonl"
HERE = "tests/chaos/test_stream_recovery.py"
OUTAGES = "tests/chaos/test_outages.py"
WORKER = "tests/integration/test_worker.py"
ZOMBIES = "tests/chaos/test_zombies.py"
TESTS = {
    "SR-01.1": f"{OUTAGES}::test_a_flushed_store_is_noticed_and_new_work_is_served",
    "SR-01.2": f"{HERE}::test_a_stream_that_goes_under_its_workers_is_made_again",
    "SR-01.3": f"{OUTAGES}::test_processes_that_start_before_the_store_wait_for_it",
    "SR-01.4": f"{OUTAGES}::test_a_killed_store_that_restarts_is_waited_out_without_a_busy_loop",
    "SR-02.1": f"{HERE}::test_a_killed_workers_task_is_done_by_another_or_by_its_next_self",
    "SR-02.2": f"{HERE}::test_a_killed_workers_task_is_done_by_another_or_by_its_next_self",
    "SR-02.3": f"{WORKER}::test_sigterm_finishes_what_runs_and_leaves_at_once_after_it",
    "SR-03.1": f"{HERE}::test_a_task_of_three_leases_runs_once_beside_an_idle_worker",
    "SR-03.2": f"{HERE}::test_tasks_that_wait_behind_a_busy_worker_run_once",
    "SR-03.3": f"{ZOMBIES}::test_a_worker_that_holds_the_interpreter_is_stalled_not_dead_and_runs_once",
    "SR-04.1": f"{HERE}::test_an_entry_that_was_deleted_is_reported_and_its_task_is_done_all_the_same",
    "SR-04.2": f"{HERE}::test_2500_entries_of_a_dead_consumer_are_all_done_once",
    "SR-04.3": f"{HERE}::test_a_full_stream_drops_nothing",
    "SR-05.1": f"{HERE}::test_a_task_that_kills_its_worker_is_blocked_after_three_and_others_go_on",
    "SR-05.2": f"{WORKER}::test_a_passing_failure_is_tried_three_times_then_blocked",
    "SR-05.3": f"{WORKER}::test_bad_input_is_blocked_at_once_naming_the_field",
    "SR-06.1": f"{OUTAGES}::test_connections_that_are_cut_are_made_again",
    "SR-06.2": f"{OUTAGES}::test_a_store_that_is_silent_for_a_while_kills_nobody_and_repeats_nothing",
    "SR-06.3": f"{HERE}::test_a_connection_that_is_dead_without_a_word_is_given_up_and_made_again",
}  # fmt: skip


@pytest.fixture
async def fleet(fleet_env: dict[str, str], tmp_path: Path) -> AsyncIterator[ChaosFleet]:
    made = ChaosFleet.make(tmp_path / "fleet", fleet_env)
    await open_space(made)
    yield made
    await made.stop()


def test_every_case_has_its_test() -> None:
    cases = {json.loads(line)["id"] for line in CASES.read_text("utf-8").splitlines()}
    assert cases == TESTS.keys()
    assert [name for name in TESTS.values() if not is_test(name)] == []
    assert "worker.after_claim" in POINTS, "SR-02 once more, at each point: test_crash_points"


async def idle(fleet: ChaosFleet, count: int) -> None:
    """Wait until ``count`` workers have registered."""

    async def look() -> bool:
        return sum(w.role == ROLE for w in await fleet.workers.live()) >= count

    await wait_until(look, f"{count} workers beat\n{fleet.logs()}", 20)


def ran(fleet: ChaosFleet) -> dict[str, int]:
    return dict(fleet.runs(fleet.folder / "ran"))


async def first_runs(fleet: ChaosFleet, name: str) -> None:
    await wait_until(lambda: ran(fleet).get(name), f"{name} runs\n{fleet.logs()}", 20)


async def test_a_stream_that_goes_under_its_workers_is_made_again(fleet: ChaosFleet) -> None:
    fleet.start("manager")
    fleet.start("stepper.1")
    fleet.start("stepper.2")
    await idle(fleet, 2)
    await wait_until(lambda: fleet.client.exists(fleet.keys.role(ROLE)), "they read")
    await fleet.client.delete(fleet.keys.role(ROLE))
    await dispatch(fleet, "A")
    await dispatch(fleet, "B")
    await until_all(fleet, ["A", "B"])
    assert ran(fleet) == {"A": 1, "B": 1}


@pytest.mark.parametrize("again", ["another", "itself"])
async def test_a_killed_workers_task_is_done_by_another_or_by_its_next_self(fleet: ChaosFleet, again: str) -> None:
    """``itself``: the same host, the same token of its supervisor: all of the name that a restart can keep."""
    token = {"ROLECALL_START_TOKEN": "w1"} if again == "itself" else {}
    fleet.start("manager")
    fleet.start("stepper.1", **token)
    await dispatch(fleet, "a", sleep=2)
    await first_runs(fleet, "a")
    fleet.kill("stepper.1")
    fleet.start("stepper.1" if again == "itself" else "stepper.2", **token)
    await until_all(fleet, ["a"])
    assert ran(fleet) == {"a": 2}
    told = await events(fleet, "a")
    assert told.count("task_agent_lost") == 1
    assert told[-3:] == ["task_assigned", "task_processing", "task_completed"]


async def test_a_task_of_three_leases_runs_once_beside_an_idle_worker(fleet: ChaosFleet) -> None:
    fleet.start("manager")
    fleet.start("stepper.1")
    fleet.start("stepper.2")
    await dispatch(fleet, "long", sleep=4.5)
    await until_all(fleet, ["long"])
    assert ran(fleet) == {"long": 1}
    assert await events(fleet, "long") == ["task_assigned", "task_processing", "task_completed"]


async def test_tasks_that_wait_behind_a_busy_worker_run_once(fleet: ChaosFleet) -> None:
    names = [f"t{n}" for n in range(10)]
    fleet.start("manager")
    fleet.start("stepper.1", ROLECALL_CONCURRENCY="1")
    fleet.start("stepper.2", ROLECALL_CONCURRENCY="1")
    await dispatch(fleet, *names, sleep=0.6)  # the last one waits for two leases
    await until_all(fleet, names)
    assert ran(fleet) == dict.fromkeys(names, 1)
    assert not [r for _, r in await fleet.records(SPACE) if r.event == "task_agent_lost"]


async def dead_consumer(fleet: ChaosFleet, count: int) -> str:
    """A start that beat once, read ``count`` entries and was never heard of again; its id."""
    start = f"{ROLE}@elsewhere:1:gone"
    assert await fleet.workers.beat(start, {"role": ROLE, "kind": "worker", "host": "elsewhere", "pid": 1})
    assert len(await RoleStreams(fleet.client, fleet.keys).read(ROLE, start, count, 100)) == count
    return start


async def test_an_entry_that_was_deleted_is_reported_and_its_task_is_done_all_the_same(fleet: ChaosFleet) -> None:
    await dispatch(fleet, "A", "B", "C")
    await dead_consumer(fleet, 3)
    stream = fleet.keys.role(ROLE)
    (entry, _), *_ = await fleet.client.xrange(stream)
    await fleet.client.xdel(stream, entry)
    fleet.start("manager")
    fleet.start("stepper.1")
    await until_all(fleet, ["A", "B", "C"])
    assert ran(fleet) == {"A": 1, "B": 1, "C": 1}
    log = (fleet.folder / "manager.log").read_text()
    assert "deleted" in log and "Traceback" not in log, log


async def test_entries_that_were_trimmed_unread_are_enqueued_again(fleet: ChaosFleet) -> None:
    names = ["A", "B:2", "C"]
    await dispatch(fleet, *names)
    stream, queued = fleet.keys.role(ROLE), fleet.keys.queued(ROLE)
    await fleet.client.xtrim(stream, maxlen=1, approximate=False)
    await awaited(fleet.client.hset(queued, f"{SPACE}:settled-long-ago:1", "1-1"))
    fleet.start("manager")
    fleet.start("stepper.1")
    await until_all(fleet, names)
    assert ran(fleet) == dict.fromkeys(names, 1)

    async def clean() -> bool:
        return await awaited(fleet.client.hlen(queued)) == 0

    await wait_until(clean, "nothing is named that is not there")


async def test_a_consumer_that_nobody_knows_gives_back_what_it_read(fleet: ChaosFleet) -> None:
    """Its register is gone (it never had any); and once more after its burial, as by a read that was on its way."""
    await dispatch(fleet, "A")
    stray = "someone's own reader"
    streams = RoleStreams(fleet.client, fleet.keys)
    await streams.read(ROLE, stray, 1, 100)
    fleet.start("manager")
    worker = fleet.start("stepper.1")
    await until_all(fleet, ["A"])
    fleet.kill("stepper.1")
    await dispatch(fleet, "B")
    await streams.read(ROLE, stray, 1, 100)
    fleet.start("stepper.2")
    await until_all(fleet, ["A", "B"])
    assert ran(fleet) == {"A": 1, "B": 1}

    async def removed() -> bool:
        left = await streams.consumers(ROLE)
        return len(left) == 1 and f":{worker.pid}:" not in left[0]

    await wait_until(removed, "the consumers of the dead are removed", 20)


@pytest.mark.slow
async def test_2500_entries_of_a_dead_consumer_are_all_done_once(fleet: ChaosFleet) -> None:
    names = [f"t{n}" for n in range(2_500)]
    await dispatch(fleet, *names)
    gone = await dead_consumer(fleet, len(names))
    fleet.start("manager")
    fleet.start("stepper.1", module="tests.chaos.pausing.quick", ROLECALL_CONCURRENCY="100")
    await until_all(fleet, names, 60)

    async def retired() -> bool:
        consumers = await fleet.client.xinfo_consumers(fleet.keys.role(ROLE), "workers")
        return gone.encode() not in [c["name"] for c in consumers]

    await wait_until(retired, "the dead one's consumer is removed", 20)
    assert not [r for _, r in await fleet.records(SPACE) if r.event == "task_agent_lost"], "nothing was started"


async def test_a_full_stream_drops_nothing(fleet: ChaosFleet) -> None:
    """The limit of a backlog is 100 here for whoever enqueues first; what does not fit waits in the space's outbox."""
    names = [f"t{n}" for n in range(500)]
    small = RoleStreams(fleet.client, fleet.keys, backlog_max=100)
    left = await small.enqueue(await assign(fleet, names))
    assert len(left) == 400 == await fleet.client.zcard(fleet.keys.space(SPACE).outbox)
    assert await small.backlog([ROLE]) == {ROLE: 100}
    fleet.start("manager")
    fleet.start("stepper.1", module="tests.chaos.pausing.quick", ROLECALL_CONCURRENCY="100")
    await until_all(fleet, names)


async def test_a_task_that_kills_its_worker_is_blocked_after_three_and_others_go_on(fleet: ChaosFleet) -> None:
    fleet.start("manager")
    fleet.start("stepper.1", module="tests.chaos.pausing.killer", ROLECALL_CONCURRENCY="1")
    await dispatch(fleet, "A", kill=True)
    await dispatch(fleet, "B")
    await until_all(fleet, ["B"], 40, revive=True)

    async def blocked() -> bool:
        fleet.revive()
        return (await state(fleet, "A")).state == "blocked"

    await wait_until(blocked, f"A is blocked\n{fleet.logs()}", 40, every=0.05)
    assert ran(fleet)["A"] == 3
    last = [r for _, r in await fleet.records(SPACE) if r.id == "A"][-1]
    assert last.event == "task_blocked" and last.detail["requires_human_intervention"] is True
    assert (await events(fleet, "A")).count("task_agent_lost") == 3


@pytest.mark.slow
async def test_a_connection_that_is_dead_without_a_word_is_given_up_and_made_again(fleet: ChaosFleet) -> None:
    """90 s in the case, as long as a worker needs to notice here: a silent peer is given up after 10 s."""
    at = urlsplit(fleet.env["REDIS_URL"])
    async with Proxy(at.port or 0) as proxy:
        through = at._replace(netloc=at.netloc.replace(f":{at.port}", f":{proxy.port}")).geturl()
        fleet.start("manager")
        worker = fleet.start("stepper.1", REDIS_URL=through)
        await dispatch(fleet, "before")
        await until_all(fleet, ["before"])
        proxy.drop()
        (first,) = [w.start for w in await fleet.workers.live() if w.role == ROLE]

        async def buried() -> bool:
            return first in {g.start for g in await fleet.workers.graves()}

        await wait_until(buried, "nobody hears it any more")
        await dispatch(fleet, "A")
        proxy.restore()
        await until_all(fleet, ["A"], 30)
        assert worker.poll() is None
        assert ran(fleet) == {"before": 1, "A": 1}
