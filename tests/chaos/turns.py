"""Scenarios inside an agent's turn: the worker dies at a crash point of the turn, another one goes on with it.

Guarantees: what the tools did is counted outside every process; no finished call runs twice, a call of which nobody
knows whether it ran becomes a question, and there is one delivery and one merge.
"""

from __future__ import annotations

from tests.chaos.fleet import ChaosFleet, delivered_once
from tests.chaos.turnkit import (
    ONCE,
    ROLE,
    Scripted,
    add_thinker,
    begin,
    command,
    conversation,
    messages_of,
    ran,
    strict,
    until_state,
)
from tests.integration.endpoint import serving

IN_DOUBT = {
    "agent.after_tool_intent": "repeat",
    "agent.after_tool": "已付",
}
"""The first call of the turn must not be repeated: killed there, a person is asked. What is answered."""


async def turn_point(fleet: ChaosFleet, point: str) -> None:
    """The worker dies at ``point`` of a turn with three tool calls."""
    async with serving(endpoint=Scripted()) as endpoint:
        assert isinstance(endpoint, Scripted)
        add_thinker(fleet, endpoint.url)
        fleet.start("leader")
        fleet.start("manager")
        fleet.start(f"{ROLE}.1", crash_at=point)
        space = await begin(fleet, "a")
        await fleet.until_dead(f"{ROLE}.1")
        fleet.revive()
        if point in IN_DOUBT:
            waits = await until_state(fleet, space, "a", "waiting")
            await command(fleet, "answer", waits.waiting_for, IN_DOUBT[point], "--space", space)
        await fleet.until_merged(space)
        delivered_once(await fleet.records(space), ["a"])
        assert ran(fleet) == ONCE, await fleet.story(space)
        assert not endpoint.refusals, endpoint.refusals
        assert len(endpoint.requests) <= 3, "at most one model call more than without a death"
        assert strict(messages_of(await conversation(fleet, space, f"{ROLE}_1"))) == ""
