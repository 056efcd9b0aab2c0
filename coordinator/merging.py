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
from coordinator.summary import summarize
from protocol.errors import MergeRefused, StoreError
from protocol.kit.crash import crash_point
from protocol.kit.logs import get_log
from protocol.record import Json, Record, Trace, digest
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_log import RedisLog

log = get_log(__name__)
WHO: Final = "manager"
TIMES: Final = 20
"""How often one call computes anew because something came in between; after that the next sweep goes on."""
Entries = list[tuple[str, Record]]


class Merging:
    """Merges spaces."""

    def __init__(self, store: RedisLog, artifacts: Artifacts, *, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._artifacts = artifacts
        self._now = now

    async def settle(self, space: str) -> str:
        """Merge a finished session where there is news; the merge's id, '' where there was nothing to merge."""
        for _ in range(TIMES):
            meta = await self._store.meta(space)
            matter = meta.get("matter", "0-0")
            entries = await self._all(space)
            merged = await self._merged(space, entries, force=_finish_status(entries) != "completed")
            if merged is None:
                await self._store.set_meta(space, {"judged": matter})
                return ""
            if await self.write(space, entries, merged, as_of=matter):
                await self._store.set_meta(space, {"judged": matter})
                return merged.merge_id
        return ""

    async def _merged(self, space: str, entries: Entries, *, force: bool) -> Merged | None:
        resolved: dict[str, Json] = {}
        for sha in needed_artifacts(record for _, record in entries):
            try:
                resolved[sha] = orjson.loads(await self._artifacts.get(space, sha))
            except StoreError as error:
                if error.retryable:
                    raise
                log.warning("an artifact is missing", space=space, sha256=sha, why=str(error))
        inputs = from_records(entries, resolve=resolved)
        if not inputs.deliveries:
            return None
        try:
            return merge(inputs, force=force)
        except MergeRefused as refused:
            log.warning("not merged yet", space=space, why=str(refused))
            return None

    async def write(self, space: str, entries: Entries, merged: Merged, *, as_of: str) -> bool:
        """Store artifacts, then the merge and its summary in one append; False where the reading is stale."""
        whole = await self._artifacts.put(space, orjson.dumps(merged.artifact))
        text = await self._artifacts.put(space, merged.markdown.encode())
        for ref in (whole, text):  # named first: a crash in between leaves bytes, never a merge without its result
            await self._artifacts.name(space, ref)
        session = entries[0][1].session if entries else space
        root = next((r.id for _, r in entries if r.event == "task_started" and r.trace.parent_id is None), None)
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
        kept = len(merged.detail.get("source_tasks", []))
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

    async def _all(self, space: str) -> Entries:
        entries: Entries = []
        last = "0-0"
        while True:
            page = await self._store.tail(space, last)
            entries += page
            if len(page) < 1000:
                return entries
            last = page[-1][0]


def _finish_status(entries: Entries) -> str:
    for _, record in reversed(entries):
        if record.event == "decision" and record.detail.get("action") == "finish":
            return str(record.detail.get("status", ""))
    return ""
