"""The projections made anew: equal to the live ones after any history, put in place where they are not."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.rebuild import Rebuilding, Rebuilt, rebuild_file
from protocol.keys import Keys
from protocol.stores.client import connect
from protocol.stores.jsonfile import JsonFile
from protocol.stores.redis_claims import Claims
from protocol.stores.redis_dispatch import Ref
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_projections import INDEX_FROM, RedisProjections
from protocol.stores.scripts import source
from protocol.tasks import pack
from tests.contract.conftest import SPACE, Kit, assigned, record
from tests.integration import test_law as drawn_law

OWNERS = ("", drawn_law.START, drawn_law.OTHER)


async def rebuild(kit: Kit, *, check: bool = True) -> Rebuilt:
    if isinstance(kit.log, JsonFile):
        return await rebuild_file(kit.log, kit.space, check=check)
    assert kit.client is not None and kit.keys is not None
    return await Rebuilding(RedisProjections(kit.client, kit.keys), kit.space).run(check=check)


async def history(kit: Kit, n: int = 120) -> None:
    """A history with everything in it: what is held, due, lost, blocked, decided, refused, merged; few and many."""
    for k in range(n):
        await kit.add(assigned(f"T{k}"), record("info", f"INFO_{k}", f"master_{k % 40}", session=f"s{k % 3}"))
    await kit.add(
        *(record("task_processing", f"T{k}", "writer_1", attempt=1, worker=drawn_law.START) for k in range(9))
    )
    await kit.add(
        record("task_completed", "T0", "writer_1", result="好"),
        record("task_failed", "T1", "writer_1", error={"kind": "k", "message": "m", "retryable": True}),
        record("task_retrying", "T1", "writer_1", attempt=2, delay_s=30, reason="r"),
        record("task_blocked", "T2", "writer_1", requires_human_intervention=True, reason="r"),
        owner=drawn_law.START,
    )
    await kit.add(
        record("task_agent_lost", "T3", "manager", attempt=1, agent="writer_1", last_seen=1),
        record("task_agent_lost", "idle_1", "manager", agent="idle_1", last_seen=1),
        record("decision", "DEC_1", "person_x", action="retry", task="T2", by="p", why="再"),
        record("decision", "DEC_2", "person_x", action="finish", by="p", why="完", status="completed"),
        record("task_completed", "T4", "writer_1", result="偷"),  # refused: not the owner
        record("info", "INFO_1", other=1),  # refused: a duplicate
        record("task_merged", "MERGE_1", "manager", source_tasks=["T0"], by={"actor": "manager"}),
    )


async def test_live_and_rebuilt_are_equal_and_a_check_changes_nothing(kit: Kit) -> None:
    assert (await rebuild(kit)).differences == ()
    await history(kit, 20)
    done = await rebuild(kit)
    assert done.differences == () and not done.written and done.records == len(await kit.all())
    await history(kit, 150)
    done = await rebuild(kit)
    assert done.differences == () and done.records > INDEX_FROM
    assert not (await rebuild(kit, check=False)).written, "what is equal is not written"


async def test_what_is_wrong_is_named_and_mended(kit: Kit) -> None:
    await history(kit)
    live = await kit.log.task_states(kit.space)
    meta = await kit.log.meta(kit.space)
    if kit.client is not None and kit.keys is not None:
        k = kit.keys.space(kit.space)
        c: Any = kit.client
        await c.hset(k.tasks, "T5", "completed|1||||0|0||")
        await c.hdel(k.tasks, "T6")
        await c.hset(k.ids, "INFO_GHOST", "d,1-0")
        await c.delete(k.held)
        await c.zadd(k.due, {"T0": 5})
        await c.zadd(k.outbox, {"T0": 5})
        await c.hset(k.meta, mapping={"n": "3", "merged": "9-9", "bytes": "1"})
        await c.hdel(k.names, "w:master_1")
        await c.xadd(k.index("e", "info"), {"": ""})
        await c.delete(k.index("w", "leader"))
        expected = {"tasks", "ids", "held", "due", "outbox", "meta", "names", "index"}
    else:
        assert isinstance(kit.log, JsonFile)
        value = orjson.loads(kit.log.path.read_bytes())
        value["tasks"]["T5"]["state"] = "completed"
        del value["tasks"]["T6"]
        value["ids"]["INFO_GHOST"] = "d,1-0"
        value["meta"]["merged"] = "9-9"
        kit.log.path.write_bytes(orjson.dumps(value))
        expected = {"tasks", "ids", "meta"}
    before = await kit.log.task_states(kit.space)
    done = await rebuild(kit)
    assert {d.projection for d in done.differences} == expected and not done.written
    assert {d.key for d in done.differences if d.projection == "tasks"} == {"T5", "T6"}
    assert await kit.log.task_states(kit.space) == before, "a check changes nothing"
    assert (await rebuild(kit, check=False)).written
    assert (await rebuild(kit)).differences == ()
    assert {t: pack(s) for t, s in (await kit.log.task_states(kit.space)).items()} == {
        t: pack(s) for t, s in live.items()
    }
    assert await kit.log.meta(kit.space) == meta
    for who in ("master_1", "leader", "master_*"):
        page = await kit.log.read(kit.space, who=who, limit=1000)
        wanted = [r.id for _, r in await kit.all() if r.who == who or (who[-1] == "*" and r.who.startswith(who[:-1]))]
        assert [r.id for r in page.records] == wanted


async def test_everything_lost_but_the_log_comes_back_and_work_goes_on(kit: Kit) -> None:
    await history(kit)
    if kit.client is not None and kit.keys is not None:
        k = kit.keys.space(kit.space)
        kept = await kit.log.meta(kit.space)
        names = [key async for key in kit.client.scan_iter(f"{k.base}:*") if key.decode() != k.log]
        await kit.client.delete(*names)
        await kit.client.hset(k.meta, mapping={f: v for f, v in kept.items() if f in ("kind", "policy", "created")})  # type: ignore[misc]
    else:
        assert isinstance(kit.log, JsonFile)
        value = orjson.loads(kit.log.path.read_bytes())
        value["tasks"], value["ids"], value["meta"] = {}, {}, {"kind": "hand"}
        kit.log.path.write_bytes(orjson.dumps(value))
    assert (await rebuild(kit, check=False)).written
    assert (await rebuild(kit)).differences == ()
    again = await kit.add(assigned("T7"), record("info", "INFO_7", f"master_{7}", session="s1"), assigned("T_new"))
    assert [o.outcome for o in again] == ["already", "already", "added"]
    if kit.client is not None and kit.keys is not None:
        assert await kit.client.zscore(kit.keys.space(kit.space).outbox, "T50") is not None
        got = (await Claims(kit.client, kit.keys).claim([Ref("writer", kit.space, "T50", 1)], "writer@h:9:z", now_s=1))[
            0
        ]
        assert getattr(got, "owner", "") == "writer@h:9:z"
    assert (await rebuild(kit)).differences == ()


async def test_an_entry_that_is_no_record_is_counted_and_stops_nothing(kit: Kit) -> None:
    await history(kit)
    if kit.client is not None and kit.keys is not None:
        await kit.client.xadd(kit.keys.space(kit.space).log, {"id": "X", "event": "?"})
    else:
        assert isinstance(kit.log, JsonFile)
        value = orjson.loads(kit.log.path.read_bytes())
        value["last"] = "9999999999999-0"
        value["records"].append({"entry": "9999999999999-0", "record": {"id": "X"}})
        kit.log.path.write_bytes(orjson.dumps(value))
    done = await rebuild(kit)
    assert done.faults == 1
    assert all(d.projection == "meta" for d in done.differences), "an entry past the store is in no counter"


async def test_what_is_appended_meanwhile_is_caught_up_with(kit: Kit) -> None:
    if kit.client is None or kit.keys is None:
        assert isinstance(kit.log, JsonFile)
        await asyncio.gather(*(kit.one(record("info", f"INFO_{n}")) for n in range(20)), rebuild(kit, check=False))
        assert (await rebuild(kit)).differences == () and len(await kit.all()) == 20
        return
    await history(kit)
    store = _Busy(kit)
    await kit.client.hdel(kit.keys.space(kit.space).tasks, "T9")  # type: ignore[misc]
    done = await Rebuilding(store, kit.space).run(check=False)
    assert done.written and store.left == 0
    assert (await rebuild(kit)).differences == ()


class _Busy(RedisProjections):
    """Somebody appends between its steps, three times."""

    def __init__(self, kit: Kit) -> None:
        assert kit.client is not None and kit.keys is not None
        super().__init__(kit.client, kit.keys)
        self.kit, self.left = kit, 3

    async def live(self, space: str) -> Any:
        found = await super().live(space)
        await self._meddle()
        return found

    async def stage(self, space: str, made: Any) -> None:
        await super().stage(space, made)
        await self._meddle()

    async def _meddle(self) -> None:
        if self.left:
            self.left -= 1
            await self.kit.one(record("info", f"INFO_busy_{self.left}", "busy_1"))


def test_the_number_from_which_a_space_is_indexed_is_the_scripts() -> None:
    found = re.search(r"INDEX_FROM = (\d+)", source("append"))
    assert found is not None and int(found[1]) == INDEX_FROM


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=st.lists(drawn_law.op, min_size=1, max_size=40), bulk=st.sampled_from([0, 240, 300]))
def test_after_a_random_history_the_rebuilt_equals_the_live_on_both(
    redis_url: str, prefix: str, tmp_path: Path, ops: list[dict[str, Any]], bulk: int
) -> None:
    async def play() -> None:
        client = connect(redis_url)
        await client.flushall()
        path = tmp_path / "s.json"
        path.unlink(missing_ok=True)
        keys = Keys(prefix)
        kits = [
            Kit(RedisLog(client, keys), "redis", tmp_path, client, keys), Kit(JsonFile(path), "file", tmp_path)
        ]  # fmt: skip
        try:
            for kit in kits:
                await kit.log.create(SPACE, meta={"kind": "hand"})
                await kit.add(*(record("info", f"INFO_{n}", f"master_{n % 5}") for n in range(bulk)))
                for at in range(0, len(ops), 7):
                    for owner in OWNERS:
                        part = [
                            drawn_law.record_of(o, at + k)
                            for k, o in enumerate(ops[at : at + 7])
                            if o["owner"] == owner
                        ]
                        await kit.add(*part, owner=owner)
                done = await rebuild(kit)
                assert done.differences == (), done.differences
        finally:
            await client.flushall()
            await client.aclose()

    asyncio.run(play())
