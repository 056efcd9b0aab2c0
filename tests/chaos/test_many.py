"""Several leaders and managers at once: nothing is done twice, whoever dies in between."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.chaos.fleet import ChaosFleet, delivered_once, steps
from tests.support import wait_until

SESSIONS = 200
MEASURED = ("leader.2", "manager.2", "stepper.1")
ID_LABELS = re.compile(r"\b(?:\w*_id|id|session|space|task|agent|start|worker|job|message|trace|record)=\"")
"""Labels that would grow with the work."""


async def series(fleet: ChaosFleet) -> set[str]:
    """Every series that the measured processes serve: name and labels."""
    texts = [await fleet.scrape(name) for name in MEASURED]
    found = {line.rpartition(" ")[0] for text in texts for line in text.splitlines() if line and line[0] != "#"}
    assert not [name for name in found if ID_LABELS.search(name)]
    return found


@pytest.mark.slow
async def test_three_leaders_and_three_managers_lead_200_sessions_without_a_double(
    fleet_env: dict[str, str], tmp_path: Path
) -> None:
    fleet = ChaosFleet.make(tmp_path / "fleet", fleet_env)
    try:
        for n in range(3):
            port = {"ROLECALL_METRICS_PORT": "0"} if n == 2 else {}
            fleet.start(f"leader.{n}", **port)
            fleet.start(f"manager.{n}", **port)
        fleet.start(
            "stepper.1", module="tests.chaos.pausing.quick", ROLECALL_CONCURRENCY="50", ROLECALL_METRICS_PORT="0"
        )
        before = await series(fleet)
        spaces = [await fleet.run(steps(fleet.folder / "ran")) for _ in range(SESSIONS)]
        for name in ("leader.0", "manager.0"):
            fleet.kill(name, signal.SIGKILL)

        async def all_merged() -> bool:
            fleet.revive()
            return all([await fleet.merged(space) for space in spaces])

        await wait_until(all_merged, f"all sessions are merged\n{fleet.logs()}", 90, every=0.5)
        for space in spaces:
            delivered_once(await fleet.records(space), ["a", "b", "c"])
        leaders = {(await fleet.log.meta(space))["lease_holder"] for space in spaces}
        assert len(leaders) > 1, "the sessions were shared out"
        grown = await series(fleet) - before
        assert len(grown) <= 50, f"600 tasks in 200 sessions: {sorted(grown)}"
    finally:
        await fleet.stop()
