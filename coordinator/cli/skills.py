"""``skills …``: handed on to the workers' side, which knows skills; the two rooms never import each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from coordinator.cli.app import App, pass_app
from coordinator.cli.lazy import Command


@click.command(
    cls=Command,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    short_help="List, check, make or run skills.",
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@pass_app
def skills(app: App, args: tuple[str, ...]) -> int:
    """List skills; ``new KEY``, ``check DIR``, ``run KEY --input JSON``."""
    root = Path(__file__).resolve().parents[2]
    env = dict(app.env)
    if (root / "pyproject.toml").exists():
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), env.get("PYTHONPATH"))))
    flags = [*(["--json"] if app.json else []), *(["--debug"] if app.debug else [])]
    done = subprocess.run([sys.executable, "-m", "workers.skills", *args, *flags], env=env, check=False)
    return 130 if done.returncode == -2 else done.returncode if done.returncode >= 0 else 1
