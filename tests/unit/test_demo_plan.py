"""The code under review, its slices, and the plan that the fleet gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator import planfile
from protocol.kit.rolefiles import load_roles
from review.plan import MERGE_KEY, TEAM, WORKERS, goal, make_plan
from review.target import MOST_NAMES_BYTES, BadTarget, CodeFile, Target, cut, default_root, look
from workers.skills.loader import load_skills

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "code-review"


def tree(root: Path, files: dict[str, int]) -> Path:
    for name, lines in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n" * lines, encoding="utf-8")
    return root


def target(files: dict[str, int], root: str = "/code") -> Target:
    return Target(Path(root), "code", tuple(CodeFile(name, lines) for name, lines in sorted(files.items())))


def test_the_default_target_is_the_redis_client_and_large_enough() -> None:
    found = look(default_root())
    assert found.title == "redis"
    assert found.lines > 20_000


def test_what_nobody_wrote_by_hand_is_left_out(tmp_path: Path) -> None:
    tree(tmp_path, {"a.py": 3, "pkg/b.py": 2, "模块/丙.py": 1, ".hidden/c.py": 1, "node_modules/d.py": 1})
    tree(tmp_path, {"pkg/__pycache__/e.py": 1, "env/lib/f.py": 1, "readme.txt": 1})
    (tmp_path / "env" / "pyvenv.cfg").touch()
    found = look(tmp_path)
    assert [(file.name, file.lines) for file in found.files] == [("a.py", 3), ("pkg/b.py", 2), ("模块/丙.py", 1)]


def test_a_link_that_leads_out_is_not_followed(tmp_path: Path) -> None:
    tree(tmp_path, {"in/a.py": 1, "out/b.py": 1})
    (tmp_path / "in" / "b.py").symlink_to(tmp_path / "out" / "b.py")
    assert [file.name for file in look(tmp_path / "in").files] == ["a.py"]


def test_a_bad_target_is_one_message_with_its_mend(tmp_path: Path) -> None:
    tree(tmp_path, {"file.py": 1})
    (tmp_path / "empty").mkdir()
    for path, words in (
        (tmp_path / "nowhere", "there is no directory"),
        (tmp_path / "file.py", "is a file"),
        (tmp_path / "empty", "no readable Python files"),
    ):
        with pytest.raises(BadTarget, match=words) as caught:
            look(path)
        assert str(path) in caught.value.message
        assert caught.value.mend


def test_slices_hold_every_file_once_and_are_about_equal() -> None:
    files = {f"pkg{n % 7}/mod{n}.py": 100 + 37 * (n % 11) for n in range(120)}
    slices = cut(target(files))
    names = [file.name for part in slices for file in part.files]
    assert sorted(names) == sorted(files)
    assert len(slices) == 6
    assert max(part.lines for part in slices) < 1.2 * min(part.lines for part in slices)


def test_a_module_stays_whole_unless_it_is_too_large() -> None:
    slices = cut(target({"small/a.py": 200, "small/b.py": 200, "large/a.py": 2000, "large/b.py": 2000}), most=4)
    where = {file.name: part.number for part in slices for file in part.files}
    assert where["small/a.py"] == where["small/b.py"]
    assert where["large/a.py"] != where["large/b.py"]


def test_little_code_is_one_slice() -> None:
    assert [len(part.files) for part in cut(target({"a.py": 10, "b.py": 0}))] == [2]


def test_the_names_of_a_slice_fit_into_a_task() -> None:
    files = {f"d/{'n' * 150}{n}.py": 1 for n in range(2000)}
    slices = cut(target(files))
    assert sum(len(part.files) for part in slices) == 2000
    for part in slices:
        assert sum(len(file.name) for file in part.files) <= MOST_NAMES_BYTES


def test_the_plan_is_one_that_the_flow_takes_and_overlaps_on_purpose() -> None:
    code = target({f"m{n}.py": 1000 for n in range(6)})
    plan = planfile.check(make_plan(code, cut(code)))
    assert plan.goal == goal(code) == "Review code: 6 files, 6,000 lines of Python"
    assert set(plan.roles) == set(TEAM) == set(WORKERS)
    assert len(plan.roles) >= 4
    scans = [task for task in plan.tasks if task.verify]
    seen: dict[str, set[str]] = {}
    for task in scans:
        assert list(task.merge_key) == MERGE_KEY
        for name in task.input["files"]:
            seen.setdefault(name, set()).add(task.role)
    assert set(seen) == {file.name for file in code.files}
    assert all(roles == {"bandit-scanner", "security-scanner", "bug-finder"} for roles in seen.values())
    assert sum(1 for task in plan.tasks if task.verifies) == len(scans)


def test_the_same_directory_gives_the_same_plan(tmp_path: Path) -> None:
    tree(tmp_path, {f"p{n}/m.py": 200 + n for n in range(9)})
    first, second = look(tmp_path), look(tmp_path)
    assert make_plan(first, cut(first)) == make_plan(second, cut(second))


def test_every_role_of_the_team_loads_and_its_skill_is_there() -> None:
    roles = load_roles([EXAMPLE / "roles"], shipped=Path())
    skills = load_skills([EXAMPLE / "skills"], shipped=False)
    assert not roles.problems + skills.problems
    assert not roles.warnings + skills.warnings
    assert set(roles.roles) == set(TEAM)
    for role in roles.roles.values():
        assert role.executor == "model" or skills.need(role.skill).callable
    assert sum(role.executor == "skill" for role in roles.roles.values()) >= 2
    assert [role.id for role in roles.roles.values() if role.kind == "verifier"] == ["finding-verifier"]
