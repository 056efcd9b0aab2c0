"""Fixtures of the integration tests: the command line, called in this process."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from coordinator.cli import run
from coordinator.cli.app import App
from tests.integration.cli_support import Cli, Said


@pytest.fixture
def cli(
    fleet_env: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    """Runs a command line on the test's server; `Said` is what it said."""

    def call(*argv: str, stdin: str | bytes | None = None, expect: int = 0, env: dict[str, str] | None = None) -> Said:
        if stdin is not None:
            raw = stdin.encode() if isinstance(stdin, str) else stdin
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        code = run(list(argv), App(env=fleet_env | (env or {}), cwd=tmp_path))
        said = Said(code, *capsys.readouterr())
        assert code == expect, said
        return said

    return call


@pytest.fixture
def app(fleet_env: dict[str, str], tmp_path: Path) -> App:
    """The same settings as the command line's."""
    return App(env=fleet_env, cwd=tmp_path)
