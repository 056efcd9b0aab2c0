"""The page "By hand", followed literally, on a state file and on Redis: the same merged record from both."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.warm import commands as commands_on_path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/howto/by-hand.md"
BLOCK = re.compile(r"(?:<!-- (file|redis) -->\n)?```sh\n(.*?)```", re.DOTALL)


def commands(store: str) -> str:
    """The page's commands, with those of the other store left out."""
    return "\n".join(text for of, text in BLOCK.findall(PAGE.read_text("utf-8")) if of in ("", store))


def follow(store: str, folder: Path, env: dict[str, str], tail: str = "") -> str:
    """Run them in ``folder`` as somebody would who only has the page; what they said."""
    folder.mkdir()
    done = subprocess.run(
        ["bash", "-eu", "-c", f"{commands(store)}\n{tail}"], cwd=folder, capture_output=True, timeout=280, check=False,
        env=env,
    )  # fmt: skip
    out = done.stdout.decode()
    assert done.returncode == 0, out + done.stderr.decode()
    return out


def merged(store: str, folder: Path, env: dict[str, str]) -> dict[str, Any]:
    out = follow(
        store,
        folder,
        env,
        "echo ==; rolecall read-records $AT --event task_merged --json; rolecall rebuild $AT --check",
    )
    assert "equal" in out
    record = json.loads(out.rsplit("==\n", 1)[1].splitlines()[0])["records"]
    assert len(record) == 1
    assert (folder / "merged.md").read_text("utf-8").count("## TASK_") == 3
    return dict(record[0])


def test_a_person_with_only_the_page_gets_the_same_merge_from_a_file_and_from_redis(
    tmp_path: Path, fleet_env: dict[str, str]
) -> None:
    with commands_on_path(tmp_path / "bin") as bin:
        on_redis = {**fleet_env, "PATH": f"{bin}{os.pathsep}{fleet_env['PATH']}"}
        here = {k: v for k, v in on_redis.items() if k != "REDIS_URL"}
        one = merged("file", tmp_path / "file", here)
        other = merged("redis", tmp_path / "redis", on_redis)
    assert one["id"] == other["id"] and one["id"].startswith("MERGE_")
    differ = {k for k in one["detail"] if one["detail"][k] != other["detail"].get(k)}
    assert differ == {"as_of"}, "only the place in the log is each store's own"
    assert one["detail"]["kept"] == ["TASK_001_a", "TASK_002"]
    assert (tmp_path / "file/merged.md").read_bytes() == (tmp_path / "redis/merged.md").read_bytes()
