"""One real worker process: what it holds, how it retries, drains, spills, shows itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_dispatch import RoleStreams
from tests.chaos.fleet import ROOT, ChaosFleet
from tests.chaos.tasks import SPACE, dispatch, events, open_space, state, until
from tests.support import wait_until


@pytest.fixture
async def fleet(fleet_env: dict[str, str], tmp_path: Path) -> AsyncIterator[ChaosFleet]:
    made = ChaosFleet.make(tmp_path / "fleet", fleet_env)
    await open_space(made)
    yield made
    await made.stop()


async def test_a_worker_holds_no_more_than_it_can_start_and_the_rest_waits_in_the_stream(fleet: ChaosFleet) -> None:
    await dispatch(fleet, *(f"t{n}" for n in range(8)), sleep=0.3)
    fleet.start("stepper.1")
    stream, most = fleet.keys.role("stepper"), 0
    while (await state(fleet, "t7")).state != "completed":
        there = await fleet.client.exists(stream)
        pending = await fleet.client.xpending(stream, "workers") if there else {"pending": 0}
        most = max(most, int(pending["pending"]))
        await asyncio.sleep(0.02)
    assert most == 2, "its concurrency, no more"
    assert set(fleet.runs(fleet.folder / "ran").values()) == {1}


async def test_a_passing_failure_is_tried_three_times_then_blocked(fleet: ChaosFleet) -> None:
    fleet.start("stepper.1")
    await dispatch(fleet, "bad", fail_first=9)
    blocked = await until(fleet, "bad", "blocked")
    assert await events(fleet, "bad") == [
        "task_assigned", "task_processing", "task_failed", "task_retrying",
        "task_assigned", "task_processing", "task_failed", "task_retrying",
        "task_assigned", "task_processing", "task_failed", "task_blocked",
    ]  # fmt: skip
    assert blocked.tries == 3
    last = (await fleet.records(SPACE))[-1][1]
    assert last.detail["requires_human_intervention"] is True


async def test_a_skill_that_kills_its_process_is_counted_and_others_go_on(fleet: ChaosFleet) -> None:
    fleet.start("stepper.1")
    await dispatch(fleet, "poison", exit_first=9)
    await dispatch(fleet, "good")
    await until(fleet, "good", "completed")
    await until(fleet, "poison", "blocked")
    assert fleet.runs(fleet.folder / "ran")["poison"] == 3


async def test_bad_input_is_blocked_at_once_naming_the_field(fleet: ChaosFleet) -> None:
    fleet.start("stepper.1")
    await dispatch(fleet, "wrong", sleep="soon")
    await until(fleet, "wrong", "blocked")
    assert "task_retrying" not in await events(fleet, "wrong")
    error = next(r.detail["error"] for _, r in await fleet.records(SPACE) if r.event == "task_failed")
    assert "sleep" in error["message"] and error["retryable"] is False


async def test_sigterm_finishes_what_runs_and_leaves_at_once_after_it(fleet: ChaosFleet) -> None:
    worker = fleet.start("stepper.1")
    await dispatch(fleet, "a", sleep=1)
    await until(fleet, "a", "processing")
    os.kill(worker.pid, signal.SIGTERM)
    assert await asyncio.to_thread(worker.wait, 10) == 0
    assert (await state(fleet, "a")).state == "completed"
    assert not await fleet.workers.live()
    assert [g.reason for g in await fleet.workers.graves()] == ["left"]


async def test_what_outlasts_the_grace_time_goes_back_without_costing_a_try(fleet: ChaosFleet) -> None:
    worker = fleet.start("stepper.1", ROLECALL_GRACE_S="0.5")
    await dispatch(fleet, "a", sleep=30)
    await until(fleet, "a", "processing")
    await wait_until(lambda: fleet.runs(fleet.folder / "ran")["a"] == 1, "the skill runs")
    os.kill(worker.pid, signal.SIGTERM)
    assert await asyncio.to_thread(worker.wait, 10) == 0
    back = await state(fleet, "a")
    assert (back.state, back.attempt, back.tries) == ("assigned", 2, 0)
    assert await RoleStreams(fleet.client, fleet.keys).backlog(["stepper"]) == {"stepper": 1}


async def test_a_large_result_becomes_an_artifact_with_its_digest(fleet: ChaosFleet) -> None:
    fleet.start("stepper.1", ROLECALL_DETAIL_MAX_BYTES="4096")
    await dispatch(fleet, "small")
    await until(fleet, "small", "completed")
    skill = fleet.folder / "skills" / "step" / "run.py"
    skill.write_text(skill.read_text().replace('"完成 " + name', '"完成 " * 4000'))
    await dispatch(fleet, "large")
    await until(fleet, "large", "completed")
    done = next(r for _, r in await fleet.records(SPACE) if r.event == "task_completed" and r.id == "large")
    ref = done.detail["artifact"]
    data = await Artifacts(fleet.client, fleet.keys).get(SPACE, ref["sha256"])
    assert "result" not in done.detail and len(data) == ref["size"] > 4096
    assert await fleet.client.ttl(fleet.keys.space(SPACE).art(ref["sha256"])) == -1, "a record names it: it stays"


async def test_an_edited_role_file_is_taken_with_the_next_task_and_its_digest_is_on_record(fleet: ChaosFleet) -> None:
    fleet.start("stepper.1")
    await dispatch(fleet, "one")
    await until(fleet, "one", "completed")
    role = fleet.folder / "roles" / "stepper.md"
    role.write_text(role.read_text() + "\n新的说明\n")
    await dispatch(fleet, "two")
    await until(fleet, "two", "completed")
    digests = [r.detail["role_digest"] for _, r in await fleet.records(SPACE) if r.event == "task_processing"]
    assert len(digests) == 2 and digests[0] != digests[1]


async def test_metrics_are_served_with_bounded_labels(fleet: ChaosFleet) -> None:
    fleet.start("stepper.1", ROLECALL_METRICS_PORT="0")
    await dispatch(fleet, "a")
    await until(fleet, "a", "completed")
    text = await fleet.scrape("stepper.1")
    assert 'rolecall_deliveries_total{outcome="completed",role="stepper"} 1.0' in text
    assert SPACE not in [part.split('"')[1] for part in text.split() if '="' in part]


@pytest.mark.parametrize(
    ("role", "change", "words"),
    [
        ("nope", {}, "unknown role 'nope'"),
        ("stepper", {"REDIS_URL": "redis://:wrong@{at}"}, "password"),
        ("broken", {}, "broken.md"),
        ("stepper", {"ROLECALL_TRIES": "many"}, "ROLECALL_TRIES"),
    ],
)
async def test_what_is_wrong_before_the_start_is_one_line_with_its_mend(
    fleet: ChaosFleet, role: str, change: dict[str, str], words: str
) -> None:
    (fleet.folder / "roles" / "broken.md").write_text("---\nid: broken\nname: [\n---\n")
    at = fleet.env["REDIS_URL"].rpartition("@")[2]
    env = {**fleet.env, **{k: v.replace("{at}", at) for k, v in change.items()}}
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "arq", f"workers.roles.{role}"], env=env, cwd=ROOT, capture_output=True,
        text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ended.returncode in (2, 3), ended
    assert words in ended.stderr and "Traceback" not in ended.stderr, ended.stderr
    assert len(ended.stderr.strip().splitlines()) <= 2, ended.stderr


async def test_check_tells_a_served_role_from_one_that_nobody_serves(fleet: ChaosFleet) -> None:
    async def check() -> int:
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-m", "arq", "workers.roles.stepper", "--check"], env=fleet.env, cwd=ROOT,
            capture_output=True, timeout=30, check=False,
        )  # fmt: skip
        return done.returncode

    assert await check() == 1
    worker = fleet.start("stepper.1")

    async def served() -> bool:
        return bool(await fleet.client.exists(fleet.keys.health("stepper")))

    await wait_until(served, f"the role is served\n{fleet.logs()}", 20)
    assert await check() == 0
    os.kill(worker.pid, signal.SIGTERM)
    await asyncio.to_thread(worker.wait, 10)
    assert await check() == 1
