"""Several leaders and managers at once: nothing is done twice, whoever dies in between."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.chaos.fleet import ChaosFleet, delivered_once, steps
from tests.support import wait_until

SESSIONS = 200


async def test_three_leaders_and_three_managers_lead_200_sessions_without_a_double(
    fleet_env: dict[str, str], tmp_path: Path
) -> None:
    fleet = ChaosFleet.make(tmp_path / "fleet", fleet_env)
    try:
        for n in range(3):
            fleet.start(f"leader.{n}")
            fleet.start(f"manager.{n}")
        fleet.start("stepper.1", module="tests.chaos.pausing.quick", ROLECALL_CONCURRENCY="50")
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
    finally:
        await fleet.stop()
