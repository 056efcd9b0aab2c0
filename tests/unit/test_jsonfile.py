"""The state file itself: readable, whole, refused by name where it is torn or somebody else's, bounded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from protocol.errors import ConfigError, Refused, StoreDenied, StoreError, StoreFull
from protocol.record import Record
from protocol.stores import filelock, statefile
from protocol.stores.jsonfile import JsonFile
from protocol.stores.ledger import Ledger

META = {"kind": "hand", "policy": "hold", "session": "s1", "title": "渗透测试"}


def info(id: str, **detail: Any) -> Record:
    return Record(
        id=id, who="master_a", time=1719600000, event="info", what="一句话", detail=detail,
        trace={"parent_id": None, "session_id": "s1"},  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
async def log(tmp_path: Path) -> JsonFile:
    made = JsonFile(tmp_path / "项目.json", clock=lambda: 1719600000.0, wait_s=0.05)
    await made.create("S", meta=META)
    return made


async def test_a_person_can_read_it(log: JsonFile) -> None:
    await log.append("S", [info("INFO_1", text="“引号”，全角")])
    text = log.path.read_text("utf-8")
    assert '\n  "space": "S",\n' in text and '"title": "渗透测试"' in text and "“引号”，全角" in text
    assert '\n    {\n      "entry": "1719600000000-0",\n      "record": {\n        "id": "INFO_1",' in text
    assert text.endswith("}\n") and list(json.loads(text))[:2] == ["format", "version"]


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (b"", "torn_file", "torn"),
        (b"CUT", "torn_file", "torn"),
        (b"\n  \n", "torn_file", "torn"),
        (b"hello", "foreign_file", "not JSON"),
        (b"\xff\xfe\x00", "foreign_file", "not JSON"),
        (b"[]", "foreign_file", "somebody else's"),
        (b'{"format": "other", "records": []}', "foreign_file", "somebody else's"),
        (b'{"name": "package", "version": 1}', "foreign_file", "somebody else's"),
        (b'{"format": "rolecall state", "version": 99}', "foreign_file", "version 99"),
        (b'{"format": "rolecall state", "version": 1}', "torn_file", "damaged"),
        (b"[" * 100_000, "foreign_file", "not JSON"),
    ],
)
async def test_a_torn_or_foreign_file_is_refused_by_name_and_left_alone(
    log: JsonFile, data: bytes, reason: str, words: str
) -> None:
    if data == b"CUT":
        data = log.path.read_bytes()[:-40]
    log.path.write_bytes(data)
    for work in (log.read("S"), log.append("S", [info("INFO_1")]), log.meta("S"), log.create("S", meta=META)):
        with pytest.raises(Refused, match=words) as refused:
            await work
        assert refused.value.reason == reason and "项目.json" in refused.value.message
    assert log.path.read_bytes() == data
    assert not [p.name for p in log.path.parent.iterdir() if p.name.endswith(".tmp")]


async def test_nothing_is_put_beside_somebody_elses_file(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"name": "ours is not"}')
    with pytest.raises(Refused):
        await JsonFile(tmp_path / "package.json").append("S", [info("INFO_1")])
    assert [p.name for p in tmp_path.iterdir()] == ["package.json"]


async def test_integers_past_64_bits_stay_exact_over_many_writes(log: JsonFile) -> None:
    big = 123456789012345678901234567890
    await log.append("S", [info("INFO_1", n=big)])
    await log.append("S", [info("INFO_2", n=-big, f=0.1)])
    assert [r.detail["n"] for r in (await log.read("S")).records] == [big, -big]
    assert str(big) in log.path.read_text("utf-8") and "  " in log.path.read_text("utf-8")


def damage(change: str) -> bytes:
    ledger = Ledger("S", dict(META))
    ledger.admit([info("INFO_1"), info("INFO_2")], now_ms=1719600000000)
    value: dict[str, Any] = orjson.loads(statefile.dump(ledger))
    exec(change, {"v": value})
    return orjson.dumps(value)


@pytest.mark.parametrize(
    "change",
    [
        "v['records'].reverse()", "v['records'][0]['entry'] = '17x-0'", "v['records'][1]['record'] = []",
        "v['last'] = '1-0'", "v['tasks'] = {'T1': {'state': 'x'}}", "v['ids'] = {'INFO_1': 'x'}", "del v['meta']",
        "v['records'] = {}", "v['records'] = [3]",
    ],
)  # fmt: skip
async def test_a_file_whose_order_is_broken_is_refused(log: JsonFile, change: str) -> None:
    data = damage(change)
    log.path.write_bytes(data)
    with pytest.raises(Refused, match="damaged"):
        await log.append("S", [info("INFO_3")])
    assert log.path.read_bytes() == data


async def test_an_entry_that_is_no_record_is_named_where_it_is_read(log: JsonFile) -> None:
    log.path.write_bytes(damage("del v['records'][0]['record']['trace']"))
    with pytest.raises(Refused, match="1719600000000-0") as refused:
        await log.read("S")
    assert refused.value.reason == "damaged_record" and "detect-anomalies" in refused.value.mend
    assert [r.id for r in (await log.read("S", since="1719600000000-0")).records] == ["INFO_2"]


async def test_a_file_of_another_space_a_folder_and_no_file_are_named(log: JsonFile, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds the space 'S', not 'other'"):
        await log.append("other", [info("INFO_1")])
    with pytest.raises(ConfigError, match="no state file"):
        await JsonFile(tmp_path / "none.json").append("S", [info("INFO_1")])
    with pytest.raises(ConfigError, match="folder"):
        await JsonFile(tmp_path).append("S", [info("INFO_1")])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["项目.json", "项目.json.lock"], "no lock beside a slip"


async def test_it_is_made_once_and_anew_only_by_force(log: JsonFile) -> None:
    await log.append("S", [info("INFO_1")])
    assert not await log.create("S", meta=META)
    assert len((await log.read("S")).records) == 1
    log.path.write_text("not ours")
    assert await log.create("S2", meta=META, replace=True)
    assert (await log.read("S2")).records == () and (await log.meta("S2"))["kind"] == "hand"


async def test_fifty_thousand_records_are_the_most_and_a_bulk_add_is_one_replace(
    log: JsonFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    monkeypatch.setattr(os, "replace", _counting(os.replace, written))
    out = await log.append("S", [info(f"INFO_{n}") for n in range(50_001)])
    assert len(written) == 1
    assert [o.outcome for o in out].count("added") == 50_000
    assert (out[-1].outcome, out[-1].reason) == ("refused", "too_large") and "50000" in out[-1].message
    assert len((await log.read("S", since=out[-2].entry)).records) == 0


def _counting(real: Any, seen: list[int]) -> Any:
    def replace(*args: Any, **kwargs: Any) -> None:
        seen.append(1)
        real(*args, **kwargs)

    return replace


async def test_what_changes_nothing_writes_nothing(log: JsonFile) -> None:
    await log.append("S", [info("INFO_1")])
    before = log.path.stat()
    assert (await log.append("S", [info("INFO_1")]))[0].outcome == "already"
    after = log.path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


async def test_its_rights_and_its_link_stay(log: JsonFile, tmp_path: Path) -> None:
    log.path.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(log.path)
    await JsonFile(link).append("S", [info("INFO_1")])
    assert link.is_symlink() and log.path.stat().st_mode & 0o777 == 0o640
    assert [r.id for r in (await log.read("S")).records] == ["INFO_1"]


@pytest.mark.parametrize(("code", "kind"), [(28, StoreFull), (13, StoreDenied), (5, StoreError)])
async def test_a_disk_that_fails_is_named_and_the_old_state_stands(
    log: JsonFile, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[StoreError]
) -> None:
    await log.append("S", [info("INFO_1")])

    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind, match="项目.json"):
        await log.append("S", [info("INFO_2")])
    monkeypatch.undo()
    assert [r.id for r in (await log.read("S")).records] == ["INFO_1"]
    assert not list(log.path.parent.glob(".*.tmp"))


async def test_what_a_dead_writer_left_beside_it_goes_with_the_next_write(log: JsonFile) -> None:
    left = log.path.parent / f".{log.path.name}.999-abcd.tmp"
    left.write_text("half")
    other = log.path.parent / ".other.json.999-abcd.tmp"
    other.write_text("not ours")
    await log.append("S", [info("INFO_1")])
    assert not left.exists() and other.exists()


async def test_a_file_that_changes_all_the_time_is_given_up_by_name(
    log: JsonFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = statefile.dump

    def meddle(ledger: Ledger) -> bytes:
        log.path.write_bytes(real(Ledger("S", {"title": os.urandom(4).hex()})))
        return real(ledger)

    monkeypatch.setattr(statefile, "dump", meddle)
    with pytest.raises(StoreError, match="does not hold its lock"):
        await log.append("S", [info("INFO_1")])


async def test_a_lock_whose_side_file_was_removed_is_not_taken_for_held(log: JsonFile) -> None:
    async with filelock.locked(log.path):
        filelock.side_file(log.path).unlink()
        async with filelock.locked(log.path, wait_s=0.05):  # another file by now, so another lock
            pass
    await log.append("S", [info("INFO_1")])
    assert filelock.holder(log.path) is None


async def test_a_lock_file_that_is_a_link_is_refused(log: JsonFile, tmp_path: Path) -> None:
    side = filelock.side_file(log.path)
    side.unlink()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    side.symlink_to(victim)
    with pytest.raises(StoreError, match="lock file"):
        await log.append("S", [info("INFO_1")])
    assert victim.read_text() == "precious"
