"""Invariant 6: append, enqueue, clear; whoever dies, is late or is repeated, a dispatch is in exactly one place."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from typing import Any

import pytest
from redis.crc import key_slot

from coordinator.rebuild import Rebuilding
from protocol.keys import Keys
from protocol.kit.settings import Settings
from protocol.ports import Dispatch
from protocol.stores import scripts
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_dispatch import Ref
from protocol.stores.redis_projections import RedisProjections
from tests.integration.invariantkit import BY, OTHER, ROLE, SPACE, START, Kit, assigned, kit_on, manager_of, record

REF = Ref(ROLE, SPACE, "T1", 1)


@pytest.fixture
async def kit(redis_url: str, prefix: str) -> AsyncIterator[Kit]:
    async with kit_on(redis_url, prefix) as made:
        yield made


async def backlog(kit: Kit, role: str = ROLE) -> int:
    return (await kit.streams.backlog([role]))[role]


# -- deaths between append, enqueue and clear --------------------------------------------------------------------------


async def test_a_death_after_the_append_or_after_the_enqueue_leaves_one_entry(kit: Kit, settings: Settings) -> None:
    await kit.add(assigned("T1"), assigned("T2"))
    # The leader enqueued T2 and died before it cleared the outbox; of T1 it died before the enqueue.
    await kit.poke("XGROUP", "CREATE", kit.keys.role(ROLE), "workers", "0", "MKSTREAM")
    await kit.streams._scripts.run("enqueue", [kit.keys.role(ROLE), kit.keys.queued(ROLE)], [100, SPACE, "T2", 1])
    assert await kit.outbox() == {"T1", "T2"}
    await kit.age_outbox()
    manager = manager_of(kit, settings)
    await manager.sweep()
    await manager.sweep()
    assert (await kit.outbox(), await backlog(kit)) == (set(), 2)
    got = await kit.streams.read(ROLE, START, 10, 10)
    assert {ref.task for _, ref in got} == {"T1", "T2"}


async def test_what_is_in_a_workers_hands_is_not_enqueued_again_by_a_late_repeat(kit: Kit) -> None:
    await kit.add(assigned())
    await kit.streams.enqueue([REF])
    got = await kit.streams.read(ROLE, START, 10, 10)
    await kit.streams.enqueue([REF, REF])
    assert await backlog(kit) == 1, "read, not claimed: its entry is still there"
    await kit.claim()
    await kit.streams.enqueue([REF])
    assert await backlog(kit) == 1
    await kit.streams.ack(ROLE, got)
    await kit.streams.enqueue([REF])  # now there is one too many, and a claim is refused
    late = await kit.claims.claim([REF], OTHER, now_s=1)
    assert not isinstance(late[0], Dispatch)


async def test_whoever_clears_late_takes_nothing_out_that_was_assigned_since(kit: Kit, settings: Settings) -> None:
    await kit.add(assigned())
    await kit.streams.enqueue([REF])
    # A leader is stopped between enqueueing attempt 1 and clearing it; the task goes on to attempt 2 meanwhile.
    await kit.claim()
    await kit.add(
        record("task_agent_lost", who="manager", attempt=1, agent="a", last_seen=1, by=BY), assigned(attempt=2)
    )
    await kit.streams.clear_outbox([REF])
    assert await kit.outbox() == {"T1"}, "attempt 2 is not enqueued yet"
    await kit.age_outbox()
    await manager_of(kit, settings).sweep()
    assert Ref(ROLE, SPACE, "T1", 2) in [ref for _, ref in await kit.streams.read(ROLE, OTHER, 10, 10)]
    await kit.client.zadd(kit.keys.space(SPACE).outbox, {"T9": 1, "T1": 1})
    await kit.claim(attempt=2)
    await kit.streams.clear_outbox([REF, Ref(ROLE, SPACE, "T9", 1)])
    assert await kit.outbox() == set(), "what is assigned no more does not stay"


async def test_a_role_with_a_full_backlog_holds_up_no_other(kit: Kit, settings: Settings) -> None:
    for n in range(0, 600, 100):
        await kit.add(*(assigned(f"F{k}", role="painter") for k in range(n, n + 100)))
    await kit.add(assigned("T1"))
    key = kit.keys.space(SPACE).outbox
    for n, member in enumerate(sorted(await kit.outbox() - {"T1"})):
        await kit.client.zadd(key, {member: n + 1})
    await kit.client.zadd(key, {"T1": 1_000})
    manager = manager_of(kit, settings)
    manager._streams._backlog_max = 10
    for _ in range(3):
        await manager.sweep()
    assert await backlog(kit, "painter") == 10
    assert await backlog(kit) == 1, "600 tasks of a full role stood before it"
    assert len(await kit.outbox()) == 590, "they wait in the outbox"
    got = await kit.streams.read("painter", "painter@h:1:x", 10, 10)
    await kit.streams.ack("painter", got)
    await kit.age_outbox()
    await manager.sweep()
    assert await backlog(kit, "painter") == 10, "and go on as there is room"


async def test_a_stream_or_group_that_is_gone_comes_back_with_its_work_whoever_mends_it(
    kit: Kit, settings: Settings
) -> None:
    await kit.poke("HSET", kit.keys.roles, ROLE, '{"name":"w","digest":"d"}')
    await kit.add(*(assigned(f"T{n}") for n in range(4)))
    await kit.streams.enqueue([Ref(ROLE, SPACE, f"T{n}", 1) for n in range(4)])
    manager = manager_of(kit, settings)
    for gone in ("stream", "group"):
        if gone == "stream":
            await kit.client.delete(kit.keys.role(ROLE))
        else:
            await kit.poke("XGROUP", "DESTROY", kit.keys.role(ROLE), "workers")
        await kit.live()
        # A worker notices first, and makes stream and group anew before the manager looks.
        first = await kit.streams.read(ROLE, START, 10, 10)
        await manager.sweep()
        found = first + await kit.streams.read(ROLE, START, 10, 10)
        assert sorted(ref.task for _, ref in found) == ["T0", "T1", "T2", "T3"], gone


async def test_an_entry_that_is_no_reference_is_dropped_and_blocks_nothing(kit: Kit, settings: Settings) -> None:
    await kit.add(assigned())
    await kit.poke("XADD", kit.keys.role(ROLE), "*", "x", "y")
    await kit.poke("XADD", kit.keys.role(ROLE), "*", "s", "a b", "t", "T", "a", "1")
    await kit.poke("XADD", kit.keys.role(ROLE), "*", "s", SPACE, "t", "T", "a", "much")
    await kit.streams.enqueue([REF])
    await kit.streams.ensure_group(ROLE)
    got = await kit.streams.read(ROLE, START, 10, 10)
    assert [ref for _, ref in got] == [REF]
    assert await backlog(kit) == 1, "what is none was removed"
    await kit.poke("XADD", kit.keys.role(ROLE), "*", "x", "y")
    await kit.poke("XREADGROUP", "GROUP", "workers", START, "STREAMS", kit.keys.role(ROLE), ">")
    await kit.live()
    await kit.workers.bury(START, "test")
    await manager_of(kit, settings).sweep()
    assert await kit.workers.graves(unsettled=True) == []
    assert [ref for _, ref in await kit.streams.read(ROLE, OTHER, 10, 10)] == [REF]


async def test_acknowledging_is_one_step_and_leaves_a_newer_entry_alone(kit: Kit) -> None:
    await kit.add(assigned())
    await kit.streams.enqueue([REF])
    old = await kit.streams.read(ROLE, START, 10, 10)
    await kit.streams.requeue(old[0][0], REF)
    await kit.streams.ack(ROLE, old)
    await kit.streams.ack(ROLE, old)
    assert await backlog(kit) == 1
    await kit.streams.enqueue([REF])
    assert await backlog(kit) == 1, "`queued` still names the newer entry"
    new = await kit.streams.read(ROLE, OTHER, 10, 10)
    await kit.streams.ack(ROLE, new)
    assert await backlog(kit) == 0
    assert await kit.client.hlen(kit.keys.queued(ROLE)) == 0  # type: ignore[misc]


async def test_a_start_that_read_and_died_gives_its_entries_back_unharmed_under_either_policy(
    kit: Kit, settings: Settings
) -> None:
    await kit.make("held", kind="hand", policy="hold")
    for space in (SPACE, "held"):
        await kit.add(assigned(), space=space)
        await kit.streams.enqueue([Ref(ROLE, space, "T1", 1)])
    await kit.live()
    assert len(await kit.streams.read(ROLE, START, 10, 10)) == 2
    await kit.workers.bury(START, "test")
    one, two = manager_of(kit, settings), manager_of(kit, settings)
    grave = (await kit.workers.graves(unsettled=True))[0]
    pending = await kit.streams.pending_of(ROLE, START)
    await one._takeover.settle(grave)
    for entry, ref in pending:  # the second manager saw the same, and is late
        assert ref is not None
        await two._takeover._settle_entry(grave, entry, ref)
    again = await kit.streams.read(ROLE, OTHER, 10, 10)
    assert {ref.space for _, ref in again} == {SPACE, "held"}
    assert len(again) == 2
    assert (await kit.state()).tries == 0
    assert "task_agent_lost" not in await kit.events()
    consumers = await kit.client.xinfo_consumers(kit.keys.role(ROLE), "workers")
    assert [c["name"].decode() for c in consumers] == [OTHER], "the dead one is no consumer any more"


async def test_one_reference_twice_in_a_batch_is_one_claim(kit: Kit) -> None:
    await kit.add(assigned(), assigned("T2"))
    got = await kit.claims.claim([REF, Ref(ROLE, SPACE, "T2", 1), REF], START, now_s=1)
    assert all(isinstance(one, Dispatch) for one in got)
    assert sorted(await kit.events()) == ["task_assigned", "task_assigned", "task_processing", "task_processing"]
    done = await Rebuilding(RedisProjections(kit.client, kit.keys), SPACE).run(check=True)
    assert done.differences == ()


# -- Cluster: no script touches two slots ------------------------------------------------------------------------------


class Spied(scripts.Scripts):
    """Notes the keys of every run."""

    runs: list[tuple[str, tuple[str, ...]]]

    async def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        self.runs.append((name, tuple(keys)))
        return await super().run(name, keys, args)

    async def run_many(self, name: str, calls: Sequence[Any], **more: Any) -> list[Any]:
        self.runs += [(name, tuple(keys)) for keys, _ in calls]
        return await super().run_many(name, calls, **more)


def text_of(name: str) -> str:
    """A script as it stands, without what it includes."""
    return (files("protocol.stores") / "lua" / f"{name}.lua").read_text("utf-8")


def declared(name: str) -> tuple[str, ...]:
    """The keys that a script's head declares, by their words."""
    found = re.search(r"^-- KEYS: (.*)$", text_of(name), re.MULTILINE)
    return tuple(re.split(r"\s*\d+ ", re.sub(r"\([^)]*\)", "", found[1]))[1:]) if found else ()


OF_A_SPACE = ("log", "tasks", "ids", "meta", "outbox", "due", "held", "names", "beats", "snap", "live", "used", "calls",
              "agents", "arts", "docs")  # fmt: skip


def test_the_keys_of_a_space_a_role_the_register_and_the_list_lie_in_one_slot_each() -> None:
    keys = Keys("rc:")
    space = keys.space("S")
    whole = [getattr(space, name) for name in OF_A_SPACE]
    whole += [space.index("w", "x"), space.conv("a"), space.conv_meta("a"), space.mailbox("a"), space.art("f"),
              space.files("a"), space.area("shared"), space.rebuilt("names")]  # fmt: skip
    groups = [
        whole,
        [keys.role("r"), keys.queued("r")],
        [keys.workers, keys.workers_info, keys.graves, keys.grave_info, keys.unsettled, keys.watch, keys.agent_ids],
        [keys.spaces, keys.spaces_open],
        [keys.limit("m", part) for part in ("calls", "running", "state")],
    ]
    slots = [{key_slot(key.encode()) for key in group} for group in groups]
    assert [len(group) for group in slots] == [1] * len(groups)
    assert len(set.union(*slots)) == len(groups), "and no two of them in the same, here"


async def test_no_script_is_given_keys_of_two_slots(kit: Kit, settings: Settings) -> None:
    spied = Spied(kit.client)
    spied.runs = []
    for store in (kit.log, kit.claims, kit.streams, kit.leases, kit.workers):
        store._scripts = spied
    manager = manager_of(kit, settings)
    for part in (manager._store, manager._claims, manager._streams, manager._workers):
        part._scripts = spied
    await kit.live()
    await kit.add(assigned(), assigned("T2"))
    await kit.streams.enqueue([REF, Ref(ROLE, SPACE, "T2", 1)])
    got = await kit.streams.read(ROLE, START, 1, 10)
    await kit.claim()
    await kit.add(record("task_retrying", attempt=2, delay_s=0, reason="x"), owner=START)
    await kit.claims.fire(SPACE, "T1", 2, who="m", by=BY)
    await kit.streams.requeue(got[0][0], REF)
    await kit.streams.ack(ROLE, got)
    await kit.leases.acquire(SPACE, "leader@h:1:x", 1000)
    await kit.workers.bury(START, "test")
    await manager.sweep()
    await kit.log.read(SPACE, who="a*")
    await Rebuilding(RedisProjections(kit.client, kit.keys, spied), SPACE).run(check=False)
    art = Artifacts(kit.client, kit.keys, spied)
    await art.name(SPACE, await art.put(SPACE, b"x"))
    ran = {name for name, _ in spied.runs}
    assert {"append", "claim", "enqueue", "clear", "fire", "ack", "requeue", "lease", "bury", "beat", "look", "read",
            "retire", "keep"} <= ran  # fmt: skip
    for name, keys in spied.runs:
        assert len({key_slot(key.encode()) for key in keys}) == 1, (name, keys)


LUA = sorted(f.name.removesuffix(".lua") for f in (files("protocol.stores") / "lua").iterdir())
INCLUDED = ("common", "law")


@pytest.mark.parametrize("name", [n for n in LUA if n not in INCLUDED])
def test_every_script_declares_the_keys_that_it_reads(name: str) -> None:
    """What is not among KEYS is made from the first key's own tag: nothing is reached in another slot."""
    body = re.sub(r"--[^\n]*", "", text_of(name))
    used = [int(n) for n in re.findall(r"KEYS\[(\d+)\]", body)]
    told = declared(name)
    assert told, f"{name}.lua says its KEYS in its head"
    assert max(used, default=0) <= len(told), (name, told)
    assert ("space_keys()" in body) <= (len(told) == 9), (name, told)
    own = re.compile(r"KEYS\[|keys\.|base \.\.|key$|stream$|live$|made$|tasks_key$")
    for command, key in re.findall(r"redis\.p?call\(\s*'(\w+)'\s*,\s*([^,)]+)", body):
        assert own.match(key.strip()) or command in ("TIME", "XGROUP", "XINFO"), (name, command, key)


OLD = {
    # Commands with the Redis that brought them; 6.2 is the oldest that is supported.
    "HRANDFIELD": 6.2, "ZMSCORE": 6.2, "XAUTOCLAIM": 6.2, "GETDEL": 6.2, "COPY": 6.2, "ZRANGESTORE": 6.2,
    "LMPOP": 7.0, "ZMPOP": 7.0, "SINTERCARD": 7.0, "EXPIRETIME": 7.0, "HEXPIRE": 7.4, "XDELEX": 8.2,
}  # fmt: skip


def test_no_script_needs_a_server_newer_than_the_oldest_supported() -> None:
    for name in LUA:
        for command in re.findall(r"redis\.p?call\(\s*'(\w+)'", scripts.source(name)):
            assert OLD.get(command, 0) <= 6.2, (name, command)
        assert not re.search(r"'ZADD'[^)]*'(GT|LT)'.*7", scripts.source(name))
