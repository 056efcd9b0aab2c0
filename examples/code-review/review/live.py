"""One review from the fleet's start to its end: real processes, one session, one worker killed, one report.

Guarantees: the session, not this program, does the work: what is shown and written is read from its log and its merge.
Whatever happens, the fleet that was started here is drained; an interrupted review is cancelled on record. Never
decides what a finding is worth.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.outcome import Outcome
from coordinator.up import Fleet, FleetEvent
from protocol.kit.settings import Settings
from review.killing import Killed, kill, victim
from review.link import Link
from review.merged import report_of
from review.plan import WORKERS, make_plan
from review.report import Model, Report
from review.screen import Screen
from review.story import Line, Story
from review.target import Target, cut
from workers.offline import FINGERPRINT

READY_S = 60.0
SILENT_S = 300.0
"""A session in which nothing happens for so long has come to a standstill."""
EXAMPLE = Path(__file__).resolve().parent.parent


class StuckError(Exception):
    """The fleet does not come up, or nothing happens any more."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a person asked for. ``out``: where reports, logs and (without ROLECALL_DATA) the server's data go."""

    target: Target
    out: Path
    model: Model
    kill: bool = True


@dataclass(slots=True)
class Ended:
    """How it ended: the report, and the last entry of the log that was read."""

    report: Report
    cursor: str
    elapsed_s: float


@dataclass(slots=True)
class Review:
    """Runs one review. ``env``: what the fleet's processes get."""

    options: Options
    env: Mapping[str, str]
    screen: Screen
    session: str = ""
    cursor: str = "0"
    _killed: Killed | None = None
    _killed_at: float = 0.0
    _tried: set[tuple[str, int]] = field(default_factory=set)

    async def run(self) -> Ended:
        """The whole of it. Raises StuckError, RolecallError."""
        options = self.options
        settings = Settings.load(self.env, Path.cwd())
        slices = cut(options.target)
        plan = make_plan(options.target, slices)
        story = Story(slices, total=sum(2 if "verify" in task else 1 for task in plan["tasks"]))
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            fleet = Fleet(settings, WORKERS, env=self.env, output=options.out / "logs", on_event=self._fleet)
            await stack.enter_async_context(fleet)
            link = await stack.enter_async_context(Link(lambda: fleet.url, settings.prefix))
            if not await fleet.ready(READY_S):
                raise StuckError(f"the fleet did not come up within {READY_S:.0f} s")
            self.screen.up(len(fleet.children), time.monotonic() - began)
            self.session = await link.start(plan)
            self.screen.note(f"session {self.session}")
            try:
                outcome = await self._follow(link, fleet, story)
            except (asyncio.CancelledError, StuckError):
                await asyncio.shield(link.cancel(self.session))
                raise
            report = await self._report(link, outcome, story)
            report.notes += [f"`{name}` was left out: {why}" for name, why in options.target.left_out]
        return Ended(report, self.cursor, time.monotonic() - began)

    async def _follow(self, link: Link, fleet: Fleet, story: Story) -> Outcome:
        """Show the log as it grows until the session is over."""
        outcome = Outcome(self.session)
        news = time.monotonic()
        self.screen.progress(story)
        with self.screen:
            async for pair in link.records(self.session, self.screen.note):
                heed_cancellation()
                if pair is None:
                    if outcome.over:
                        return outcome
                    if time.monotonic() - news > SILENT_S:
                        raise StuckError(f"nothing has happened for {SILENT_S:.0f} s")
                    continue
                news = time.monotonic()
                self.cursor, record = pair
                outcome.take(record)
                for line in story.take(self.cursor, record):
                    self.screen.line(self._timed(line))
                self.screen.progress(story)
                if self.options.kill and self._killed is None:
                    await self._kill_one(link, fleet, story)
        raise AssertionError("a log is followed for ever")

    async def _kill_one(self, link: Link, fleet: Fleet, story: Story) -> None:
        pids = {child.pid for child in fleet.children if child.kind == "worker" and child.alive}
        chosen = victim(story, pids, self._tried)
        if chosen is None:
            return
        task, worker, pid = chosen
        self._tried.add((task, story.busy[task].attempt))
        self._killed = await kill(link, self.session, task, worker, pid)
        if self._killed is not None:
            self._killed_at = time.monotonic()
            self.screen.kill(worker, task, self._killed.beat_s)

    def _timed(self, line: Line) -> Line:
        """A takeover after our own kill says how long it took."""
        killed = self._killed
        if killed is None or line.kind != "takeover" or killed.task not in line.text:
            return line
        return Line(line.kind, f"{line.text}, {time.monotonic() - self._killed_at:.1f} s after the kill")

    async def _report(self, link: Link, outcome: Outcome, story: Story) -> Report:
        artifact = await link.merged(outcome)
        target = self.options.target
        model = worded_by(story.worded_by, self.options.model)
        return report_of(artifact, outcome, target=str(target.root), title=target.title, model=model)

    def _fleet(self, event: FleetEvent) -> None:
        self.screen.note(event.text)


def worded_by(told: Mapping[str, object], expected: Model) -> Model:
    """Who worded the summary: as the delivery says, where it says so. The offline model is known by its fingerprint,
    whoever started it."""
    endpoint = told.get("endpoint")
    offline = told["fingerprint"] == FINGERPRINT if "fingerprint" in told else expected.offline
    return Model(endpoint if isinstance(endpoint, str) and endpoint else expected.endpoint, offline)


def heed_cancellation() -> None:
    """Raise where this task was asked to end and the request got lost: before Python 3.12 `asyncio.wait_for`, which
    the client library uses for each command, swallows one that comes in the moment of the answer."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def environment(env: Mapping[str, str], out: Path) -> dict[str, str]:
    """What the fleet's processes get: our roles and skills before the user's own, and a place for the server's data
    where none is named."""
    own = {"ROLECALL_ROLES": EXAMPLE / "roles", "ROLECALL_SKILLS": EXAMPLE / "skills"}
    paths = {name: os.pathsep.join(filter(None, (str(path), env.get(name)))) for name, path in own.items()}
    data = {} if env.get("ROLECALL_DATA") else {"ROLECALL_DATA": str(out / "data")}
    return {**env, **paths, **data}
