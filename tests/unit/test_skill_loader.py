"""Skill folders: both formats, what is wrong by name, the order of the path, tiers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import SkillError
from tests.unit.skillfolders import a_skill, skill_folder
from workers.skills.loader import load_skills, may_call, shipped_skills_dir


def problems(folder: Path) -> str:
    return "\n".join(map(str, load_skills([folder], shipped=False).problems))


def test_defaults(tmp_path: Path) -> None:
    skill = a_skill(tmp_path, timeout_ms=None, max_retries=None)
    assert (skill.version, skill.category, skill.timeout_ms, skill.max_retries) == ("1.0.0", "other", 30_000, 2)
    assert (skill.idempotent, skill.is_active, skill.tiers, skill.env) == (False, True, (), ())
    assert (skill.input_schema, skill.output_schema, skill.requirements) == (None, None, None)
    assert (skill.callable, skill.name, skill.instructions) == (True, "技能 demo", "# demo")


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({"skill_key": "Demo"}, "skill_key 'Demo' is no key"),
        ({"skill_key": "other"}, "skill_key 'other' is not the folder's name, 'demo'"),
        ({"skill_key": None}, "skill_key None is no key"),
        ({"name": ""}, "name '': give 1 to 1024"),
        ({"description": None}, "description None: give 1 to 1024"),
        ({"category": "magic"}, "category 'magic': must be one of search, file, code, data, other"),
        ({"version": "1.0"}, "version '1.0' is no semantic version"),
        ({"version": "01.0.0"}, "version '01.0.0' is no semantic version"),
        ({"entry_point": "code.py"}, "entry_point 'code.py' is not of the form"),
        ({"entry_point": "other.py:run"}, "there is no such file"),
        ({"entry_point": "../x.py:run"}, "entry_point '../x.py' is not inside the folder"),
        ({"entry_point": "/etc/x.py:run"}, "is not inside the folder"),
        ({"timeout_ms": 0}, "timeout_ms 0: must be a whole number from 1 to 3600000"),
        ({"timeout_ms": 3_600_001}, "timeout_ms 3600001"),
        ({"timeout_ms": True}, "timeout_ms True"),
        ({"max_retries": 11}, "max_retries 11: must be a whole number from 0 to 10"),
        ({"idempotent": "yes"}, "idempotent 'yes': must be true or false"),
        ({"tiers": ["top"]}, "tiers ['top']: must be a list of main, organize, sub"),
        ({"env": ["OPENAI_API_KEY"]}, "env 'OPENAI_API_KEY' is the fleet's own"),
        ({"env": ["REDIS_URL"]}, "env 'REDIS_URL' is the fleet's own"),
        ({"env": ["LD_PRELOAD"]}, "env 'LD_PRELOAD' is the fleet's own"),
        ({"env": "HOME"}, "env 'HOME': must be a list"),
        ({"input_schema": {"type": "array"}}, 'input_schema must have "type": "object"'),
        ({"input_schema": {"type": "objekt"}}, "input_schema is no JSON Schema"),
        ({"input_schema": {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}}, "refers to 'http://x/y'"),
        (
            {"input_schema": {"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}},
            "input_schema has a default that breaks it: a:",
        ),
        ({"output_schema": 3}, "output_schema is no JSON Schema"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_told_by_name(tmp_path: Path, manifest: dict[str, Any], words: str) -> None:
    folder = skill_folder(tmp_path, **manifest)
    assert words in problems(folder)
    assert str(folder / "skill.json") in problems(folder)


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    told = problems(skill_folder(tmp_path, version="x", category="y", timeout_ms=0))
    assert [word for word in ("version", "category", "timeout_ms") if word in told] == [
        "version",
        "category",
        "timeout_ms",
    ]


def test_an_entry_point_through_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = skill_folder(tmp_path)
    (folder / "code.py").unlink()
    (tmp_path / "elsewhere.py").write_text("def run(): return 1\n")
    (folder / "code.py").symlink_to(tmp_path / "elsewhere.py")
    assert "is not inside the folder" in problems(folder)


def test_a_manifest_that_is_no_json_is_named_with_its_line(tmp_path: Path) -> None:
    folder = skill_folder(tmp_path)
    (folder / "skill.json").write_text('{\n  "skill_key": "demo",\n  oops\n}')
    assert f"{folder / 'skill.json'}:3: is no JSON" in problems(folder)
    (folder / "skill.json").write_text("[]")
    assert "is no JSON object" in problems(folder)


def test_the_open_format_loads_as_instructions(tmp_path: Path) -> None:
    folder = tmp_path / "how-to-review"
    folder.mkdir()
    (folder / "SKILL.md").write_text(
        "---\nname: how-to-review\ndescription: 如何审查\nlicense: MIT\n---\nRead first.\n"
    )
    skill = load_skills([tmp_path], shipped=False).need("how-to-review")
    assert (skill.callable, skill.description, skill.instructions) == (False, "如何审查", "Read first.")


@pytest.mark.parametrize(
    ("front", "words"),
    [
        ("name: other\ndescription: d", "name 'other' is not the folder's"),
        ("name: Open_Skill\ndescription: d", "is no key"),
        ("name: open-skill\ndescription: ''", "description has 0 characters"),
        (f"name: open-skill\ndescription: {'x' * 1025}", "description has 1025 characters"),
        ("name: [a", "SKILL.md:"),
    ],
)
def test_the_open_format_has_rules(tmp_path: Path, front: str, words: str) -> None:
    folder = tmp_path / "open-skill"
    folder.mkdir()
    (folder / "SKILL.md").write_text(f"---\n{front}\n---\nbody")
    assert words in problems(folder)


def test_code_without_instructions_is_refused(tmp_path: Path) -> None:
    folder = skill_folder(tmp_path)
    (folder / "SKILL.md").unlink()
    assert "SKILL.md: is missing" in problems(folder)


def test_a_broken_folder_does_not_keep_the_others_from_loading(tmp_path: Path) -> None:
    skill_folder(tmp_path, "good")
    skill_folder(tmp_path, "bad", version="x")
    (tmp_path / "notes").mkdir()
    loaded = load_skills([tmp_path, tmp_path / "missing"], shipped=False)
    assert list(loaded.skills) == ["good"]
    assert len(loaded.problems) == 2
    with pytest.raises(SkillError, match="skill 'bad' is broken: .*version 'x'"):
        loaded.need("bad")


def test_of_a_key_found_twice_the_first_of_the_path_order_loads(tmp_path: Path) -> None:
    first = skill_folder(tmp_path / "one", "twin", version="1.0.0")
    second = skill_folder(tmp_path / "two", "twin", version="2.0.0")
    loaded = load_skills([tmp_path / "two", tmp_path / "one"], shipped=False)
    assert loaded.need("twin").version == "2.0.0"
    assert [str(p) for p in loaded.problems] == [f"{first}: the key 'twin' is taken by {second}, which loads first"]


def test_a_users_skill_takes_the_place_of_a_shipped_one(tmp_path: Path) -> None:
    mine = skill_folder(tmp_path, "calculator", version="9.0.0")
    loaded = load_skills([tmp_path])
    assert loaded.need("calculator").version == "9.0.0"
    assert loaded.warnings == (f"{mine} takes the place of the shipped skill 'calculator'",)
    assert loaded.problems == ()


def test_unknown_keys_are_named_once(tmp_path: Path) -> None:
    loaded = load_skills([skill_folder(tmp_path, colour="red", author="我")], shipped=False)
    assert len(loaded.warnings) == 1
    assert "'colour', 'author'" in loaded.warnings[0]


def test_unknown_and_inactive_skills_are_one_line(tmp_path: Path) -> None:
    skill_folder(tmp_path, "read-pages")
    skill_folder(tmp_path, "off", is_active=False)
    loaded = load_skills([tmp_path], shipped=False)
    with pytest.raises(SkillError) as caught:
        loaded.need("read-page")
    assert str(caught.value) == "unknown skill 'read-page' (did you mean 'read-pages'? known: off, read-pages)"
    with pytest.raises(SkillError, match="switched off"):
        loaded.need("off")


def test_tiers_bound_who_may_call(tmp_path: Path) -> None:
    skill_folder(tmp_path, "plain")
    skill_folder(tmp_path, "leading", tiers=["organize", "main"])
    loaded = load_skills([tmp_path], shipped=False)
    table = {
        (tier, key): may_call(loaded.need(key), tier)
        for tier in ("main", "organize", "sub")
        for key in ("plain", "leading")
    }
    assert table == {
        ("main", "plain"): False, ("main", "leading"): True, ("organize", "plain"): False,
        ("organize", "leading"): True, ("sub", "plain"): True, ("sub", "leading"): True,
    }  # fmt: skip
    skills, refused = loaded.for_agent("main", ["plain", "leading", "nothing"])
    assert [skill.key for skill in skills] == ["leading"]
    assert [words.split()[0:2] for words in refused] == [["skill", "'plain'"], ["unknown", "skill"]]


def test_loading_runs_no_code(tmp_path: Path) -> None:
    skill_folder(tmp_path, code=f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef run(): return 1\n")
    assert load_skills([tmp_path], shipped=False).problems == ()
    assert not (tmp_path / "ran").exists()


def test_the_skills_that_ship_load() -> None:
    loaded = load_skills([])
    assert (loaded.problems, loaded.warnings) == ((), ())
    assert set(loaded.skills) == {"calculator", "fetch-page", "pdf-text", "read-files", "run-analyser"}
    for skill in loaded.skills.values():
        assert skill.folder.parent == shipped_skills_dir()
        assert json.loads((skill.folder / "skill.json").read_text())["version"] == skill.version
        assert all(head in skill.instructions for head in ("When to use it", "When not", "## Input", "## Output"))
