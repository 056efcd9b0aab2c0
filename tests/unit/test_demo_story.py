"""The story of a review, told from records, and what the screen makes of it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from protocol.record import Record, Trace
from review.digest import digest
from review.killing import pid_of, victim
from review.plan import TEAM, WORKERS
from review.report import Model, Report
from review.screen import Screen, shortened
from review.story import Line, Story
from review.target import CodeFile, Slice

SLICES = [Slice(1, "core", (CodeFile("core.py", 900),)), Slice(2, "客户端", (CodeFile("客户端.py", 300),))]
WORKER = "finding-verifier@host:41:aa"


class Log:
    """Records with entries, as a log gives them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: str, task: str, **detail: Any) -> tuple[str, Record]:
        self.count += 1
        record = Record(
            id=task, who="w_1", time=1_700_000_000, event=event, what=f"{event} {task}", detail=detail,  # type: ignore[arg-type]
            trace=Trace(parent_id=None, session_id="conv_1"),
        )  # fmt: skip
        return f"{self.count}-0", record


def item(file: str, line: int, tool: str = "ruff", rule: str = "S113", severity: str = "medium") -> dict[str, Any]:
    return {"file": file, "line": line, "rule": rule, "message": "没有超时", "severity": severity, "tool": tool}


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def story() -> Story:
    return Story(SLICES, total=14)


def tell(story: Story, *pairs: tuple[str, Record]) -> list[Line]:
    return [line for entry, record in pairs for line in story.take(entry, record) if line.kind != "internal"]


def scans(log: Log, number: int, file: str) -> list[tuple[str, Record]]:
    return [
        log("task_completed", f"bandit-{number}", result={"items": [item(file, 3, "bandit"), item(file, 9, "bandit")]}),
        log("task_completed", f"security-{number}", result={"items": [item(file, 3)]}),
        log("task_completed", f"bugs-{number}", result={"items": [item(file, 5, rule="B006", severity="high")]}),
    ]


def test_a_slice_is_told_when_its_last_scan_is_in(log: Log, story: Story) -> None:
    first, second, third = scans(log, 2, "客户端.py")
    assert tell(story, first, second) == []
    (line,) = tell(story, third)
    assert line.kind == "slice"
    assert line.text == "客户端: 3 findings, 1 by both tools; high: 客户端.py:5 B006"


def test_a_verified_slice_says_what_stands(log: Log, story: Story) -> None:
    tell(story, *scans(log, 1, "core.py"))
    verdicts = [
        {"file": "core.py", "line": 3, "rule": "S113", "verdict": "rejected", "reasons": ["r"]},
        {"file": "core.py", "line": 9, "rule": "S113", "verdict": "confirmed", "reasons": ["c"]},
    ]
    ends = [
        log("task_completed", f"{scan}-1.verify", verdict="partial", verifies=f"{scan}-1", items=items)
        for scan, items in (("bandit", verdicts), ("security", verdicts[:1]), ("bugs", []))
    ]
    (line,) = tell(story, *ends)
    assert (line.kind, line.text) == ("verified", "core: 2 stand, 1 rejected")
    assert [one.place for one in story.standing] == ["core.py:5", "core.py:9"]


def test_a_record_that_is_read_twice_counts_once(log: Log, story: Story) -> None:
    pairs = scans(log, 1, "core.py")
    tell(story, *pairs, *pairs)
    assert story.reports["bandit-1"] == 2
    assert len(story.done) == 3


def test_a_loss_and_its_takeover_are_told(log: Log, story: Story) -> None:
    other = "finding-verifier@host:42:bb"
    tell(story, log("task_processing", "bandit-1.verify", worker=WORKER, attempt=1))
    (lost,) = tell(story, log("task_agent_lost", "bandit-1.verify", worker=WORKER, agent="a", last_seen=1, attempt=1))
    assert (lost.kind, WORKER in lost.text, "bandit-1.verify" in lost.text) == ("lost", True, True)
    assert "bandit-1.verify" not in story.busy
    (more,) = tell(story, log("task_agent_lost", "bugs-2.verify", worker=WORKER, agent="b", last_seen=1, attempt=1))
    assert more.text == "it held bugs-2.verify too"
    (taken,) = tell(story, log("task_processing", "bandit-1.verify", worker=other, attempt=2))
    assert (taken.kind, taken.text) == ("takeover", f"bandit-1.verify reassigned to {other} (attempt 2)")
    assert tell(story, log("task_processing", "bugs-1.verify", worker=other, attempt=1)) == []


def test_retries_and_blocks_are_told_but_a_hand_back_is_not(log: Log, story: Story) -> None:
    lines = tell(
        story,
        log("task_retrying", "bugs-1", attempt=2, delay_s=30.0, reason="ruff took too long"),
        log("task_retrying", "bugs-2", attempt=2, delay_s=0, reason="drains"),
        log("task_failed", "bugs-1", error={"kind": "skill", "message": "no ruff (install it)", "retryable": False}),
        log("task_blocked", "bugs-1", requires_human_intervention=True, reason="skill: not retryable"),
    )
    assert [line.text for line in lines] == [
        "bugs-1 is tried again in 30 s: ruff took too long",
        "bugs-1 is blocked: no ruff (install it)",
    ]


def test_a_result_that_went_to_the_artifact_store_breaks_nothing(log: Log, story: Story) -> None:
    tell(story, log("task_completed", "bandit-1", artifact={"sha256": "a", "size": 9}))
    assert story.done == {"bandit-1"}
    assert not story.found


def test_the_victim_is_a_busy_verifier_of_ours_that_has_something_to_do(log: Log, story: Story) -> None:
    many = {"items": [item("core.py", k) for k in range(12)]}
    tell(story, log("task_processing", "bugs-1.verify", worker=WORKER, attempt=1))
    tell(story, *(log("task_completed", f"{scan}-1", result=many) for scan in ("bandit", "bugs")))
    assert victim(story, {41}, set()) is None, "nobody has seen a slice yet"
    tell(story, log("task_completed", "security-1", result=many))
    assert victim(story, {41}, set()) == ("bugs-1.verify", WORKER, 41)
    assert victim(story, {99}, set()) is None, "not a child of ours"
    assert victim(story, {41}, {("bugs-1.verify", 1)}) is None, "tried before"
    tell(story, log("task_processing", "bandit-2.verify", worker=WORKER, attempt=1))
    tell(story, log("task_processing", "bandit-2", worker="bandit-scanner@host:43:cc", attempt=1))
    assert victim(story, {41, 43}, {("bugs-1.verify", 1)}) is None, "nothing was found there: it is done in no time"


def test_where_nothing_is_found_the_victim_is_a_busy_scanner(log: Log, story: Story) -> None:
    tell(story, *(log("task_completed", f"{scan}-1", result={"items": []}) for scan in ("bandit", "bugs", "security")))
    tell(story, log("task_processing", "bandit-2", worker="bandit-scanner@host:43:cc", attempt=1))
    assert victim(story, {43}, set()) == ("bandit-2", "bandit-scanner@host:43:cc", 43)


def test_the_pid_in_a_workers_name() -> None:
    assert pid_of("finding-verifier@host:41:aa") == 41
    assert pid_of("finding-verifier@host") == 0


def screen(*, verbose: bool = False) -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    return Screen(Console(file=out, width=80), verbose=verbose), out


def test_in_a_log_file_there_is_one_line_a_thing_and_no_bar(log: Log, story: Story) -> None:
    shown, out = screen()
    with shown:
        shown.opening("Review 代码", TEAM, WORKERS, "offline")
        shown.line(Line("slice", "core: [bold]5[/] findings " + "x" * 100))
        shown.line(Line("internal", "1-0 heartbeat"))
        shown.progress(story)
    text = out.getvalue()
    assert "\x1b" not in text
    assert "Review 代码" in text
    assert all(role in text for role in TEAM)
    assert "core: [bold]5[/] findings " + "x" * 100 + "\n" in text, "not markup, and not wrapped"
    assert "heartbeat" not in text


def test_internals_are_shown_when_asked_for() -> None:
    shown, out = screen(verbose=True)
    shown.line(Line("internal", "1-0 heartbeat"))
    shown.note("leader-1 started")
    assert "heartbeat" in out.getvalue()
    assert "leader-1 started" in out.getvalue()


def test_the_end_shows_the_worst_the_overlap_the_rejected_and_four_commands() -> None:
    told = Story(SLICES, total=1)
    log = Log()
    tell(told, *scans(log, 1, "core.py"))
    found = list(told.found.values())
    found[0].judged("confirmed", ["[red]坏[/]"])
    found[1].judged("rejected", ["in __del__"])
    report = Report(
        session="conv_1", status="partial", target="/c", title="c", findings=[one for one in found if one.stands],
        rejected=[one for one in found if not one.stands], deduplicated=1, missing=[("bugs-2", "blocked")],
        model=Model("http://m", offline=True),
    )  # fmt: skip
    shown, out = screen()
    shown.ending(report, elapsed_s=12.3)
    shown.commands([("open", ["less a"]), ("follow", ["x", "y"]), ("own code", ["z"]), ("own role", ["r"])])
    text = out.getvalue()
    assert "2 findings stand, 1 rejected, 1 reported twice, in 12 s: partial" in text
    assert text.index("core.py:5") < text.index("core.py:3"), "the worst first"
    assert "[red]坏[/]" in text
    assert "Both tools found 1 place: 1 x S113" in text
    assert "not two opinions" in text
    assert "1 x S113 core.py:9: in __del__" in text
    assert "missing bugs-2: blocked" in text
    assert text.count("    ") >= 5


def test_the_digest_counts_and_picks_but_adds_nothing(tmp_path: Any) -> None:
    (tmp_path / "a.py").write_text("\n".join(f"line_{n}()" for n in range(1, 20)), encoding="utf-8")
    first = {"items": [item("a.py", 3, "bandit"), item("a.py", 9, "bandit")], "scanned": 1, "left_out": 0, "unread": []}
    second = {"items": [item("a.py", 3), item("gone.py", 1)], "scanned": 1, "left_out": 2, "unread": []}
    verdict = {"verdict": "partial", "items": [
        {"file": "a.py", "line": 9, "rule": "S113", "verdict": "rejected", "reasons": ["r"]},
        {"file": "a.py", "line": 3, "rule": "S113", "verdict": "confirmed", "reasons": ["c"]},
    ]}  # fmt: skip
    made = digest(str(tmp_path), [first, None, second], [verdict, None])
    assert made["counts"]["reports"] == 4
    assert made["counts"]["findings"] == 3
    assert made["counts"]["found_by_two"] == 1
    assert made["counts"]["by_verdict"] == {"confirmed": 1, "unverified": 1, "rejected": 1}
    assert [(one["file"], one["line"]) for one in made["worst"]] == [("a.py", 3), ("gone.py", 1)]
    assert made["worst"][0]["code"].splitlines()[2] == "    3 line_3()"
    assert made["worst"][1]["code"] == ""
    assert any("2 further reports were left out" in fact for fact in made["facts"])


def test_a_long_reason_is_cut_on_one_line() -> None:
    assert shortened("a\n b") == "a b"
    assert shortened("x" * 100, 10) == "x" * 9 + "…"
