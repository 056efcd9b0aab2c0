"""The skills that ship: what they do, and what they refuse. (Those that need a network: integration.)"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from workers.skills.loader import load_skills
from workers.skills.runner import SkillRun, SkillRunner

SKILLS = load_skills([])


async def run(key: str, root: Path, **params: Any) -> SkillRun:
    return await SkillRunner(env=dict(os.environ), root=root).run(SKILLS.need(key), params)


async def output(key: str, root: Path, **params: Any) -> dict[str, Any]:
    done = await run(key, root, **params)
    assert done.ok, done.error
    assert isinstance(done.output, dict)
    return done.output


# --- read-files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root with files, and things outside it and hidden in it that must stay unread."""
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    (root / "src/a.py").write_text("一\n二\n三 match\n四\n五 match\n", encoding="utf-8")
    (root / "src/binary").write_bytes(b"a\0b")
    (root / ".env").write_text("secret")
    (root / ".git").mkdir()
    (root / ".git/config").write_text("secret")
    (root / "rolecall.toml").write_text("secret")
    (tmp_path / "root-beside").mkdir()
    (tmp_path / "root-beside/notes").write_text("secret")
    (tmp_path / "secret").write_text("secret")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "outdir").symlink_to(tmp_path / "root-beside")
    (root / "inlink").symlink_to("src/a.py")
    os.mkfifo(root / "pipe")
    return root


async def test_read_files_reads_lines(tree: Path) -> None:
    found = await output("read-files", tree, path="src/a.py", first_line=2, max_lines=2)
    assert found == {
        "path": "src/a.py", "kind": "file", "more": True,
        "lines": [{"line": 2, "text": "二"}, {"line": 3, "text": "三 match"}],
    }  # fmt: skip
    found = await output("read-files", tree, path="inlink", contains="match")
    assert [line["line"] for line in found["lines"]] == [3, 5]
    assert found["more"] is False


async def test_read_files_lists_without_what_is_hidden(tree: Path) -> None:
    found = await output("read-files", tree, recursive=True)
    names = [entry["path"] for entry in found["entries"]]
    assert {"src", "src/a.py", "src/binary"} <= set(names)
    assert not any("secret" in name or name.startswith(".") or name == "rolecall.toml" for name in names)
    assert not any(name.startswith("outdir/") for name in names)


@pytest.mark.parametrize(
    "path",
    [
        "../secret", "../root-beside/notes", "src/../../secret", "/etc/passwd", "out", "outdir/notes", ".env",
        ".git/config", "src/../.env", "rolecall.toml", "ROLECALL.TOML", "missing", "src/a.py/x", "a\0b", "src/binary",
        "pipe", "~/.ssh/id_rsa", "…/../..",
    ],
)  # fmt: skip
async def test_read_files_has_no_way_out(tree: Path, path: str) -> None:
    done = await run("read-files", tree, path=path)
    assert (done.status, done.attempts, done.output) == ("failed", 1, None)
    assert done.error.startswith("BadInput: ")
    assert "secret" not in str(done.output)


async def test_read_files_works_on_the_root_that_the_environment_names(tree: Path) -> None:
    runner = SkillRunner(env={**os.environ, "SKILL_ROOT": str(tree / "src")})
    done = await runner.run(SKILLS.need("read-files"), {"path": "a.py", "max_lines": 1})
    assert done.output["lines"] == [{"line": 1, "text": "一"}]


# --- run-analyser -----------------------------------------------------------------------------------------------------

FAULTY = """import os
import subprocess


def run(text):
    try:
        return subprocess.call(text, shell=True)
    except Exception:
        pass
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Code with faults that both tools know, and configuration beside it that would hide them."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "faulty.py").write_text(FAULTY)
    (folder / "broken.py").write_text("def f(:\n")
    (folder / "ruff.toml").write_text('exclude = ["*"]\n')
    (folder / ".bandit").write_text("[bandit]\nexclude = /\nskips = B602,B110\n")
    return tmp_path


@pytest.mark.parametrize(
    ("tool", "rules", "expected"),
    [
        ("ruff", ["S"], {("code/faulty.py", 7, "S602"), ("code/faulty.py", 8, "S110")}),
        ("ruff", ["F401"], {("code/faulty.py", 1, "F401")}),
        ("bandit", ["B602", "B110"], {("code/faulty.py", 7, "B602"), ("code/faulty.py", 8, "B110")}),
    ],
)
async def test_run_analyser_finds_what_is_there(code: Path, tool: str, rules: list[str], expected: set[Any]) -> None:
    found = await output("run-analyser", code, tool=tool, path="code", rules=rules)
    assert {(item["file"], item["line"], item["rule"]) for item in found["items"]} == expected
    assert found["total"] == len(expected)
    assert found["version"]
    assert any("broken.py" in error for error in found["errors"])
    assert sorted(os.listdir(code / "code")) == [".bandit", "broken.py", "faulty.py", "ruff.toml"]


async def test_run_analyser_bounds_its_findings(code: Path) -> None:
    found = await output("run-analyser", code, tool="ruff", path="code/faulty.py", rules=["S", "F"], max_findings=1)
    assert len(found["items"]) == 1
    assert found["total"] == 3


@pytest.mark.parametrize("path", ["--help", "../", "/", "missing", "-c", "code/../../..", "a\0b"])
async def test_run_analyser_stays_below_its_root(code: Path, path: str) -> None:
    done = await run("run-analyser", code, tool="ruff", path=path)
    assert (done.status, done.attempts) == ("failed", 1)
    assert done.error.startswith("BadInput: ")


@pytest.mark.parametrize(
    "params",
    [
        {"tool": "rm", "path": "."},
        {"tool": "ruff; touch x", "path": "."},
        {"tool": "ruff", "path": ".", "rules": ["S --fix"]},
        {"tool": "ruff", "path": ".", "rules": ["$(touch x)"]},
        {"tool": "ruff", "path": ".", "fix": True},
    ],
)
async def test_run_analyser_lets_no_other_program_or_option_through(code: Path, params: dict[str, Any]) -> None:
    done = await run("run-analyser", code, **params)
    assert (done.kind, done.attempts) == ("bad_input", 0)


async def test_sc_02_a_file_name_is_never_a_command(tmp_path: Path) -> None:
    for number, name in enumerate(['";touch pwned;"', "$(touch pwned)", "`touch pwned`", "a\ntouch pwned", "--fix"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"f{number}.py").write_text("import os\n")
        found = await output("run-analyser", tmp_path, tool="ruff", path=name, rules=["F401"])
        assert [item["file"] for item in found["items"]] == [f"{name}/f{number}.py"]
    assert not (tmp_path / "pwned").exists()


# --- calculator -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "result", "exact"),
    [
        ("3+4*2", "11", True),
        ("0.1+0.2", "0.3", True),
        ("（3 + 4）× 2 ÷ 7 =", "2", True),
        ("１２＋３", "15", True),
        ("-7//2", "-4", True),
        ("-7 % 3", "2", True),
        ("2**-2", "0.25", True),
        ("1/3*3", "1", True),
        ("1/8", "0.125", True),
        ("round(2.675, 2)", "2.68", True),
        ("max(1, 2/3, 0.5)", "1", True),
        ("2**100", "1267650600228229401496703205376", True),
        ("sqrt(2)", "1.4142135623731", False),
        ("log(8, 2)", "3", False),
        ("pi", "3.14159265358979", False),
        ("123456789012345678901234567890 + 1", "123456789012345678901234567891", True),
    ],
)
async def test_calculator(tmp_path: Path, expression: str, result: str, exact: bool) -> None:
    found = await output("calculator", tmp_path, expression=expression)
    assert (found["result"], found["exact"]) == (result, exact)


async def test_calculator_says_what_it_rounded(tmp_path: Path) -> None:
    found = await output("calculator", tmp_path, expression="2/3")
    assert (found["result"], found["exact"], found["fraction"]) == (f"0.{'6' * 49}7", False, "2/3")
    long = await output("calculator", tmp_path, expression="7**5000 / 7**5000 + 10**4500 / 1")
    assert long["result"] == "1" + "0" * 4499 + "1"


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('touch pwned')", "9**9**9", "10**10000000", "(1).__class__", "[x for x in (1,)]",
        "lambda: 1", "1 if 1 else 2", "'a' * 3", "1/0", "0**-1", "sqrt(-1)", "x", "((((", "", "1 << 99", "nan", "1e999",
        "open('x')", "abs(1, 2)", "(-8)**(1/3)", "True", "1j", "-" * 500 + "1", "exp(1000)", "max()", "round(1, 9999)",
        "1;2", "$(touch pwned)",
    ],
)  # fmt: skip
async def test_calculator_runs_nothing(tmp_path: Path, expression: str) -> None:
    done = await run("calculator", tmp_path, expression=expression)
    assert done.status == "failed"
    assert done.kind in ("bad_input", "raised")
    assert done.attempts <= 1
    assert not done.error.startswith(("NameError", "TypeError", "AttributeError", "OverflowError"))
    assert not (tmp_path / "pwned").exists()


# --- fetch-page -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://localhost:6379/", "http://a.localhost/", "http://[::1]/", "http://0.0.0.0/",
        "http://[::ffff:10.0.0.1]/", "http://169.254.169.254/latest/meta-data", "http://192.168.1.1/", "http://10.1.2.3/",
        "http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/", "http://localhost./", "http://224.0.0.1/",
        "file:///etc/passwd", "ftp://example.org/", "data:text/plain,x", "http://user:pw@example.org/", "http:///x",
        "http://exa mple.org/", "http://example.org:99999/", "javascript:alert(1)", "http://example.org/\r\nX: y",
        "http://[64:ff9b::7f00:1]/", "http://[2002:7f00:1::]/",
        "http://[::7f00:1]/",
    ],
)  # fmt: skip
async def test_fetch_page_goes_nowhere_near_the_local_network(tmp_path: Path, url: str) -> None:
    runner = SkillRunner(env={"PATH": os.environ["PATH"]}, root=tmp_path)
    done = await runner.run(SKILLS.need("fetch-page"), {"url": url})
    assert (done.status, done.attempts) == ("failed", 1)
    assert done.error.startswith("BadInput: ")
