"""Limits that all hosts share: three worker processes and an endpoint that refuses what is past them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from pathlib import Path

import pytest

from coordinator.session import Order
from protocol.record import Json
from tests.integration.cli_support import Cli
from tests.integration.endpoint import Answer, Endpoint, error, serving
from tests.integration.modelfleet import ModelFleet, model_fleet, says_using
from tests.support import wait_until

AT_ONCE, A_MINUTE, REST_S = 2, 7, 2.0
MODELS = (
    {"key": "narrow", "model": "narrow", "concurrent": AT_ONCE},
    {"key": "minute", "model": "minute", "requests_per_minute": A_MINUTE},
    {"key": "cool", "model": "cool", "concurrent": 1},
)


class Strict(Endpoint):
    """Refuses what is past its limits, by the model that is asked for; ``came`` has the moment of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.came: dict[str, list[float]] = defaultdict(list)
        self.running: dict[str, int] = defaultdict(int)
        self.most: dict[str, int] = defaultdict(int)
        self.refused = 0
        self.rested_from = 0.0

    async def answer(self, request: dict[str, Json]) -> Answer:
        name = request["model"]
        self.came[name].append(time.monotonic())
        self.running[name] += 1
        self.most[name] = max(self.most[name], self.running[name])
        try:
            await asyncio.sleep(0.03)  # a model takes its time: calls overlap
            past = {"narrow": self.running[name] > AT_ONCE, "minute": len(self.came[name]) > A_MINUTE}
            if past.get(name):
                self.refused += 1
                return error(429, "too many")
            if name == "cool" and not self.rested_from:
                self.rested_from = time.monotonic()
                return error(429, "rest", headers={"retry-after": f"{REST_S:g}"})
            return says_using("好", 5, 5)
        finally:
            self.running[name] -= 1


@pytest.mark.slow
async def test_three_workers_never_pass_the_limits_of_an_endpoint(
    tmp_path: Path, fleet_env: dict[str, str], cli: Cli
) -> None:
    async with (
        serving(endpoint=Strict()) as endpoint,
        model_fleet(
            tmp_path, fleet_env, endpoint, roles={"writer": "concurrency: 4\n"}, workers={"writer": 3}, models=MODELS
        ) as up,
    ):
        assert isinstance(endpoint, Strict)
        narrow, cool, minute = [await up.run(_order(key, count)) for key, count in _COUNTS.items()]
        assert (await up.end(narrow)).detail["status"] == "completed"
        assert len(endpoint.came["narrow"]) == 24
        assert endpoint.most["narrow"] == AT_ONCE, "the limit is used, and never passed"

        assert (await up.end(cool)).detail["status"] == "completed"
        after = [moment - endpoint.rested_from for moment in endpoint.came["cool"][1:]]
        on_the_way = [moment for moment in after if moment < REST_S / 2]  # permitted before anyone knew of the rest
        assert len(on_the_way) < 3, "one call of each other worker may have been under way, no more"
        rest = [moment for moment in after if moment >= REST_S / 2]
        assert min(rest) >= REST_S, "one worker was asked to wait: all three waited"
        assert len({r.detail["worker"] for r in await up.records(cool) if r.event == "task_processing"}) > 1

        await wait_until(lambda: len(endpoint.came["minute"]) == A_MINUTE, "the minute is used up")
        await _all_wait(up, minute)
        assert len(endpoint.came["minute"]) == A_MINUTE
        await asyncio.to_thread(cli, "session", "cancel", minute)
        assert (await up.end(minute)).detail["status"] == "cancelled"
        assert endpoint.refused == 0


_COUNTS = {"narrow": 24, "cool": 6, "minute": 12}


def _order(key: str, count: int) -> Order:
    tasks: list[Json] = [{"id": f"{key}{n}", "role": "writer", "prompt": f"写 {n}"} for n in range(count)]
    return Order(goal=key, plan={"tasks": tasks}, models={"writer": key})


async def _all_wait(up: ModelFleet, space: str) -> None:
    """Every task that is not done has been in hand for a heartbeat (1 s): its agent waits for a permit."""

    async def beaten() -> bool:
        records = await up.records(space)
        done = {r.id for r in records if r.event == "task_completed"}
        beating = {r.detail["current_task"] for r in records if r.event == "heartbeat"}
        return len(done) == A_MINUTE and len(beating - done) == _COUNTS["minute"] - A_MINUTE

    await wait_until(beaten, "five agents wait for a permit", 30, every=0.1)
