"""The kit's texts: the skill's format, one source for both kinds of agents, and what the pages promise."""

from __future__ import annotations

import json
import re

import pytest

from protocol.envelope import Lang
from protocol.errors import ConfigError
from protocol.gates import check_schema, validate
from protocol.kit.outside import FOLDER, KINDS, prompt
from protocol.record import EVENTS, REASONS

SKILL = (FOLDER / "SKILL.md").read_text(encoding="utf-8")


def test_the_skill_is_in_the_open_format() -> None:
    front = re.match(r"---\nname: (\S+)\ndescription: (.+)\n---\n", SKILL)
    assert front is not None
    assert front[1] == FOLDER.name
    assert len(front[2]) <= 1024
    for link in re.findall(r"\]\(([^)]+)\)", SKILL):
        assert (FOLDER / link).is_file(), link


def test_the_skill_s_record_is_valid_as_it_stands() -> None:
    block = re.search(r"```json\n(.*?)```", SKILL, re.DOTALL)
    assert block is not None
    check_schema(validate(json.loads(block[1])))


def test_the_skill_names_only_events_and_reasons_that_there_are() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", SKILL, re.MULTILINE)
    named = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert named <= {*EVENTS, *REASONS}
    assert len(named) >= 10


@pytest.mark.parametrize("kind", KINDS)
def test_an_outside_agent_s_prompt_is_the_rules_and_the_whole_page(kind: str) -> None:
    text = prompt(kind, fleet=False)
    assert text.startswith("# The loop")
    assert "When you are woken" in text
    assert '"event": "heartbeat"' in text
    assert '"event": "checkpoint"' in text
    assert "ask_master" not in text


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("kind", ["master", "verifier"])
def test_a_worker_s_base_prompt_has_no_commands_and_stays_short(kind: str, lang: Lang) -> None:
    text = prompt(kind, fleet=True, lang=lang)
    assert "ask_master" in text
    assert "rolecall" not in text
    assert "checkpoint" not in text
    assert "#" not in text
    assert len(text) < 1_400


@pytest.mark.parametrize("kind", ["master", "verifier"])
def test_both_prompts_say_the_same_rules(kind: str) -> None:
    fleet, outside = prompt(kind, fleet=True), prompt(kind, fleet=False)
    shared = [line for line in fleet.splitlines() if line and line in outside.splitlines()]
    assert len(shared) >= 8


@pytest.mark.parametrize(("kind", "fleet"), [("总管", False), ("manager", True)])
def test_a_kind_without_a_prompt_is_named(kind: str, fleet: bool) -> None:
    with pytest.raises(ConfigError, match=kind):
        prompt(kind, fleet=fleet)
