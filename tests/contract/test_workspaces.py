"""Workspaces on both stores: the table, the paths, what a refusal leaves; the shared cases SC-01."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from coordinator.workspaces import Workspaces
from protocol.errors import AppendRefused, ConfigError, Refused
from protocol.ports import Areas
from protocol.record import Record
from protocol.stores.file_areas import FileAreas, FolderArtifacts, folder_of
from protocol.stores.jsonfile import JsonFile
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_workspaces import RedisAreas
from protocol.workspaces import AREAS, KINDS, READERS, WRITERS, kind_of, mark_of, parse_place, refusal
from tests.contract.conftest import Kit, assigned, record

CASES = [
    case
    for line in (Path(__file__).parents[1] / "unit/data/cases/security.jsonl").read_text("utf-8").splitlines()
    if (case := orjson.loads(line))["id"].startswith("SC-01")
]
MASTER, OTHER = "master_a_01", "master_b_01"


def areas_of(kit: Kit) -> Areas:
    if isinstance(kit.log, JsonFile):
        return FileAreas(kit.log)
    assert kit.client is not None and kit.keys is not None
    return RedisAreas(kit.client, kit.keys, kit.log)


def of(kit: Kit, who: str) -> Workspaces:
    return Workspaces(kit.log, areas_of(kit), kit.space, who)


async def violations(kit: Kit) -> list[Record]:
    return [r for _, r in await kit.all() if r.event == "protocol_violation"]


async def test_what_is_put_is_read_back_and_on_record_with_its_digest(kit: Kit) -> None:
    mine = of(kit, MASTER)
    text = "笔记：\u001f\u0000“引号”\n第二行 \U0001f600\n"
    put = await mine.put(f"private/{MASTER}/notes/一.md", text.encode())
    assert await mine.get(f"private/{MASTER}/notes/一.md") == text
    assert await mine.listing(f"private/{MASTER}") == [
        {"path": f"private/{MASTER}/notes/一.md", "size": len(text.encode())}
    ]
    told = (await kit.log.get(kit.space, put.entry)) or record("error")
    assert told.who == MASTER and told.event == "info"
    assert told.detail["workspace"] == {"area": "private", "path": f"{MASTER}/notes/一.md", "digest": put.sha256}
    assert (await mine.put(f"private/{MASTER}/notes/一.md", text.encode())).outcome == "already"
    for words in ("B", text, "B"):  # there and back again: each is written
        assert (await mine.put(f"private/{MASTER}/notes/一.md", words.encode())).outcome == "added"
        assert await mine.get(f"private/{MASTER}/notes/一.md") == words
    assert len(await kit.all()) == 4 and not await violations(kit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("area", AREAS)
async def test_the_table_of_who_may_do_what(kit: Kit, kind: str, area: str) -> None:
    who = f"{kind}_x_1"
    place = {"private": f"private/{who}/f", "queue": "queue"}.get(area, f"{area}/f")
    data = b'{"id": "T9", "role": "writer"}' if area == "queue" else b"x"
    written = kind in WRITERS[area]
    if written:
        assert (await of(kit, who).put(place, data)).outcome == "added"
    else:
        with pytest.raises(Refused) as refused:
            await of(kit, who).put(place, data)
        assert refused.value.reason == "foreign_workspace"
        assert [v.detail["reason"] for v in await violations(kit)] == ["foreign_workspace"]
    before = len(await violations(kit))
    if kind in READERS[area]:
        if written and area != "queue":
            assert await of(kit, who).get(place) == "x"
        else:
            await of(kit, who).listing(place.removesuffix("/f"))
        assert len(await violations(kit)) == before
    else:
        with pytest.raises(Refused):
            await of(kit, who).listing(place.removesuffix("/f"))
        assert len(await violations(kit)) == before + 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
async def test_the_shared_cases(kit: Kit, case: dict[str, Any]) -> None:
    who, op, path = case["input"]["as"], case["input"]["op"], case["input"]["path"]
    await of(kit, OTHER).put(f"private/{OTHER}/notes.md", b"untouched")
    await of(kit, MASTER).put(f"private/{MASTER}/own.md", b"own")
    if path.startswith("link_to_b"):
        if kit.kind == "redis":  # there are no links on Redis: the name is a plain one in the agent's own workspace
            await of(kit, who).put(f"private/{who}/{path}", b"x")
            assert await of(kit, OTHER).get(f"private/{OTHER}/notes.md") == "untouched"
            return
        root = folder_of(kit.log.path) / "private"  # type: ignore[union-attr]
        os.symlink(root / OTHER, root / who / "link_to_b")
    place = {
        "private workspace of master_a_01": f"private/{MASTER}/own.md", "summary area": "summaries/s.md",
        "shared knowledge": "shared/k.md",
    }.get(path, f"private/{who}/{path}")  # fmt: skip
    with pytest.raises(Refused):
        await (of(kit, who).put(place, b"evil") if op == "write" else of(kit, who).get(place))
    if case["expect"].get("event"):
        assert [v.detail["reason"] for v in await violations(kit)] == ["foreign_workspace"]
    assert await of(kit, OTHER).get(f"private/{OTHER}/notes.md") == "untouched"
    assert await of(kit, MASTER).get(f"private/{MASTER}/own.md") == "own"
    if kit.kind == "file":
        assert not (kit.folder / "notes.md").exists() and not Path("/abs").exists()


@pytest.mark.parametrize(
    "place",
    [
        "", "elsewhere/f", "private", "private/", "private/../etc/f", "private/master_a_01/../master_b_01/f",
        "shared/../x", "shared//f", "shared/./f", "/shared/f", "shared/a\\b", "shared/a\nb", "shared/a\x00b",
        "shared/.~f",
        "queue/f",
        f"shared/{'x' * 300}", f"shared/{'y/' * 400}z", "private/master a/f", "private/私/f", "shared/..",
        "shared/\udc80",
    ],
)  # fmt: skip
async def test_a_path_that_could_leave_its_place_is_refused_and_recorded(kit: Kit, place: str) -> None:
    with pytest.raises(Refused):
        await of(kit, MASTER).put(place, b"x")
    assert [v.detail["reason"] for v in await violations(kit)] == ["foreign_workspace"]


async def test_a_record_that_names_a_foreign_workspace_is_refused_by_the_store(kit: Kit) -> None:
    for n, (who, area, path) in enumerate(
        [
            (MASTER, f"private/{OTHER}", "notes.md"), (MASTER, "private", f"{OTHER}/notes.md"),
            (MASTER, "summaries", "s"), (MASTER, f"private/{MASTER}", "../master_b_01/notes.md"),
            ("manager_1", "private/manager_1", "x"),
            ("verifier_1", "shared", "k"), (MASTER, "shared", "../private/master_b_01/x"), (MASTER, "", ""),
            (MASTER, "bad\x1f|area", "x"), ("master_a", "private/master_a_01", "x"),
        ]
    ):  # fmt: skip
        named = record("info", f"INFO_{n}", who, workspace={"area": area, "path": path, "digest": "0"})
        out = await kit.one(named)
        assert (out.outcome, out.reason) == ("refused", "foreign_workspace"), (who, area, path)
    assert len(await violations(kit)) == 10
    fine = record("info", "INFO_F", MASTER, workspace={"area": "private", "path": f"{MASTER}/n.md", "digest": "0"})
    assert (await kit.one(fine)).outcome == "added"


async def test_the_refusal_stands_in_the_step_that_would_have_written(kit: Kit) -> None:
    """Past every check before it: the store itself refuses, and no file is there."""
    place = parse_place(f"private/{OTHER}/f")
    named = record("info", "INFO_1", MASTER, workspace={"area": "private", "path": f"{OTHER}/f", "digest": "0"})
    out = await areas_of(kit).put(kit.space, named, place, "evil")
    assert out.outcome == "refused" and out.reason == "foreign_workspace"
    assert await areas_of(kit).get(kit.space, place) is None
    assert mark_of(named) == f"private|{OTHER}|master" and kind_of(MASTER) == "master"
    assert refusal(place, MASTER, "master") == out.message


async def test_shared_knowledge_is_a_persons_to_write_and_everybodys_to_read(kit: Kit) -> None:
    await of(kit, "person_root").put("shared/规则/a.md", "规则一".encode())
    for who in (MASTER, "verifier_1", "manager_1"):
        assert await of(kit, who).get("shared/规则/a.md") == "规则一"
    assert await of(kit, MASTER).listing("shared/规则") == [{"path": "shared/规则/a.md", "size": 9}]
    assert await of(kit, MASTER).listing("shared/规") == []


async def test_the_queue_shows_tasks_and_takes_proposals(kit: Kit) -> None:
    await kit.one(assigned())
    shown = orjson.loads(await of(kit, "verifier_1").get("queue"))
    assert shown == [{"agent": "writer_1", "attempt": 1, "role": "writer", "state": "assigned", "task": "T1"}]
    assert await of(kit, MASTER).listing("queue") == shown
    put = await of(kit, MASTER).put("queue", "好的：[{“id”: “T2”，“role”: “writer”}]".encode())
    told = await kit.log.get(kit.space, put.entry)
    assert told is not None and told.detail["subtasks"] == [{"id": "T2", "role": "writer"}]
    assert told.detail["kind"] == "proposal"
    for bad in (b"", b"no json", b"[1]", b"[]"):
        with pytest.raises(Refused):
            await of(kit, MASTER).put("queue", bad)


async def test_what_is_no_small_text_is_refused_by_name(kit: Kit) -> None:
    with pytest.raises(Refused, match="262,144") as refused:
        await of(kit, MASTER).put(f"private/{MASTER}/f", b"x" * 262_145)
    assert refused.value.reason == "too_large"
    with pytest.raises(ConfigError, match="UTF-8"):
        await of(kit, MASTER).put(f"private/{MASTER}/f", b"\xff")
    for missing in (f"private/{MASTER}/f", f"private/{MASTER}", "shared/none"):
        with pytest.raises(Refused, match="no file"):
            await of(kit, MASTER).get(missing)
    with pytest.raises(Refused, match="names no file"):
        await of(kit, MASTER).put(f"private/{MASTER}", b"x")


async def test_a_full_space_refuses_the_file_with_its_record(kit: Kit) -> None:
    if isinstance(kit.log, JsonFile):
        small: Areas = FileAreas(JsonFile(kit.log.path, records_max=0))
    else:
        assert kit.client is not None and kit.keys is not None
        small = RedisAreas(kit.client, kit.keys, RedisLog(kit.client, kit.keys, records_max=0))
    with pytest.raises(AppendRefused, match="0 records"):
        await Workspaces(kit.log, small, kit.space, MASTER).put(f"private/{MASTER}/f", b"x")
    assert await areas_of(kit).listing(kit.space, "private", MASTER) == []


async def test_links_in_a_folder_are_never_followed(tmp_path: Path) -> None:
    log = JsonFile(tmp_path / "S.json")
    await log.create("S", meta={"kind": "hand"})
    secret = tmp_path / "secret"
    secret.write_text("secret")
    mine = Workspaces(log, FileAreas(log), "S", MASTER)
    await mine.put(f"private/{MASTER}/d/own", b"own")
    folder = folder_of(log.path) / "private" / MASTER
    (folder / "file").symlink_to(secret)
    (folder / "folder").symlink_to(tmp_path)
    for read in ("file", "folder/secret"):
        with pytest.raises(Refused, match="link"):
            await mine.get(f"private/{MASTER}/{read}")
    for write in ("file", "folder/secret", "d"):
        with pytest.raises(Refused, match="link"):
            await mine.put(f"private/{MASTER}/{write}", b"evil")
    assert secret.read_text() == "secret"
    assert [row["path"] for row in await mine.listing(f"private/{MASTER}")] == [f"private/{MASTER}/d/own"]
    os.mkfifo(folder / "pipe")
    with pytest.raises(Refused, match="no file"):
        await mine.get(f"private/{MASTER}/pipe")
    artifacts = FolderArtifacts(log)
    ref = await artifacts.put("S", "大".encode())
    assert await artifacts.get("S", ref.sha256) == "大".encode()
    (folder_of(log.path) / "artifacts" / ref.sha256).write_bytes(b"?")
    with pytest.raises(Exception, match="damaged"):
        await artifacts.get("S", ref.sha256)
    assert await artifacts.drop("S", ref.sha256) and not await artifacts.drop("S", ref.sha256)
    with pytest.raises(Exception, match="no artifact"):
        await artifacts.get("S", "../../secret")
