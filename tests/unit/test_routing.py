"""Routing: a table of features and what comes of them, with reasons."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.routing import Features, route
from protocol.errors import Refused


@pytest.mark.parametrize(
    ("features", "outcome", "reason"),
    [
        ({}, "simple", "nothing that asks for a plan"),
        ({"steps": 1}, "simple", "one step"),
        ({"steps": 1, "sources": 9, "lasting_environment": True}, "simple", "one step"),
        ({"steps": 3}, "simple", "nothing that asks for a plan"),
        ({"subtasks": 2, "dependencies": True}, "complex", "2 subtasks with dependencies"),
        ({"subtasks": 2}, "simple", "nothing that asks for a plan"),
        ({"subtasks": 1, "dependencies": True}, "simple", "nothing that asks for a plan"),
        ({"sources": 2}, "complex", "2 sources"),
        ({"sources": 1}, "simple", "nothing that asks for a plan"),
        ({"parallel_branches": 3}, "complex", "3 parallel branches"),
        ({"tools": 2}, "complex", "2 tools in series"),
        ({"tools": 1}, "simple", "nothing that asks for a plan"),
        ({"files": 5}, "complex", "5 files or pages"),
        ({"files": 4}, "simple", "nothing that asks for a plan"),
        ({"lasting_environment": True}, "complex", "a lasting environment"),
        ({"edits_existing": True}, "simple", "nothing that asks for a plan"),
        ({"subtasks": 3, "dependencies": True, "sources": 4}, "complex", "3 subtasks with dependencies"),
    ],
)
def test_the_table(features: dict[str, Any], outcome: str, reason: str) -> None:
    routed = route(Features.read(features))
    assert (routed.outcome, routed.reasons) == (outcome, (reason,))


def test_all_facts_of_the_rule_that_decides_are_reasons() -> None:
    assert route(Features(sources=2, parallel_branches=2)).reasons == ("2 sources", "2 parallel branches")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"steps": "one"}, "steps"),
        ({"steps": True}, "steps"),
        ({"sources": -1}, "sources"),
        ({"tools": 1.5}, "tools"),
        ({"dependencies": "false"}, "dependencies"),
        ({"lasting_environment": 1}, "lasting_environment"),
    ],
)
def test_features_are_typed_and_never_read_from_words(given: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        Features.read(given)
    assert refused.value.path == field


def test_what_is_not_known_is_left_out() -> None:
    assert Features.read({"steps": None, "备注": "x"}) == Features()
