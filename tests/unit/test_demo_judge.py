"""The verifier's stated rules, one place of code each."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from review.judge import judge, overall
from review.source import Source

ELSEWHERE = "no module of this name is under review"


def verdict(tmp_path: Path, rule: str, code: str, *, name: str = "mod.py", mark: str = "# <-") -> tuple[str, str]:
    """The verdict on ``rule`` at the line that carries ``mark``."""
    text = textwrap.dedent(code)
    line = next(n for n, row in enumerate(text.splitlines(), 1) if mark in row)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace(f"  {mark}", ""), encoding="utf-8")
    found = judge(Source(tmp_path, name), line, rule)
    return found.verdict, found.reason


CASES = [
    ("assert_value", "S101", "confirmed", "def f(n):\n    assert n > 0  # <-\n", "python -O"),
    ("assert_type", "S101", "rejected", "def f(n):\n    assert isinstance(n, int)  # <-\n", "states a type"),
    ("assert_none_and_type", "S101", "rejected", "assert x is not None and callable(x)  # <-\n", "states a type"),
    ("assert_never", "S101", "partial", "def f():\n    assert False  # <-\n", "never reached"),
    (
        "silent",
        "S110",
        "confirmed",
        "def f():\n    try:\n        g()\n    except Exception:  # <-\n        pass\n",
        "without a word",
    ),
    (
        "silent_in_del",
        "S110",
        "rejected",
        "class A:\n  def __del__(self):\n    try:\n      g()\n    except Exception:  # <-\n      pass\n",
        "__del__",
    ),
    (
        "silent_with_reason_in_chinese",
        "S110",
        "rejected",
        "try:\n    g()\nexcept Exception:  # <-\n    # 关闭时出错无妨\n    pass\n",
        "关闭时出错无妨",
    ),
    (
        "silent_with_a_pragma_only",
        "S110",
        "confirmed",
        "try:\n    g()\nexcept Exception:  # <-\n    pass  # pragma: no cover\n",
        "without a word",
    ),
    ("jitter", "S311", "rejected", "def backoff(n):\n    return random.uniform(0, n)  # <-\n", "backoff"),
    ("one_of_many", "S311", "rejected", "def pick(nodes):\n    return random.choice(nodes)  # <-\n", "pick"),
    ("secret_name", "S311", "confirmed", "def f():\n    token = random.choice(letters)  # <-\n", "token"),
    ("secret_keyword", "S311", "confirmed", "f(password=random.randint(1, 9))  # <-\n", "passw"),
    ("tokenizer_is_no_token", "S311", "rejected", "def tokenize(a):\n    return random.choice(a)  # <-\n", "tokenize"),
    ("letters", "S311", "confirmed", "x = ''.join(random.choice(abc) for _ in range(9))  # <-\n", "random letters"),
    ("some_number", "S311", "partial", "def f():\n    return random.random()  # <-\n", "only if"),
    ("hash_as_id", "S324", "partial", "self.sha = hashlib.sha1(script)  # <-\n", "usedforsecurity"),
    ("hash_of_password", "S324", "confirmed", "h = hashlib.md5(password)  # <-\n", "passw"),
    ("hash_of_anything", "S324", "confirmed", "h = hashlib.md5(data)  # <-\n", "reports it again"),
    ("request", "S113", "confirmed", "r = requests.get(url)  # <-\n", "no timeout"),
    ("request_with_kwargs", "S113", "partial", "r = requests.get(url, **kw)  # <-\n", "**"),
    ("placeholder", "S105", "rejected", "password = ''  # <-\n", "placeholder"),
    ("words", "S105", "rejected", "token_label = 'access token'  # <-\n", "made of words"),
    ("password", "S105", "confirmed", "password = 'k3#9xQ!z'  # <-\n", "real password"),
    ("constant_command", "S603", "rejected", "subprocess.run(['ls', '-l'])  # <-\n", "constant"),
    ("command_with_values", "S603", "partial", "subprocess.run(['ls', path])  # <-\n", "from outside"),
    ("command_from_a_name", "S603", "confirmed", "subprocess.run(cmd)  # <-\n", "reports it again"),
    ("import", "S404", "rejected", "import subprocess  # <-\n", "import alone"),
    ("compared_address", "S104", "rejected", "if host == '0.0.0.0':  # <-\n    f()\n", "compared"),
    ("bound_address", "S104", "confirmed", "s.bind(('0.0.0.0', 80))  # <-\n", "reports it again"),
    ("no_cause", "B904", "confirmed", "try:\n    f()\nexcept ValueError:\n    raise E('x')  # <-\n", "add `from`"),
    (
        "cause_in_words",
        "B904",
        "partial",
        "try:\n    f()\nexcept ValueError as e:\n    raise E(f'x {e}')  # <-\n",
        "from e",
    ),
    (
        "traceback_kept",
        "B904",
        "rejected",
        "try:\n    f()\nexcept ValueError:\n    raise E('x').with_traceback(tb)  # <-\n",
        "with_traceback",
    ),
    ("zip_two", "B905", "confirmed", "d = dict(zip(a, b))  # <-\n", "left over"),
    ("zip_items", "B905", "rejected", "k, v = zip(*d.items())  # <-\n", "by construction"),
    ("zip_pairs", "B905", "partial", "p = list(zip(a[0::2], a[1::2]))  # <-\n", "odd"),
    ("zip_one_iterator", "B905", "partial", "p = list(zip(it, it))  # <-\n", "odd"),
    (
        "broad_kept",
        "BLE001",
        "rejected",
        "try:\n    f()\nexcept Exception as e:  # <-\n    result = e\n",
        "kept in `result`",
    ),
    ("broad_raised", "BLE001", "rejected", "try:\n    f()\nexcept Exception:  # <-\n    raise\n", "raises on"),
    ("broad_other_value", "BLE001", "confirmed", "try:\n    f()\nexcept Exception:  # <-\n    x = 1\n", "taken for"),
    ("broad_silent", "BLE001", "confirmed", "try:\n    f()\nexcept Exception:  # <-\n    pass\n", "in silence"),
    ("lambda_at_once", "B023", "rejected", "for n in x:\n    y = sorted(z, key=lambda a: a + n)  # <-\n", "at once"),
    ("lambda_handed_on", "B023", "partial", "for n in x:\n    call(lambda: n)  # <-\n", "`call`"),
    ("lambda_kept", "B023", "confirmed", "for n in x:\n    out = lambda: n  # <-\n", "last value"),
    ("default_changed", "B006", "confirmed", "def f(a=[]):  # <-\n    a.append(1)\n", "line 2"),
    ("default_stored", "B006", "confirmed", "def f(self, a={}):  # <-\n    self.a = a\n", "self.a"),
    ("default_returned", "B006", "confirmed", "def f(a=[]):  # <-\n    return a\n", "returned"),
    ("default_read", "B006", "partial", "def f(a=[]):  # <-\n    return len(a)\n", "next edit"),
    ("default_call", "B008", "confirmed", "def f(a=make(1)):  # <-\n    pass\n", "at import"),
    ("default_object", "B008", "partial", "def f(a=Decoder()):  # <-\n    pass\n", "keeps state"),
    ("loop_variable_after", "B007", "partial", "def f():\n    for n in x:  # <-\n        g()\n    return n\n", "after"),
    ("loop_variable_unused", "B007", "confirmed", "for n in x:  # <-\n    g()\n", "reports it again"),
    ("timeout_unused", "ASYNC109", "confirmed", "async def f(timeout=1):  # <-\n    await g()\n", "never used"),
    ("timeout_on", "ASYNC109", "partial", "async def f(timeout=1):  # <-\n    await g(timeout)\n", "handed on"),
    (
        "timeout_kept",
        "ASYNC109",
        "rejected",
        "async def f(timeout=1):  # <-\n    async with asyncio.timeout(timeout):\n        await g()\n",
        "itself",
    ),
    ("a_rule_without_context", "PERF401", "confirmed", "for a in b:\n    c.append(a)  # <-\n", "reports it again"),
]


@pytest.mark.parametrize(("rule", "expected", "code", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_each_stated_rule(tmp_path: Path, rule: str, expected: str, code: str, words: str) -> None:
    found, reason = verdict(tmp_path, rule, code)
    assert (found, words in reason) == (expected, True), reason


def test_every_verdict_occurs_among_the_rules() -> None:
    assert {case[2] for case in CASES} == {"confirmed", "partial", "rejected"}


@pytest.mark.parametrize("name", ["tests/helpers.py", "test_mod.py", "pkg/mod_test.py", "conftest.py"])
def test_an_assert_in_a_test_file_is_rejected(tmp_path: Path, name: str) -> None:
    found, reason = verdict(tmp_path, "S101", "assert n > 0  # <-\n", name=name)
    assert found == "rejected"
    assert "test file" in reason


def test_a_request_without_timeout_counts_in_a_test_file_too(tmp_path: Path) -> None:
    found, _ = verdict(tmp_path, "S113", "r = requests.get(url)  # <-\n", name="tests/test_x.py")
    assert found == "confirmed"


def test_what_never_runs_is_rejected_but_its_else_branch_is_not(tmp_path: Path) -> None:
    code = "if TYPE_CHECKING:\n    {}x = requests.get(u){}\nelse:\n    {}y = requests.get(u){}\n"
    inside = verdict(tmp_path, "S113", code.format("", "  # <-", "", ""))
    outside = verdict(tmp_path, "S113", code.format("", "", "", "  # <-"))
    assert (inside[0], outside[0]) == ("rejected", "confirmed")


@pytest.mark.parametrize(
    ("comment", "rule", "expected"),
    [
        ("# nosec", "S311", "rejected"),
        ("# nosec B311", "S311", "rejected"),
        ("# nosec B101", "S311", "confirmed"),
        ("# noqa", "S311", "rejected"),
        ("# noqa: S311", "S311", "rejected"),
        ("# noqa:E501,S311", "S311", "rejected"),
        ("# noqa: S101", "S311", "confirmed"),
        ("# nosec", "B905", "confirmed"),
    ],
)
def test_the_authors_own_mark(tmp_path: Path, comment: str, rule: str, expected: str) -> None:
    code = f"token = join(  {comment}\n    random.choice(abc), dict(zip(a, b)),\n)\n"
    (tmp_path / "m.py").write_text(code, encoding="utf-8")
    assert judge(Source(tmp_path, "m.py"), 2 if rule == "B905" else 1, rule).verdict == expected


def test_a_starred_name_is_looked_up_in_the_starred_module(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "names.py").write_text("A = 1\nif True:\n    B = 2\n", encoding="utf-8")
    (package / "more.py").write_text("A = 3\n", encoding="utf-8")
    code = "from .names import *\nfrom .more import *\nfrom os.path import *\nprint(B)\nprint(A)\nprint(join)\n"
    (package / "user.py").write_text(code, encoding="utf-8")
    source = Source(tmp_path, "pkg/user.py")
    by_line = {line: judge(source, line, "F405") for line in (4, 5, 6)}
    assert by_line[4].verdict == "rejected"
    assert "pkg/names.py:3" in by_line[4].reason
    assert by_line[5].verdict == "confirmed", "two modules define it"
    assert by_line[6].verdict == "partial", ELSEWHERE


def test_a_starred_name_that_nobody_defines_is_confirmed(tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text("A = 1\n", encoding="utf-8")
    (tmp_path / "user.py").write_text("from names import *\nprint(缺失)\n", encoding="utf-8")
    found = judge(Source(tmp_path, "user.py"), 2, "F405")
    assert found.verdict == "confirmed"
    assert "缺失" in found.reason


def test_a_file_that_does_not_parse_is_still_judged(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_bytes(b"def f(:\n\xff\xfe\n")
    assert judge(Source(tmp_path, "m.py"), 1, "E999").verdict == "confirmed"


def test_the_whole_scan() -> None:
    assert overall([], 0)[0] == "confirmed"
    assert overall(["confirmed", "confirmed"], 2)[0] == "confirmed"
    assert overall(["confirmed", "rejected"], 2) == ("partial", "1 confirmed, 1 rejected")
    assert overall(["rejected", "rejected"], 1)[0] == "partial", "one came up again: the scanner did its work"
    assert overall(["rejected"], 0)[0] == "rejected", "nothing came up again"
