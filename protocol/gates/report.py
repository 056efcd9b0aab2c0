"""What the gates did: repairs, changes, problems. Values only, no behaviour that decides anything."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.record import Json


@dataclass(frozen=True, slots=True)
class Change:
    """One change of gate 2. ``path`` is dotted (``trace.parent_id``); ``before`` is None where it was missing."""

    path: str
    before: Json
    after: Json
    note: str

    def __str__(self) -> str:
        return f"{self.path}: {self.note} ({self.before!r} -> {self.after!r})"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a gate refused: the gate (1 to 4), the path of the offending field (``$``: the whole) and the message."""

    gate: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"gate {self.gate}, {self.path}: {self.message}"


@dataclass(slots=True)
class Report:
    """What each gate changed or why it refused. ``refused_at`` is the gate that refused, or None."""

    repairs: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    refused_at: int | None = None

    @property
    def clean(self) -> bool:
        """True where nothing was repaired, changed or refused."""
        return not (self.repairs or self.changes or self.problems)

    def to_json(self) -> dict[str, Json]:
        """The report as plain JSON, for ``--json`` and for a ``protocol_violation`` record."""
        return {
            "refused_at": self.refused_at,
            "repairs": list(self.repairs),
            "changes": [{"path": c.path, "before": c.before, "after": c.after, "note": c.note} for c in self.changes],
            "problems": [{"gate": p.gate, "path": p.path, "message": p.message} for p in self.problems],
        }
