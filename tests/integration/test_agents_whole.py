"""A goal and nothing else, on a fleet of real processes: routed, planned, done; models chosen, shapes asked for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from coordinator.session import Order
from protocol.record import Json, Record
from tests.integration.cli_support import Cli
from tests.integration.endpoint import Answer, Endpoint, error, serving
from tests.integration.modelfleet import ModelFleet, model_fleet, says_using
from workers.offline.server import OfflineServer

TRACE = "0af7651916cd43dd8448eb211c80319c"
FEATURES = {
    "steps": 3, "tools": 0, "subtasks": 2, "dependencies": True, "parallel_branches": 0, "sources": 1, "files": 0,
    "lasting_environment": False, "edits_existing": False, "why": "先查后写",
}  # fmt: skip
PLAN = {
    "tasks": [
        {"id": "look", "role": "worker", "prompt": "查资料"},
        {"id": "write", "role": "writer", "prompt": "写报告", "depends_on": ["look"]},
    ]
}
WRITER = 'output_schema: {type: object, required: [text], properties: {text: {type: string}}}\nmodel: "没有这个"\n'


class Shaped(Endpoint):
    """Gives each role the shape it asks for; ``strict``: refuses ``response_format``, as many endpoints do."""

    def __init__(self, *, strict: bool) -> None:
        super().__init__()
        self.strict = strict
        self.features = FEATURES

    def choose(self, request: dict[str, Json]) -> Answer:
        if self.strict and "response_format" in request:
            return error(400, "response_format is not supported here")
        asked = json.dumps(request["messages"], ensure_ascii=False)
        if "lasting_environment" in asked:
            return says_using(json.dumps(self.features), 50, 20)
        if "depends_on" in asked:
            return says_using(f"```json\n{json.dumps(PLAN)}\n```", 80, 40)
        if "写报告" in asked:
            return says_using('好的：{“text”: "报告全文",}', 30, 10)
        return says_using("资料若干", 20, 5)


ROLES = {
    "router": "tier: main\n",
    "planner": "tier: organize\n",
    "worker": "",
    "writer": WRITER,
}


@pytest.mark.slow
async def test_a_goal_alone_is_routed_planned_and_done(tmp_path: Path, fleet_env: dict[str, str], cli: Cli) -> None:
    offline, url = await OfflineServer().start()
    async with (
        offline,
        serving(endpoint=Shaped(strict=True)) as endpoint,
        model_fleet(
            tmp_path, fleet_env, endpoint, roles=ROLES, workers=dict.fromkeys(ROLES, 1),
            models=[{}, {"key": "stand-in", "base_url": url, "model": ""}], OTEL_TRACES_EXPORTER="console",
        ) as up,
    ):  # fmt: skip
        started_in = {"TRACEPARENT": f"00-{TRACE}-b7ad6b7169203331-01"}
        said = await asyncio.to_thread(
            cli, "run", "写一份报告", "--json", "--verbose", "--budget-tokens", "50000",
            env=started_in,
        )  # fmt: skip
        assert "  worker_1 | 资料若干" in said.err.splitlines(), "what the agents write is seen"
        assert said.json["status"] == "delivered"
        records = await up.records(said.json["session"])
        actions = [r.detail["action"] for r in records if r.event == "decision"]
        assert actions == ["route", "adopt_plan", "finish"]
        [choice] = [r for r in records if r.detail.get("action") == "route"]
        assert (choice.detail["outcome"], choice.detail["reasons"]) == ("complex", ["2 subtasks with dependencies"])
        done = {r.id: r for r in records if r.event == "task_completed"}
        assert list(done) == ["route.1", "plan.1", "look", "write"]
        assert done["write"].detail["result"] == {"text": "报告全文"}, "repaired by gate 1, then held to the schema"
        assert done["write"].detail["repairs"]
        _said_once(records)
        assert any("response_format" in request for _, _, request in endpoint.requests), "it was asked for first"
        assert "response_format" not in endpoint.requests[-1][2]
        assert done["look"].detail["usage"] | {"cost": 0} == {
            "calls": 1, "prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25, "attempt": 1, "model": "main",
            "task": {"calls": 1, "total_tokens": 25}, "cost": 0,
        }  # fmt: skip
        assert isinstance(endpoint, Shaped)
        _one_trace(up, records)
        endpoint.features = {**FEATURES, "steps": 1}
        await _simple(up)
        await _shape_supported(up)


def _said_once(records: list[Record]) -> None:
    """What had to be done without is on record once: the model that nobody knows, the shape that was refused."""
    notes = [r for r in records if r.event == "info" and r.detail.get("kind") in ("model_fallback", "endpoint")]
    fallback = [r.detail for r in notes if r.detail["kind"] == "model_fallback"]
    assert [(d["wanted"], d["used"]) for d in fallback] == [("没有这个", "main")]
    refused = [r for r in notes if r.detail["kind"] == "endpoint"]
    assert len({r.id for r in refused}) == len(refused) == 1
    assert "response_format" in refused[0].what


def _one_trace(up: ModelFleet, records: list[Record]) -> None:
    """The trace context travels from the run over every record of leader and workers to the endpoint."""
    told = [r for r in records if r.event.startswith("task_") and r.event != "task_merged"]
    assert {str(r.trace.traceparent).split("-")[1] for r in told} == {TRACE}
    assert {h["traceparent"].split("-")[1] for _, h, _ in up.endpoint.requests} == {TRACE}
    logs = [path.read_text(encoding="utf-8") for path in up.fleet.folder.glob("*.log")]
    spans = [json.loads(line) for text in logs for line in text.splitlines() if line.startswith('{"name"')]
    assert {"chat m", "invoke_agent writer_1"} <= {span["name"] for span in spans}
    assert {span["context"]["trace_id"] for span in spans} == {f"0x{TRACE}"}


async def _simple(up: ModelFleet) -> None:
    """One step: one task for the worker. The run's own model for the role counts before the role's."""
    space = await up.run(Order(goal="问一句", flow="route", models={"worker": "另一个", "router": "main"}))
    assert (await up.end(space)).detail["status"] == "completed"
    records = await up.records(space)
    assert [r.id for r in records if r.event == "task_completed"] == ["route.1", "solo"]
    fallback = [r.detail["wanted"] for r in records if r.detail.get("kind") == "model_fallback"]
    assert fallback == ["另一个"]


async def _shape_supported(up: ModelFleet) -> None:
    """An endpoint that knows ``response_format`` (the stand-in does) gives the role's shape; nothing is remarked."""
    space = await up.run(Order(goal="写一句", flow="solo", role="writer", models={"writer": "stand-in"}))
    assert (await up.end(space)).detail["status"] == "completed"
    records = await up.records(space)
    [done] = [r for r in records if r.event == "task_completed"]
    assert isinstance(done.detail["result"]["text"], str)
    assert done.detail["model"]["key"] == "stand-in"
    assert not [r for r in records if r.event == "info"]
