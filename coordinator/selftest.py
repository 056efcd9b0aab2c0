"""The stores' self test: a few records in, read back, refused where they must be; and the locks of state files.

Guarantees: works in a folder or under a prefix of its own and removes it; touches no space of anybody's. Never raises
for what it finds.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from coordinator.spaceview import SpaceLog
from protocol.errors import RolecallError
from protocol.keys import Keys
from protocol.record import Record, Trace
from protocol.stores import filelock
from protocol.stores.client import Client, guard
from protocol.stores.jsonfile import JsonFile
from protocol.stores.redis_log import RedisLog
from protocol.stores.wire import space_keys

SPACE = "self_test"


async def test_file() -> str:
    """What is wrong with the store on a file, '' where nothing is."""
    try:
        with tempfile.TemporaryDirectory(prefix="rolecall-") as folder:
            return await _exercise(JsonFile(Path(folder) / "self_test.json"))
    except (RolecallError, OSError) as error:
        return str(error)


async def test_redis(client: Client, prefix: str) -> str:
    """What is wrong with the store on a server, '' where nothing is."""
    keys = Keys(f"{prefix}doctor{secrets.token_hex(4)}:")
    try:
        return await _exercise(RedisLog(client, keys))
    except RolecallError as error:
        return str(error)
    finally:
        with guard("self test"):
            await client.unlink(*space_keys(keys.space(SPACE)), keys.spaces, keys.spaces_open)


async def _exercise(log: SpaceLog) -> str:
    await log.create(SPACE, meta={"kind": "hand", "policy": "hold", "session": SPACE})
    first = _record("info", "INFO_1", {"text": "“一”"})
    outcomes = await log.append(
        SPACE, [first, first, _record("task_assigned", "T1", {"role": "r", "attempt": 1}),
                _record("task_completed", "T1", {"result": 1})],
    )  # fmt: skip
    said = [outcome.outcome for outcome in outcomes]
    if said != ["added", "already", "added", "refused"]:
        return f"four records were answered {', '.join(said)}"
    page = await log.read(SPACE, limit=1)
    rest = await log.read(SPACE, since=page.next)
    events = [record.event for record in (*page.records, *rest.records)]
    if events != ["info", "task_assigned", "protocol_violation"] or page.records[0].detail != first.detail:
        return f"they were read back as {', '.join(events)}"
    states = await log.task_states(SPACE)
    return "" if states["T1"].state == "assigned" else f"the task stands as {states['T1'].state!r}"


def _record(event: str, id: str, detail: dict[str, object]) -> Record:
    return Record(
        id=id, who="doctor", time=1, event=event, what="self test", detail=detail,  # type: ignore[arg-type]
        trace=Trace(parent_id=None, session_id=SPACE),
    )  # fmt: skip


def held_locks(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every state file in ``folder`` with what a person should know of its lock, '' where that is nothing."""
    for side in sorted(folder.glob("*.json.lock")) if folder.is_dir() else ():
        state = side.with_name(side.name.removesuffix(".lock"))
        found = filelock.holder(state)
        old = found is not None and time.time() - found.since_s > filelock.OLD_S
        if found is None or not old:
            yield state, ""
        elif found.held:
            for_min = (time.time() - found.since_s) / 60
            mend = f"if it is stopped, `kill -CONT {found.pid}`, or end it"
            yield state, f"process {found.pid} has held its lock for {for_min:.0f} min: {mend}"
        else:
            yield state, f"process {found.pid} died with its lock: nothing is held, the next command clears it"
