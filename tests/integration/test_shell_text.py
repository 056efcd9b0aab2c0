"""Text that would mean something to a shell, at the command line of a fleet: as a goal it is kept whole, as a role's
name it is refused, and nothing is ever started through a shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.app import App
from coordinator.cli.store import Store
from tests.integration.cli_support import Cli, in_store

CASES = [
    case
    for line in (Path(__file__).parents[1] / "unit/data/cases/security.jsonl").read_text("utf-8").splitlines()
    if (case := json.loads(line))["id"].startswith("SC-02")
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(cli: Cli, app: App, tmp_path: Path, case: dict[str, Any]) -> None:
    mark = tmp_path / "marked"
    text = case["input"]["task_text"].replace(case["expect"]["file_absent"], str(mark))

    async def publish(store: Store) -> None:
        await store.roles.publish("reader", {"id": "reader", "name": "读者", "description": "读"}, "d")

    in_store(app, publish)
    session = cli("run", "--role", "reader", "--detach", "--", text).out.strip()
    root = cli("read-records", "--space", session, "--json").json["records"][0]
    assert root["detail"]["goal"] == text
    assert cli("run", f"--role={text}", "--detach", "--", "目标", expect=2).err
    for name in (text, f"{text}=2"):
        assert cli("up", f"--roles={name}", expect=2).err
    assert not mark.exists()
