"""The docs say what is so: made parts are current, everything is listed, links lead somewhere, commands exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from coordinator.cli.lazy import COMMANDS
from protocol.kit.crash import POINTS
from protocol.kit.metrics import TABLE as METRICS
from protocol.kit.settings import FILE_VARIABLE
from protocol.kit.settings_table import TABLE as SETTINGS
from protocol.record import EVENTS
from protocol.tasks import SAME_ATTEMPT
from workers.skills.runner import ROOT_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[(?:[^\]]*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
PATH = re.compile(r"`((?:protocol|workers|coordinator|deploy|docs|tests|examples|benchmarks|\.ci)/[\w./-]*)`")
MADE_BY_PEOPLE = {"deploy/.env"}
OTHER_VARIABLES = {FILE_VARIABLE, ROOT_VARIABLE, "ROLECALL_TEST_NO_SKIPS", "ROLECALL_START_TOKEN"}


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generator", ROOT / ".ci" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def slug(heading: str) -> str:
    """The anchor of a heading, as it is made where the pages are shown."""
    words = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    return {slug(found[1]) for found in re.finditer(r"^#+ (.+)$", text, re.MULTILINE)}


def test_every_part_that_is_made_from_code_is_current():
    old = [str(path.relative_to(ROOT)) for path in generator().outdated()]
    assert old == [], "run: make docs"


def test_the_generator_writes_between_the_marks_and_nowhere_else():
    made = generator()
    before = "前\n<!-- made:reasons -->\nold\n<!-- /made:reasons -->\n后\n"
    after = made.renewed(before, "x.md")
    assert after.startswith("前\n<!-- made:reasons -->\n`superseded_attempt` ")
    assert after.endswith("<!-- /made:reasons -->\n后\n")
    assert "old" not in after
    assert made.renewed(after, "x.md") == after


@pytest.mark.parametrize(
    ("text", "words"),
    [("<!-- made:nothing -->\n<!-- /made:nothing -->\n", "nobody makes"), ("<!-- made:events -->\n", "not closed")],
)
def test_a_part_that_can_not_be_made_is_named_with_its_page(text, words):
    with pytest.raises(ValueError, match=rf"页\.md: .*{words}"):
        generator().renewed(text, "页.md")


def test_the_key_table_holds_every_key_of_the_contract():
    text = page("docs/architecture.md")
    for part in ("log", "tasks", "outbox", "conv:<agent>", "art:<sha256>", "ix:<kind>:<value>"):
        assert f"`rc:{{S}}:{part}`" in text
    for key in ("rc:wake", "rc:workers", "rc:role:R", "rc:{rc:role:R}:queued", "rc:spaces"):
        assert f"`{key}`" in text


def test_everything_has_its_line():
    settings, metrics, events = page("docs/settings.md"), page("docs/metrics.md"), page("docs/events.md")
    commands, architecture = page("docs/command-line.md"), page("docs/architecture.md")
    assert [row.name for row in SETTINGS if f"| `{row.name}` |" not in settings] == []
    assert [row.name for row in METRICS if f"| `{row.name}` |" not in metrics] == []
    assert [event for event in EVENTS if f"| `{event}` |" not in events] == []
    assert [state for state in SAME_ATTEMPT if f"\n| {state} |" not in events] == []
    assert [name for name in COMMANDS if f"### `rolecall {name}`\n" not in commands] == []
    assert [name for name in POINTS if f"| `{name}` |" not in architecture] == []


def test_every_setting_is_read_by_somebody():
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for package in ("protocol", "workers", "coordinator")
        for path in (ROOT / package).rglob("*.py")
        if path.name not in ("settings.py", "settings_table.py")
    )
    through_models = {"openai_base_url", "openai_api_key", "openai_model"}
    unread = [row.name for row in SETTINGS if row.attr not in through_models and f"settings.{row.attr}" not in code]
    assert unread == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    broken = []
    for target in LINK.findall(text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_variables_that_are_named_exist(path):
    text = path.read_text(encoding="utf-8")
    assert [name for name in PATH.findall(text) if not (ROOT / name).exists() and name not in MADE_BY_PEOPLE] == []
    known = {row.name for row in SETTINGS} | OTHER_VARIABLES
    assert sorted(set(re.findall(r"\bROLECALL_[A-Z_]+\b", text)) - known) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_are_shown_exist(path):
    text = path.read_text(encoding="utf-8")
    shown = "\n".join([*FENCE.findall(text), *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))])
    commands = set(re.findall(r"(?:^|[\s/])rolecall ([a-z][a-z-]+)\b", shown))
    assert sorted(commands - set(COMMANDS)) == []
    targets = set(re.findall(r"^([a-z][a-z-]*):.*## ", page("Makefile"), re.MULTILINE))
    assert sorted(set(re.findall(r"(?:^|\s)make ([a-z][a-z-]+)\b", shown)) - targets) == []


def test_the_subcommands_of_skills_are_those_of_the_page():
    said = subprocess.run(
        [sys.executable, "-m", "workers.skills", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    named = set(re.findall(r"`rolecall skills ([a-z]+)", page("docs/command-line.md")))
    assert named == {"list", "new", "check", "run"}
    assert all(re.search(rf"^    {name} ", said, re.MULTILINE) for name in named)


def test_the_readme_has_what_a_stranger_needs():
    text = page("README.md")
    assert text.count("<!-- demo:begin -->") == text.count("<!-- demo:end -->") == 1
    assert text.index("<!-- demo:begin -->") < text.index("<!-- demo:end -->")
    for needed in ("make demo", "make test", "OPENAI_BASE_URL", "OPENAI_MODEL", "OPENAI_API_KEY", "[[models]]",
                   "ROLECALL_ROLES", "REDIS_URL", "arq workers.roles.reviewer", "docs/fleet.svg"):  # fmt: skip
        assert needed in text, needed
    two_hosts = FENCE.findall(text[text.index("## Two hosts") :])[0]
    assert len(two_hosts.strip().splitlines()) == 5


def test_the_roles_that_a_page_shows_load(tmp_path):
    from protocol.kit.rolefiles import load_roles

    found = re.findall(
        r"(---\nid: (\w+)\n.*?\n---\n.*?)(?:EOF|```)", page("README.md") + page("docs/quickstart.md"), re.DOTALL
    )
    assert len(found) == 2
    for number, (text, name) in enumerate(found):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
        loaded = load_roles([folder], shipped=Path())
        assert list(loaded.roles) == [name], loaded.problems


def test_the_plan_that_the_quickstart_shows_is_a_plan():
    from coordinator import planfile

    text = re.findall(r"```yaml\n(.*?)```", page("docs/quickstart.md"), re.DOTALL)[0]
    plan = planfile.read(text)
    assert [task.id for task in plan.tasks] == ["write", "write.verify", "french"]


def test_the_settings_file_that_a_page_shows_loads(tmp_path):
    from protocol.kit.settings import Settings

    for name, keys in (("docs/settings.md", ["fast"]), ("docs/howto/models.md", ["fast", "deep"])):
        text = re.findall(r"```toml\n(.*?)```", page(name), re.DOTALL)[0]
        (tmp_path / "rolecall.toml").write_text(text, encoding="utf-8")
        assert [model.key for model in Settings.load({}, tmp_path).models] == keys
