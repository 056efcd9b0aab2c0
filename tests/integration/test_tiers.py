"""An upward delegation on the real store: refused by the leader, with a violation that everyone can read."""

from __future__ import annotations

import pytest

from coordinator.session import Order
from protocol.kit.settings import Settings
from protocol.ports import Dispatch
from protocol.record import Record
from protocol.stores.client import connect
from tests.integration import fleetkit
from tests.integration.fleetkit import Fleet, leading, working


async def test_a_sub_agents_delegation_is_refused_and_on_record(
    settings: Settings, redis_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposal = [{"id": "more", "role": "stub", "prompt": "再做一点"}]

    def delivery(dispatch: Dispatch) -> Record:
        record = plain(dispatch)
        return record.model_copy(update={"detail": {**record.detail, "subtasks": proposal}})

    plain = fleetkit.delivery
    monkeypatch.setattr(fleetkit, "delivery", delivery)
    client = connect(redis_url)
    fleet = Fleet(client, prefix)
    async with working(fleet), leading(settings, redis_url):
        await fleet.roles.publish("stub", {"id": "stub", "tier": "sub", "tiered": True}, "d")
        space = await fleet.start(Order(goal="看", plan=[{"id": "a", "role": "stub", "prompt": "甲"}]))
        finish = await fleet.end(space)
    assert finish.detail["status"] == "completed", "the delivery itself stands"
    page = await fleet.log.read(space, event="protocol_violation")
    assert [r.detail["reason"] for r in page.records] == ["upward_delegation"]
    assert page.records[0].detail["raw"] == proposal
    assert page.records[0].who == "leader"
    assert [r.id for r in await fleet.records(space) if r.event == "task_completed"] == ["a"]
    await client.aclose()
