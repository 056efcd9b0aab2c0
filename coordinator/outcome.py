"""How a session ends, read from its records as they come: what is still to be waited for, and the merged result.

Guarantees: an outcome is only what is on record (the flow's finish, then the manager's merge; a resume takes both
back); reads artifacts, writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from protocol.record import Json, Record
from protocol.stores.redis_artifacts import Artifacts

Result = Literal["delivered", "partial", "failed", "cancelled"]
NOTHING_TO_MERGE: Final = frozenset({"failed", "cancelled"})


@dataclass(slots=True)
class Outcome:
    """The end of one session. ``result`` is None while it is not over; ``merge`` is the last merge's record."""

    session: str
    result: Result | None = None
    why: str = ""
    merge: Record | None = None
    missing: list[Json] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.result is not None

    @property
    def exit_code(self) -> int:
        """0 delivered, 1 anything else."""
        return 0 if self.result == "delivered" else 1

    def take(self, record: Record) -> None:
        """Fold one record of the session, in log order."""
        detail = record.detail
        if record.event == "decision" and detail.get("action") == "finish":
            status = str(detail.get("status") or "completed")
            self.why = str(detail.get("why") or record.what)
            missing = detail.get("missing")
            self.missing = missing if isinstance(missing, list) else []
            if status == "failed":
                self.result = "failed"
            elif status == "cancelled":
                self.result = "cancelled"
        elif record.event == "decision" and detail.get("action") == "resume":
            self.result, self.why, self.merge, self.missing = None, "", None, []
        elif record.event == "task_merged":
            self.merge = record
            if self.result not in NOTHING_TO_MERGE:
                self.result = "delivered" if detail.get("status") == "delivered" else "partial"

    def to_json(self) -> dict[str, Json]:
        """The end as JSON, without the merged result itself."""
        out: dict[str, Json] = {"session": self.session, "status": self.result, "why": self.why}
        if self.missing:
            out["missing"] = self.missing
        if self.merge is not None:
            out["merge"] = self.merge.id
            for key in ("source_tasks", "verification_status", "not_delivered", "conflicts"):
                if key in self.merge.detail:
                    out[key] = self.merge.detail[key]
        return out


async def merged_text(artifacts: Artifacts, space: str, merge: Record, form: Literal["markdown", "json"]) -> str | None:
    """The merged result as Markdown or JSON; None where the merge names no such artifact. Raises StoreError."""
    ref = merge.detail.get("artifact" if form == "json" else "markdown")
    if not isinstance(ref, dict) or not isinstance(ref.get("sha256"), str):
        return None
    return (await artifacts.get(space, ref["sha256"])).decode("utf-8", "replace")
