"""A fleet of real processes whose agents call a model endpoint of the test's own: leader, manager, workers.

Guarantees: everything is started from here and ended by pid from here; the endpoint is on loopback and sees every
request; what happened is read from the log.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.session import Order, start
from protocol.record import Json, Record
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_roles import Roles
from protocol.stores.redis_wake import Wake
from tests.chaos.fleet import ChaosFleet
from tests.integration.endpoint import Answer, Endpoint, stream
from tests.support import wait_until

PERSON = "person_王"


@dataclass
class ModelFleet:
    """A running fleet and its endpoint."""

    fleet: ChaosFleet
    endpoint: Endpoint

    async def run(self, order: Order) -> str:
        """Start a session; its id."""
        fleet = self.fleet
        roles = await Roles(fleet.client, fleet.keys).all()
        artifacts = Artifacts(fleet.client, fleet.keys)
        bell = Wake(fleet.client, fleet.keys)
        return await start(order, log=fleet.log, artifacts=artifacts, bell=bell, who="person_li", known_roles=roles)

    async def end(self, space: str, timeout: float = 60) -> Record:
        """The session's finish, once it is there."""

        async def finish() -> Record | None:
            found = [r for r in await self.records(space) if r.detail.get("action") == "finish"]
            return found[-1] if found else None

        try:
            found = await wait_until(finish, f"{space} has finished", timeout, every=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.fleet.story(space)}\n{self.fleet.logs()}") from None
        assert found is not None
        return found

    async def merged(self, space: str) -> None:
        """Wait for the merge."""
        await self.fleet.until_merged(space, 30, revive=False)

    async def records(self, space: str) -> list[Record]:
        return [record for _, record in await self.fleet.records(space)]


@asynccontextmanager
async def model_fleet(
    folder: Path,
    env: dict[str, str],
    endpoint: Endpoint,
    *,
    roles: Mapping[str, str],
    workers: Mapping[str, int],
    models: Sequence[Mapping[str, Json]] = ({},),
    **more: str,
) -> AsyncIterator[ModelFleet]:
    """``roles``: id -> further lines of its front matter; ``workers``: how many of each; ``models``: what each
    entry of the models list has beside the endpoint's url (its key is ``main`` by default); ``more``: environment of
    the workers."""
    fleet = ChaosFleet.make(folder / "fleet", env)
    for name, lines in roles.items():
        front = f"---\nid: {name}\nname: 角色 {name}\ndescription: 测试\n{lines}---\n你完成任务。\n"
        (fleet.folder / "roles" / f"{name}.md").write_text(front, encoding="utf-8")
    text = ""
    for given in models:
        entry = {"key": "main", "model": "m", "base_url": endpoint.url} | dict(given)
        text += "[[models]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    (fleet.folder / "rolecall.toml").write_text(text, encoding="utf-8")
    try:
        fleet.start("leader")
        fleet.start("manager")
        for name, count in workers.items():
            for number in range(count):
                fleet.start(f"{name}.{number}", **more)
        wanted = 2 + sum(workers.values())

        async def up() -> bool:
            known = await Roles(fleet.client, fleet.keys).all()
            return set(workers) <= known.keys() and len(await fleet.workers.live()) >= wanted

        try:
            await wait_until(up, "the fleet is up", 60, every=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{fleet.logs()}") from None
        yield ModelFleet(fleet, endpoint)
    finally:
        await fleet.stop()


def says_using(text: str, prompt: int, completion: int, finish: str = "stop") -> Answer:
    """A streamed answer that names its token use."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return stream(
        {"model": "m-1", "choices": [{"index": 0, "delta": {"content": text}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"choices": [], "usage": usage},
    )
