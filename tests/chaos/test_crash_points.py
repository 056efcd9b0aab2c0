"""Every point between two steps of a task's life: the process dies there, nothing is lost and nothing is doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.kit.crash import POINTS
from tests.chaos.fleet import ChaosFleet
from tests.chaos.scenarios import SCENARIOS


@pytest.mark.parametrize("point", SCENARIOS)
async def test_a_death_at_each_point_loses_and_doubles_nothing(
    point: str, fleet_env: dict[str, str], tmp_path: Path
) -> None:
    fleet = ChaosFleet.make(tmp_path / "fleet", fleet_env)
    try:
        await SCENARIOS[point](fleet, point)
    finally:
        await fleet.stop()


def test_every_named_point_has_its_scenario() -> None:
    assert set(POINTS) == set(SCENARIOS)
