"""Role files: every key, lines in errors, names that collide, the user's before the shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RoleError
from protocol.kit.rolefiles import load_role, load_roles, module_name, parse_role, role_from_text, shipped_roles_dir

NONE = Path()


def write(folder: Path, name: str, front: str = "", body: str = "Do it.", *, role_id: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.md"
    path.write_text(
        f"---\nid: {role_id or name}\nname: {name}\ndescription: one line\n{front}---\n{body}\n", encoding="utf-8"
    )
    return path


def problem(front: str, name: str = "a") -> str:
    """The one problem of a role with these lines after id, name and description (lines 2 to 4)."""
    _, problems, _ = parse_role(f"---\nid: {name}\nname: n\ndescription: d\n{front}---\n", Path(f"{name}.md"))
    assert len(problems) == 1, problems
    return f"{problems[0].line}: {problems[0].message}"


def test_defaults_of_a_role_with_the_required_keys_only(tmp_path: Path) -> None:
    role = load_role(write(tmp_path, "code-reviewer", body="审查代码。\n\n第二行"))
    assert (role.id, role.module_name) == ("code-reviewer", "code_reviewer")
    assert (role.model, role.thinking_mode, role.kind, role.tier, role.executor) == ("", "", "master", "sub", "model")
    assert (role.skills, role.merge_key, role.priority, role.is_final_decider) == ((), (), 999, False)
    assert role.stages == ("present", "discuss", "summarize")
    assert (role.concurrency, role.timeout_s, role.output_schema, role.extra) == (None, None, None, {})
    assert role.body == "审查代码。\n\n第二行"


def test_every_key_is_read_and_published(tmp_path: Path) -> None:
    front = (
        "model: big\nthinking_mode: thinking\nkind: verifier\ntier: organise\nexecutor: skill\nskill: run-analyser\n"
        "skills: [read-files, calculator]\nconcurrency: 2\ntimeout_s: 1.5\nmax_turns: 7\nmerge_key: [file, line]\n"
        "output_schema: {type: object}\ntitle: 总监\npriority: 3\nstages: [summarize, present]\n"
        "is_final_decider: true\ncolour: {shade: [1, 2]}\n"
    )
    loaded = load_roles([write(tmp_path, "r1", front).parent], shipped=NONE)
    role = loaded.roles["r1"]
    assert loaded.problems == ()
    assert (role.tier, role.kind, role.skill, role.max_turns) == ("organize", "verifier", "run-analyser", 7)
    assert role.stages == ("present", "summarize")
    assert role.extra == {"colour": {"shade": [1, 2]}}
    assert len(loaded.warnings) == 1
    assert "'colour'" in loaded.warnings[0]
    front_matter = role.front()
    assert front_matter["skills"] == ["read-files", "calculator"]
    assert front_matter["colour"] == {"shade": [1, 2]}
    assert front_matter["timeout_s"] == 1.5
    assert "body" not in front_matter


@pytest.mark.parametrize(
    ("front", "expected"),
    [
        ("kind: manager\n", "5: kind is 'manager': must be one of master, verifier"),
        ("tier: middle\n", "5: tier is 'middle'"),
        ("thinking_mode: deep\n", "5: thinking_mode is 'deep'"),
        ("concurrency: 0\n", "5: concurrency is 0: must be a whole number from 1"),
        ("concurrency: true\n", "5: concurrency is True"),
        ("timeout_s: -1\n", "5: timeout_s is -1"),
        ("timeout_s: .nan\n", "5: timeout_s is nan"),
        ("max_turns: 2.5\n", "5: max_turns is 2.5"),
        ("skills: read-files\n", "5: skills must be a list"),
        ("skills: [a, a]\n", "5: skills names a skill twice"),
        ("skills: ['../x']\n", "5: skills has '../x'"),
        ("stages: [present, talk]\n", "5: stages has 'talk'"),
        ("merge_key: []\n", "5: merge_key must be a list"),
        ("output_schema: {type: nothing}\n", "5: output_schema is no JSON Schema"),
        ("is_final_decider: maybe\n", "5: is_final_decider is 'maybe'"),
        ("priority: high\n", "5: priority is 'high'"),
        ("executor: skill\n", "5: executor is 'skill' but no skill is named"),
        ("skill: x\n", "5: skill names one that does the work"),
        ("extra: 1\nkind: [a]\n", "6: kind is ['a']"),
        ("x: [1, 2\n", "6: "),
        ("x: 1\nx: 2\n", "6: the key 'x' is there twice"),
        ("x: {a: 1, a: 2}\n", "5: the key 'a' is there twice"),
        ("a: &b [1]\nc: *b\n", "6: aliases"),
        ("x: !!python/object:os.system {}\n", "5: could not determine a constructor"),
        ("x: {1: a}\n", "5: x has the key 1"),
        ("x: !!set {a, b}\n", "5: x is a set"),
        ("\tx: 1\n", "5: "),
    ],
)
def test_what_is_wrong_is_named_with_its_line(front: str, expected: str) -> None:
    assert problem(front).startswith(expected)


def test_every_fault_of_a_file_is_told_at_once() -> None:
    _, problems, _ = parse_role("---\nid: a\nkind: x\ntier: y\n---\n", Path("a.md"))
    assert [(p.line, p.message.split()[0]) for p in problems] == [
        (1, "'name'"),
        (1, "'description'"),
        (3, "kind"),
        (4, "tier"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no front matter"),
        ("# A role\n", "no front matter"),
        ("---\nid: a\n", "does not end"),
        ("---\n---\n", "is empty"),
        ("---\n- a\n---\n", "no mapping"),
        ("---\nid: a\x07\n---\n", "not allowed"),
        ("---\n" + "[" * 5000 + "\n---\n", "nested too deeply"),
    ],
)
def test_a_file_that_is_no_role_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(RoleError, match=words):
        role_from_text(text, Path("a.md"))


@pytest.mark.parametrize("word", ["on", "no", "1e3", "007", "2026-01-01", "null_"])
def test_text_is_text_whatever_yaml_makes_of_it(word: str) -> None:
    role = role_from_text(f"---\nid: {word}\nname: {word}\ndescription: {word}\n---\n", Path(f"{word}.md"))
    assert (role.id, role.name, role.description) == (word, word, word)


def test_an_empty_optional_value_is_the_default() -> None:
    role = role_from_text("---\nid: a\nname: n\ndescription: d\nmodel:\nskills:\ntier:\n---\n", Path("a.md"))
    assert (role.model, role.skills, role.tier) == ("", (), "sub")


@pytest.mark.parametrize("bad", ["a b", "a/b", "角色", "a.b", "_a", "-a", "__init__", "x" * 65])
def test_an_id_that_can_be_no_name_is_refused(bad: str) -> None:
    with pytest.raises(RoleError, match="id"):
        role_from_text(f"---\nid: '{bad}'\nname: n\ndescription: d\n---\n", Path("x") / f"{bad.rpartition('/')[2]}.md")


def test_the_id_is_the_file_name_without_regard_to_case(tmp_path: Path) -> None:
    assert load_role(write(tmp_path, "Reviewer", role_id="reviewer")).id == "reviewer"
    with pytest.raises(RoleError, match="is not the file's name"):
        load_role(write(tmp_path, "other", role_id="reviewer"))


def test_a_bad_file_does_not_keep_the_others_from_loading(tmp_path: Path) -> None:
    write(tmp_path, "good")
    bad = write(tmp_path, "bad", "kind: boss\n")
    (tmp_path / "latin.md").write_bytes("---\nid: latin\nname: é\n---\n".encode("latin-1"))
    (tmp_path / "README.md").write_text("no role")
    (tmp_path / "_draft.md").write_text("no role")
    loaded = load_roles([tmp_path, tmp_path / "missing"], shipped=NONE)
    assert list(loaded.roles) == ["good"]
    assert [str(p) for p in loaded.problems if p.path == bad] == [
        f"{bad}:5: kind is 'boss': must be one of master, verifier"
    ]
    assert any(p.line == 3 and "UTF-8" in p.message for p in loaded.problems)
    assert any("directory of roles" in p.message for p in loaded.problems)
    with pytest.raises(RoleError, match=r"bad\.md:5: kind is 'boss'"):
        loaded.need("bad")


@pytest.mark.parametrize(("first", "second"), [("Reviewer", "reviewer"), ("a-b", "a_b"), ("a-b", "A_B")])
def test_two_roles_that_could_be_mistaken_are_both_refused(tmp_path: Path, first: str, second: str) -> None:
    write(tmp_path / "one", first)
    write(tmp_path / "two", second)
    write(tmp_path / "two", "good")
    loaded = load_roles([tmp_path / "one", tmp_path / "two"], shipped=NONE)
    assert list(loaded.roles) == ["good"]
    told = "\n".join(map(str, loaded.problems))
    assert f"role {first!r} and {second!r} in" in told
    assert f"role {second!r} and {first!r} in" in told
    assert f"workers.roles.{module_name(first)}" in told


def test_the_same_file_by_two_ways_is_one_role(tmp_path: Path) -> None:
    path = write(tmp_path, "a")
    loaded = load_roles([tmp_path, path], shipped=NONE)
    assert (list(loaded.roles), loaded.problems) == (["a"], ())


def test_a_users_role_takes_the_place_of_a_shipped_one(tmp_path: Path) -> None:
    write(tmp_path / "ours", "reviewer", "title: shipped\n")
    write(tmp_path / "ours", "writer")
    mine = write(tmp_path / "mine", "Reviewer", "title: mine\n")
    loaded = load_roles([tmp_path / "mine"], shipped=tmp_path / "ours")
    assert loaded.need("reviewer").title == "mine"
    assert set(loaded.roles) == {"Reviewer", "writer"}
    assert loaded.warnings == (f"{mine} takes the place of the shipped role 'reviewer'",)


def test_a_half_edited_role_does_not_turn_into_the_shipped_one(tmp_path: Path) -> None:
    write(tmp_path / "ours", "reviewer")
    write(tmp_path / "mine", "reviewer", "tier: top\n")
    loaded = load_roles([tmp_path / "mine"], shipped=tmp_path / "ours")
    with pytest.raises(RoleError, match="tier is 'top'"):
        loaded.need("reviewer")


def test_an_unknown_role_is_one_line_with_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path, "code-reviewer")
    loaded = load_roles([tmp_path], shipped=NONE)
    assert loaded.need("CODE_reviewer").id == "code-reviewer"
    with pytest.raises(RoleError) as caught:
        loaded.need("code_reviewr")
    assert str(caught.value) == "unknown role 'code_reviewr' (did you mean 'code-reviewer'? known: code-reviewer)"


def test_the_digest_follows_the_text(tmp_path: Path) -> None:
    first = load_role(write(tmp_path, "a", body="one")).digest
    assert load_role(write(tmp_path, "a", body="one")).digest == first
    assert load_role(write(tmp_path, "a", body="two")).digest != first


def test_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_bytes("\ufeff---\r\nid: a\r\nname: 名\r\ndescription: d\r\n---\r\nBody\r\nmore\r\n".encode())
    role = load_role(path)
    assert (role.name, role.body) == ("名", "Body\nmore")


def test_a_file_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RoleError, match="at most 262144"):
        load_role(write(tmp_path, "a", body="x" * 300_000))


def test_a_misspelt_key_is_guessed_at(tmp_path: Path) -> None:
    loaded = load_roles([write(tmp_path, "a", "skils: [x]\n").parent], shipped=NONE)
    assert "did you mean 'skills' by 'skils'?" in loaded.warnings[0]


def test_the_roles_that_ship_load_and_name_only_skills_that_ship() -> None:
    from workers.skills.loader import load_skills

    loaded = load_roles([])
    assert (loaded.problems, loaded.warnings) == ((), ())
    assert {"planner", "reviewer", "router", "verifier", "worker", "writer"} <= set(loaded.roles)
    assert all(role.path.parent == shipped_roles_dir() and len(role.body) > 300 for role in loaded.roles.values())
    skills = load_skills([])
    for role in loaded.roles.values():
        assert skills.for_agent(role.tier, role.skills)[1] == []
    assert loaded.need("verifier").kind == "verifier"


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_raise_anything_but_a_role_error(text: str) -> None:
    role, problems, _ = parse_role(f"---\nid: a\nname: n\ndescription: d\nx: {text}\n---\nbody", Path("a.md"))
    assert (role is None) == bool(problems)


WORDS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), max_size=5)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | WORDS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    )
)
def test_unknown_keys_survive_as_they_are(value: Any) -> None:
    written = json.dumps(value, ensure_ascii=False)
    role = role_from_text(f"---\nid: a\nname: n\ndescription: d\nx: {written}\n---\n", Path("a.md"))
    assert role.extra["x"] == value
