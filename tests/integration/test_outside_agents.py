"""The workflow prompts, followed literally by agents that only run their commands, on a state file and on Redis."""

from __future__ import annotations

import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.kit.outside import FOLDER
from tests.integration.cli_support import Cli
from tests.warm import commands

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:<!-- (instead) -->\n)?```sh\n(.*?)```", re.DOTALL)
PLACE = re.compile(r"<[A-Z]+>")
LOST_S = 2


def steps(kind: str) -> dict[tuple[int, str], list[str]]:
    """The blocks of a page by step and by whether they stand for another case: ``(3, "instead")``."""
    found: dict[tuple[int, str], list[str]] = {}
    for part in (FOLDER / "reference" / f"{kind}.md").read_text("utf-8").split("\n## ")[1:]:
        if part[0].isdigit():
            for case, text in BLOCK.findall(part):
                found.setdefault((int(part[0]), case), []).append(text)
    return found


@dataclass
class World:
    """A directory with `rolecall` on its path, and where the space is."""

    folder: Path
    env: dict[str, str]
    at: str

    def sh(self, text: str) -> tuple[int, str]:
        """Exit code and stdout of a block; each is a shell of its own, as an agent's calls are."""
        done = subprocess.run(["sh", "-c", text], cwd=self.folder, env=self.env, capture_output=True, check=False)
        assert done.returncode in (0, 1), done.stderr.decode()
        return done.returncode, done.stdout.decode()

    def must(self, text: str) -> str:
        code, out = self.sh(text)
        assert code == 0, out
        return out

    def add(self, *records: dict[str, Any]) -> None:
        self.must(f"rolecall add-record {self.at} <<'JSON'\n{json.dumps(records, ensure_ascii=False)}\nJSON\n")

    def records(self, more: str = "") -> list[dict[str, Any]]:
        out = self.must(f"rolecall read-records {self.at} --limit 1000 {more}")
        return list(json.loads(out)["records"])


@dataclass
class Agent:
    """Follows a page: fills in what it read, runs the block, looks at what came out."""

    world: World
    kind: str
    me: str
    words: dict[str, str] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    """The ids that its reads returned, over all of its wake-ups."""

    def run(self, step: int, case: str = "", at: int = 0, **words: str) -> tuple[int, str]:
        self.words |= words
        text = steps(self.kind)[step, case][at]
        for name, value in {"AT": self.world.at, "ME": self.me, **self.words}.items():
            text = text.replace(f"<{name}>", value)
        assert not PLACE.search(text), f"nothing says what to write for {PLACE.findall(text)}"
        return self.world.sh(text)

    def wake(self) -> None:
        found = re.search(r'"last_check": "([^"]+)"', self.run(1)[1])
        self.words["SINCE"] = found[1] if found else "0"

    def read(self) -> dict[str, Any] | None:
        """Step 2 of a master or a verifier: the next record, or None."""
        page = json.loads(self.run(2)[1])
        if not page["records"]:
            return None
        record: dict[str, Any] = page["records"][0]
        self.words |= {"NEXT": page["next"], "TASK": record["id"], "N": str(record["detail"].get("attempt", 1))}
        self.seen.append(record["id"])
        return record

    def move(self) -> None:
        assert self.run(6)[0] == 0
        self.words["SINCE"] = self.words["NEXT"]


def work(master: Agent, results: dict[str, Any]) -> None:
    """One wake-up of a master of the role `reviewer`; what it has no result for it can't do."""
    master.wake()
    while (record := master.read()) is not None:
        if record["detail"]["role"] == "reviewer" and master.run(3)[0] == 0:
            assert master.run(4, PROGRESS="0.5")[0] == 0
            if record["id"] in results:
                assert master.run(5, RESULT=json.dumps(results[record["id"]], ensure_ascii=False))[0] == 0
            else:
                assert master.run(5, "instead", KIND="permission", WHY="没有读取权限")[0] == 0
        master.move()


def check(verifier: Agent, verdicts: dict[str, str]) -> None:
    """One wake-up of a verifier."""
    verifier.wake()
    while (record := verifier.read()) is not None:
        if "verdict" not in record["detail"] and record["who"] != verifier.me:
            asked = verifier.run(2, at=1)[1]
            assert f'"prompt": "审查 {record["id"]}"' in asked
            assert verifier.run(3, PROGRESS="0")[0] == 0
            assert verifier.run(5, VERDICT=verdicts[record["id"]], REASON="重新运行了规则")[0] == 0
        verifier.move()


def manage(manager: Agent, what: str) -> tuple[int, list[str]]:
    """One wake-up of a manager: the exit code of the merge, and the agents with a task that it wrote down as lost."""
    manager.wake()
    page = json.loads(manager.run(2)[1].split("\n", 1)[1])
    assert page["more"] is False
    manager.words["NEXT"] = page["next"]
    manager.seen += page["entries"]
    summary, _, found = manager.run(3)[1].rpartition("\n{")
    progress, lost = json.loads(summary)["progress"], []
    for one in json.loads("{" + found)["anomalies"]:
        if one["kind"] != "silent_agent":
            continue
        silent = re.match(r"no sign of '([^']+)' for \d+ s(?:, it holds (\S+))?$", one["message"])
        assert silent is not None, one
        agent, task, seen = silent[1], silent[2], one["entries"][0][:10]
        if task:
            lost.append(agent)
            assert manager.run(3, "instead", TASK=task, AGENT=agent, N="1", SEEN=seen)[0] == 0
            assert manager.run(3, "instead", at=2, WHAT=f"{agent} 没有消息")[0] == 0
        else:
            manager.run(3, "instead", at=1, AGENT=agent, SEEN=seen)
    assert manager.run(4)[0] == 0
    merged, _ = manager.run(5)
    assert manager.run(5, at=1)[0] == 0
    assert manager.run(6, WHAT=what, DONE=str(progress["done"]), OF=str(progress["of"]))[0] == 0
    return merged, lost


def assigned(task: str, role: str = "reviewer") -> dict[str, Any]:
    detail = {"role": role, "attempt": 1, "prompt": f"审查 {task}"}
    return {"id": task, "who": "person_ann", "event": "task_assigned", "what": f"审查 {task}", "detail": detail}


def story(world: World) -> dict[str, Any]:
    """Masters, a verifier and a manager, woken in turn; the merge's record."""
    world.add(
        *(assigned(f"TASK_001_{part}") for part in "ab"), assigned("TASK_003"), assigned("TASK_009", "translator")
    )
    mine = Agent(world, "master", "master_review_01")
    results = {"TASK_001_a": "第 12 行：SQL 注入", "TASK_001_b": ["没有问题"], "TASK_002": {"会话": "$(没有) 'n'\\n"}}
    work(mine, results)
    assert mine.seen == ["TASK_001_a", "TASK_001_b", "TASK_003", "TASK_009"]
    before = world.records()
    assert [r["id"] for r in before if r["event"] == "task_blocked"] == ["TASK_003"]
    assert not [r for r in before if r["id"] == "TASK_009" and r["who"] == mine.me]

    work(mine, results)
    assert len(mine.seen) == 4, "a second wake-up reads only what is new"
    assert world.records() == before, "and where nothing is new it writes nothing"

    world.add(assigned("TASK_002"), assigned("TASK_004"))
    other, ghost = Agent(world, "master", "master_review_02"), Agent(world, "master", "master_ghost")
    assert ghost.run(3, TASK="TASK_004", N="1")[0] == 0
    assert other.run(3, TASK="TASK_002", N="1")[0] == 0
    work(mine, results)
    assert mine.seen[4:] == ["TASK_002", "TASK_004"]
    assert not [r for r in world.records(f"--who {mine.me}") if r["id"] in ("TASK_002", "TASK_004")]
    assert other.run(5, RESULT=json.dumps(results["TASK_002"], ensure_ascii=False))[0] == 0

    verdicts = {"TASK_001_a": "confirmed", "TASK_001_b": "rejected", "TASK_002": "partial"}
    judge = Agent(world, "verifier", "verifier_01")
    check(judge, verdicts)
    check(judge, verdicts)
    given = {r["detail"]["verifies"]: r for r in world.records("--who verifier_01 --event task_completed")}
    assert {task: r["detail"]["verdict"] for task, r in given.items()} == verdicts
    assert {r["trace"]["parent_id"] for r in given.values()} == set(verdicts)
    assert len(judge.seen) == len(set(judge.seen)), "no record was read twice"

    manager, lost = Agent(world, "manager", "manager_01"), list[str]()
    while not lost:  # the ghost is silent from its claim on
        code, lost = manage(manager, "一个任务受阻")
        assert code == 1
    assert lost == ["master_ghost"]
    (loss,) = (r for r in world.records("--event task_agent_lost") if r["id"] == "TASK_004")
    assert loss["detail"]["agent"] == "master_ghost"
    assert loss["detail"]["last_seen"] <= loss["time"]
    for task in ("TASK_003", "TASK_004", "TASK_009"):
        world.must(f"rolecall task cancel {task} {world.at} --as person_ann --why 不需要")
    assert manage(manager, "已合并") == (0, [])
    assert manage(manager, "没有新消息") == (0, [])
    assert len(manager.seen) == len(set(manager.seen)), "no entry was read twice"
    last = world.records("--who manager_01 --event checkpoint")
    assert last[-1]["detail"]["last_check"] == manager.words["NEXT"]
    assert (
        world.records("--event summary")[-1]["detail"]["done"] == world.records("--event summary")[-1]["detail"]["of"]
    )
    assert world.records("--event protocol_violation")[0]["detail"]["reason"] == "duplicate_id"
    (merge,) = world.records("--event task_merged")
    return merge


def world_at(folder: Path, env: dict[str, str], at: str) -> World:
    folder.mkdir()
    return World(folder, {**env, "ROLECALL_LOST_S": str(LOST_S)}, at)


def test_three_agents_that_follow_their_pages_end_in_the_same_merge_on_a_file_and_on_redis(
    tmp_path: Path, fleet_env: dict[str, str]
) -> None:
    with commands(tmp_path / "bin") as bin, ThreadPoolExecutor(2) as pool:
        on_redis = {**fleet_env, "PATH": f"{bin}{os.pathsep}{fleet_env['PATH']}"}
        here = {name: value for name, value in on_redis.items() if name != "REDIS_URL"}
        file = world_at(tmp_path / "file", here, "--state state.json")
        file.must("rolecall init-state --task-space review -o state.json")
        redis = world_at(tmp_path / "redis", on_redis, "--space review")
        redis.must("rolecall create-task-space review --store redis")
        one, other = pool.map(story, (file, redis))
    assert one["id"] == other["id"]
    assert one["id"].startswith("MERGE_")
    assert one["detail"]["kept"] == other["detail"]["kept"] == ["TASK_001_a", "TASK_002"]
    assert one["detail"]["verification_status"]["TASK_001_b"] == "rejected"
    assert (tmp_path / "file/merged.md").read_bytes() == (tmp_path / "redis/merged.md").read_bytes()


def test_the_kit_says_where_it_is_and_copies_itself(cli: Cli, tmp_path: Path) -> None:
    assert cli("kit").out.strip() == str(FOLDER)
    for _ in range(2):  # over an older copy of its own
        made = Path(cli("kit", "--to", ".claude/skills", "--json").json["path"])
        assert made == tmp_path / ".claude/skills/rolecall-protocol"
        names = {str(path.relative_to(made)) for path in made.rglob("*.md")}
        assert names == {"SKILL.md", *(f"reference/{n}.md" for n in ("loop", "master", "verifier", "manager"))}
    assert "# Manager" in cli("kit", "--prompt", "manager").out
    (tmp_path / "other/rolecall-protocol").mkdir(parents=True)
    assert "no copy of the skill" in cli("kit", "--to", "other", expect=1).err
    assert "known: master, verifier, manager" in cli("kit", "--prompt", "总管", expect=2).err


def test_the_example_is_a_clean_state_with_a_conflict_and_an_overlap(cli: Cli) -> None:
    at = ("--state", str(ROOT / "examples/state.json"))
    assert cli("detect-anomalies", "--fail", "--json", *at).json["anomalies"] == []
    decisions = cli("arbitrate", "--dry-run", "--json", *at).json["decisions"]
    assert [one["kind"] for one in decisions] == ["conflict", "overlap"]
    merged = cli("merge-outputs", "--dry-run", "--json", *at).json
    assert merged["kept"] == ["TASK_001_a", "TASK_002"]
    assert merged["deduped_from"] == ["TASK_003"]
    assert merged["status"] == "delivered"
