"""The two reports: what they say, and that no text of the reviewed code breaks them."""

from __future__ import annotations

import json
from typing import Any

from review.found import Found
from review.live import worded_by
from review.report import OVERLAP_NOTE, Model, Report, demoted, fenced
from workers.offline import FINGERPRINT

OFFLINE = Model("http://127.0.0.1:1/v1", offline=True)


def found(place: str, severity: str = "low", verdict: str = "confirmed", by: str = "ruff", **more: Any) -> Found:
    file, line = place.split(":")
    return Found(
        file, int(line), more.get("rule", "S113"), more.get("message", "no timeout"), severity, by.split("+"), verdict,
        more.get("reasons", ["seen again"]),
    )  # fmt: skip


def report(**more: Any) -> Report:
    values: dict[str, Any] = {
        "session": "conv_20260101_120000_001",
        "status": "delivered",
        "target": "/code",
        "title": "code",
        "findings": [],
        "rejected": [],
        "deduplicated": 0,
        "missing": [],
        "model": OFFLINE,
        **more,
    }
    return Report(**values)


def test_the_json_has_exactly_the_promised_keys() -> None:
    plain = json.loads(
        json.dumps(
            report(
                findings=[found("a.py:3", by="bandit+ruff")], rejected=[found("b.py:1", verdict="rejected")],
                deduplicated=1, missing=[("bugs-2", "blocked")],
            ).to_json()
        )
    )  # fmt: skip
    assert set(plain) == {
        "session", "status", "target", "findings", "deduplicated", "rejected", "missing", "model",
    }  # fmt: skip
    finding = {"file", "line", "rule", "message", "severity", "found_by", "verdict", "reasons"}
    assert [set(one) for one in plain["findings"] + plain["rejected"]] == [finding, finding]
    assert plain["findings"][0]["found_by"] == ["bandit", "ruff"]
    assert plain["deduplicated"] == 1
    assert plain["missing"] == [{"task": "bugs-2", "reason": "blocked"}]
    assert plain["model"] == {"endpoint": "http://127.0.0.1:1/v1", "offline": True}


def test_the_worst_come_first() -> None:
    order = [
        found("z.py:1", "high"),
        found("a.py:1", "medium", by="bandit+ruff"),
        found("a.py:2", "medium"),
        found("a.py:3", "high", "partial"),
        found("a.py:9", "low"),
        found("a.py:1", "low", "partial"),
    ]
    assert report(findings=list(reversed(order))).findings == order


def test_the_markdown_says_the_same_for_people() -> None:
    text = report(
        findings=[found("a.py:3", "high", by="bandit+ruff", message="坏了", reasons=["没有超时"])],
        rejected=[found("b.py:1", verdict="rejected", reasons=["in __del__"])],
        missing=[("bugs-2", "blocked: disk full")],
        summary="# Fine\nMend `a.py:3`.",
        code={"a.py:3": "    3 x = get()"},
    ).to_markdown()
    assert text.startswith("# Code review: code\n")
    assert "**1 finding stands** (1 high); 1 rejected by the verifier; 1 found by two tools." in text
    assert "1. **high** `a.py:3` S113: 坏了" in text
    assert "Found by bandit and ruff; confirmed: 没有超时." in text
    assert "   ```python\n       3 x = get()\n   ```" in text
    assert OVERLAP_NOTE in text
    assert "not two opinions" in text
    assert "in __del__" in text
    assert "| `bugs-2` | blocked: disk full |" in text
    assert "### Fine" in text


def test_the_offline_model_is_labelled_and_a_real_one_is_named() -> None:
    offline = report(summary="x").to_markdown()
    real = report(summary="x", model=Model("https://models.example/v1", offline=False)).to_markdown()
    assert "offline model" in offline
    assert "offline" not in real
    assert "https://models.example/v1" in real


def test_without_a_summary_it_says_so_and_labels_nobody() -> None:
    text = report().to_markdown()
    assert "No summary" in text
    assert "Worded by" not in text
    assert "Nothing stands." in text


def test_text_of_the_reviewed_code_breaks_neither_table_nor_page() -> None:
    nasty = "a | b\n<script>`x` <b>|"
    text = report(findings=[found("a|b`.py:1", message=nasty, reasons=[nasty])]).to_markdown()
    rows = [line for line in text.splitlines() if line.startswith("| low")]
    assert len(rows) == 1
    assert rows[0].replace("\\|", "").count("|") == 7
    assert "<script>" not in text


def test_code_can_not_close_its_fence() -> None:
    text = fenced("````\n# heading")
    assert text.splitlines()[0] == "`````python"
    assert text.splitlines()[-1] == "`````"


def test_the_models_markdown_stays_in_its_section() -> None:
    text = demoted("# Title\n```\nif a < b:\n# no heading\n")
    assert text.splitlines() == ["### Title", "```", "if a < b:", "# no heading", "```"]


def test_the_offline_model_is_known_by_its_fingerprint_whoever_started_it() -> None:
    named = Model("http://models.example/v1", offline=False)
    assert worded_by({"endpoint": "http://127.0.0.1:7/v1", "fingerprint": FINGERPRINT}, named) == Model(
        "http://127.0.0.1:7/v1", offline=True
    )
    assert worded_by({"endpoint": "http://models.example/v1", "fingerprint": "fp_1"}, OFFLINE) == named
    assert worded_by({}, OFFLINE) == OFFLINE, "nothing was delivered"
