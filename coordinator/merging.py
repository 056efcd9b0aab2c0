"""The manager's merge: after a flow's finish, once for each set of inputs.

Guarantees: what is merged is what the log says at one point; an event that matters and came after it makes the store
refuse the merge, and it is computed again; the artifacts are stored before the record that names them. Merging again
without news writes nothing. The merge itself is pure (``coordinator.merge``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import orjson

from coordinator.merge import Merged, merge
from coordinator.mergeinputs import from_records, needed_artifacts
from coordinator.spaceview import SpaceLog
from coordinator.summary import summarize
from protocol.errors import MergeRefused, StoreError
from protocol.kit.crash import crash_point
from protocol.kit.logs import get_log
from protocol.ports import ArtifactStore, KnownRoles
from protocol.record import Json, Record, Trace, canonical, digest

log = get_log(__name__)
WHO: Final = "manager"
TIMES: Final = 20
"""How often one call computes anew because something came in between; after that the next sweep goes on."""
PAGE: Final = 1_000
Entries = list[tuple[str, Record]]


class Merging:
    """Merges spaces."""

    def __init__(
        self, store: SpaceLog, artifacts: ArtifactStore, roles: KnownRoles, *, now: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._artifacts = artifacts
        self._roles = roles
        self._now = now

    async def settle(self, space: str) -> str:
        """Merge a finished session where there is news; the merge's id, '' where there was nothing to merge."""
        for _ in range(TIMES):
            matter, entries = await self.read(space)
            try:
                merged = await self.compute(space, entries, force=_finish_status(entries) != "completed")
            except MergeRefused as refused:
                log.warning("not merged yet", space=space, why=str(refused))
                merged = None
            if merged is None or not (merged.merge_order or merged.not_delivered):
                await self._store.set_meta(space, {"judged": matter})
                return ""
            if await self.write(space, entries, merged, as_of=matter):
                await self._store.set_meta(space, {"judged": matter})
                return merged.merge_id
        return ""

    async def read(self, space: str) -> tuple[str, Entries]:
        """The point up to which a merge will have read, and the whole log."""
        matter = (await self._store.meta(space)).get("matter", "0-0")
        return matter, await read_all(self._store, space)

    async def compute(self, space: str, entries: Entries, *, force: bool) -> Merged:
        """The merge of what was read. Raises MergeRefused with what stands in the way."""
        resolved: dict[str, Json] = {}
        for sha in needed_artifacts(record for _, record in entries):
            try:
                resolved[sha] = orjson.loads(await self._artifacts.get(space, sha))
            except StoreError as error:
                if error.retryable:
                    raise
                # It is gone for good: the merge lists its task as not delivered.
                log.warning("an artifact is missing", space=space, sha256=sha, why=str(error))
        return merge(from_records(entries, resolve=resolved, roles=await self._roles.all()), force=force)

    async def write(self, space: str, entries: Entries, merged: Merged, *, as_of: str) -> bool:
        """Store artifacts, then the merge and its summary in one append; False where the reading is stale."""
        whole = await self._artifacts.put(space, canonical(merged.artifact))
        text = await self._artifacts.put(space, merged.markdown.encode())
        for ref in (whole, text):  # named first: a crash in between leaves bytes, never a merge without its result
            await self._artifacts.name(space, ref)
        session = entries[0][1].session if entries else space
        # In a session its root; a space made by hand has none: what was started there are tasks.
        root = next((r.id for _, r in entries if r.event == "task_started" and r.id == r.session), None)
        earlier = next((r.id for _, r in reversed(entries) if r.event == "task_merged"), None)
        detail: dict[str, Any] = {
            **merged.detail,
            "as_of": as_of,
            "by": {"actor": WHO},
            "artifact": {"sha256": whole.sha256, "size": whole.size, "type": "application/json"},
            "markdown": {"sha256": text.sha256, "size": text.size, "type": "text/markdown"},
        }
        if earlier is not None and earlier != merged.merge_id:
            detail["supersedes"] = earlier
        now_s = int(self._now())
        trace = Trace(parent_id=root, session_id=session)
        kept = len(merged.merge_order)
        status = merged.detail.get("status", "")
        records = [
            Record(
                id=merged.merge_id,
                who=WHO,
                time=now_s,
                event="task_merged",
                what=f"{kept} results merged: {status}",
                detail=detail,
                trace=trace,
            ),
            Record(
                id=f"SUM_{digest(merged.merge_id)}",
                who=WHO,
                time=now_s,
                event="summary",
                what=f"the session is merged: {status}",
                detail={**summarize(record for _, record in entries), "merge": merged.merge_id, "by": {"actor": WHO}},
                trace=trace,
            ),
        ]
        crash_point("manager.before_merge")
        step = await self._store.append_step(space, records)
        if not step.ok:
            return False
        crash_point("manager.after_merge")
        if step.outcomes[0].outcome == "added":
            log.info("merged", space=space, merge=merged.merge_id, status=status)
        return True


async def read_all(store: SpaceLog, space: str) -> Entries:
    """Every record of a space with its entry: for what needs the whole log, once a command or merge."""
    entries: Entries = []
    last = "0-0"
    while page := await store.tail(space, last, PAGE):
        entries += page
        last = page[-1][0]
    return entries


def _finish_status(entries: Entries) -> str:
    for _, record in reversed(entries):
        if record.event == "decision" and record.detail.get("action") == "finish":
            return str(record.detail.get("status", ""))
    return ""
