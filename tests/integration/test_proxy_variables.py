"""Proxy variables in the environment of a whole fleet: nothing that goes to this machine takes the way through them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coordinator.session import Order
from tests.integration.endpoint import says, serving
from tests.integration.modelfleet import model_fleet


async def test_a_fleet_and_its_model_on_this_machine_never_ask_a_dead_proxy(
    fleet_env: dict[str, str], tmp_path: Path
) -> None:
    asked: list[object] = []

    async def dead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(writer.get_extra_info("peername"))
        await reader.read()  # takes the connection and never answers: a client would wait out its whole timeout
        writer.close()

    proxy = await asyncio.start_server(dead, "127.0.0.1", 0)
    at = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    names = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    env = fleet_env | dict.fromkeys(names, at) | {"no_proxy": "", "NO_PROXY": ""}
    async with (
        proxy,
        serving(says("报告全文")) as endpoint,
        model_fleet(tmp_path, env, endpoint, roles={"writer": ""}, workers={"writer": 1}) as made,
    ):
        space = await made.run(Order("写报告", flow="solo", role="writer"))
        finish = await made.end(space, 20)
        await made.merged(space)
    assert finish.detail["status"] == "completed"
    assert len(endpoint.requests) == 1
    assert asked == []
