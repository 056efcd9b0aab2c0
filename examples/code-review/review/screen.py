"""What is seen: the goal, the team, a progress bar with findings as they come, the takeover, the end.

Guarantees: the same story on a terminal and in a log file (no bar and no colours there, one line a thing); text of the
reviewed code is never taken for markup; internals only with ``verbose``. Prints, and does nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from review.found import Found
from review.report import OVERLAP_NOTE, WORST, Report, count
from review.story import Kind, Line, Story

_LOOKS: Mapping[Kind, tuple[str, str]] = {
    "slice": ("+", "cyan"),
    "verified": ("✓", "green"),
    "lost": ("✗", "bold red"),
    "takeover": ("→", "bold green"),
    "trouble": ("!", "yellow"),
    "model": ("✎", "cyan"),
    "internal": ("·", "dim"),
}
_SEVERITY = {"high": "bold red", "medium": "yellow", "low": "dim"}


class Screen:
    """Prints to ``console``. Used as a context: the bar is there inside it and gone after it."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed} of {task.total} tasks"),
            TextColumn("{task.fields[findings]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("reviewing", total=None, findings="")

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def opening(self, goal: str, team: Mapping[str, str], workers: Mapping[str, int], model: str) -> None:
        """The goal, and who works on it."""
        self._say(f"[bold]{escape(goal)}[/]")
        self._say("")
        self._say("The team, each a process of its own:")
        width = max(len(role) for role in team)
        for role, does in team.items():
            times = f" x{workers[role]}" if workers.get(role, 1) > 1 else ""
            self._say(f"  [cyan]{role:<{width}}[/]  {escape(does)}{times}")
        self._say(f"  [cyan]{'leader, manager':<{width}}[/]  code: who works next, what counts, what is merged")
        self._say("")
        self._say(f"The model: {escape(model)}")

    def up(self, processes: int, took_s: float) -> None:
        """The fleet is there."""
        self._say(f"The fleet is up: {processes} processes in {took_s:.1f} s")
        self._say("")

    def line(self, line: Line) -> None:
        """One line of the story."""
        if line.kind == "internal" and not self._verbose:
            return
        mark, style = _LOOKS[line.kind]
        self._say(f"  [{style}]{mark}[/] [{'dim' if line.kind == 'internal' else 'default'}]{escape(line.text)}[/]")

    def progress(self, story: Story) -> None:
        """Move the bar."""
        standing = story.standing
        self._bar.update(
            self._task, completed=len(story.done), total=story.total,
            findings=f"{len(standing)} findings, {len(story.found) - len(standing)} rejected",
        )  # fmt: skip

    def note(self, text: str) -> None:
        """Something about the fleet, for --verbose."""
        if self._verbose:
            self._say(f"  [dim]· {escape(text)}[/]")

    def kill(self, worker: str, task: str, beat_s: float) -> None:
        """A worker is about to be killed."""
        self._say(f"  [bold red]✗[/] kill -9 {escape(worker)} (last beat {beat_s:.0f} s ago), busy with {escape(task)}")

    def ending(self, report: Report, *, elapsed_s: float) -> None:
        """The worst, the overlap, the rejected."""
        self._say("")
        many = count(report.findings, "finding")
        self._say(
            f"[bold]{many} stand, {len(report.rejected)} rejected[/], "
            f"{report.deduplicated} reported twice, in {elapsed_s:.0f} s: {report.status}"
        )
        self._worst(report.findings[:WORST])
        self._both(report.both)
        self._rejected(report.rejected)
        for task, reason in report.missing:
            self._say(f"  [yellow]missing[/] {escape(task)}: {escape(reason)}")

    def commands(self, rows: Sequence[tuple[str, Sequence[str]]]) -> None:
        """What to do next: (what for, the commands)."""
        self._say("")
        self._say("Next:")
        for words, lines in rows:
            self._say(f"  {escape(words)}")
            for line in lines:
                self._say(f"    [bold]{escape(line)}[/]")

    def fault(self, message: str, mend: str = "") -> None:
        """One clear message."""
        self._say(f"[bold red]{escape(message)}[/]" + (f" ({escape(mend)})" if mend else ""))

    def _worst(self, worst: Sequence[Found]) -> None:
        if not worst:
            return
        self._say("")
        self._say("The worst:")
        for one in worst:
            tools = " and ".join(one.found_by)
            self._say(
                f"  [{_SEVERITY.get(one.severity, 'default')}]{one.severity:<6}[/] {escape(one.place)} "
                f"[cyan]{one.rule}[/] {escape(shortened(one.message))}"
            )
            self._say(f"         {tools}; {one.verdict}: {escape(shortened('; '.join(one.reasons)))}", style="dim")

    def _both(self, both: Sequence[Found]) -> None:
        if not both:
            return
        self._say("")
        self._say(f"Both tools found {count(both, 'place')}: {_rules(both)}")
        self._say(f"  {OVERLAP_NOTE}", style="dim")

    def _rejected(self, rejected: Sequence[Found]) -> None:
        if not rejected:
            return
        self._say("")
        self._say(f"Rejected {len(rejected)}, for instance:")
        groups: dict[str, list[Found]] = defaultdict(list)
        for one in rejected:
            groups[one.rule].append(one)
        for rule, found in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:WORST]:
            reason = shortened("; ".join(found[0].reasons), 100)
            self._say(f"  {len(found):>3} x [cyan]{rule}[/] {escape(found[0].place)}: {escape(reason)}")

    def _say(self, text: str, *, style: str | None = None) -> None:
        self._console.print(text, style=style, highlight=False, soft_wrap=True)


def shortened(text: str, most: int = 90) -> str:
    """``text`` on one line, cut with a mark."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def _rules(found: Sequence[Found]) -> str:
    counts: dict[str, int] = defaultdict(int)
    for one in found:
        counts[one.rule] += 1
    return ", ".join(f"{n} x {rule}" for rule, n in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
