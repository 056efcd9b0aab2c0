"""The command line of the review: arguments, messages, exit code.

Guarantees: whatever goes wrong ends in one clear message with its mend and the right exit code, never in a traceback;
reports are written as a whole or not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from protocol.errors import RolecallError
from review.live import EXAMPLE, Ended, Options, Review, StuckError, environment
from review.offline import OfflineModel
from review.plan import TEAM, WORKERS, goal
from review.report import Model, Report
from review.screen import Screen
from review.target import BadTarget, Target, default_target, look

EXIT_BY_STATUS = {"delivered": 0}
INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Run the review; the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without these characters shows a mark and goes on; a log file gets each line as it comes.
        sys.stdout.reconfigure(errors="replace", line_buffering=True)
    console = Console(highlight=False)
    options = _arguments().parse_args(argv)
    screen = Screen(console, verbose=options.verbose)
    try:
        target = _target(options.target)
        out = _out(options.out)
        return asyncio.run(_review(target, out, screen, kill=not options.no_kill, env=os.environ))
    except BadTarget as error:
        screen.fault(error.message, error.mend)
        return 2
    except StuckError as error:
        screen.fault(str(error), "the processes' own words are in the logs beside the report")
        return 1
    except RolecallError as error:
        screen.fault(error.message, error.mend)
        return error.exit_code
    except OSError as error:
        screen.fault(f"{error.filename or 'a file'}: {error.strerror or error}", "name another place with --out")
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        screen.fault("interrupted", "the session is cancelled on record, the fleet has stopped")
        return INTERRUPTED


async def _review(target: Target, out: Path, screen: Screen, *, kill: bool, env: Mapping[str, str]) -> int:
    task = asyncio.current_task()
    assert task is not None, "asyncio.run runs a task"
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    fleet_env = environment(env, out)
    async with OfflineModel(fleet_env, out / "logs") as offline:
        fleet_env |= offline.variables
        screen.opening(goal(target), TEAM, WORKERS, _model_words(offline.model))
        review = Review(Options(target, out, offline.model, kill=kill), fleet_env, screen)
        ended = await review.run()
    write(ended.report, out)
    screen.ending(ended.report, elapsed_s=ended.elapsed_s)
    screen.commands(commands(ended, out, env))
    return EXIT_BY_STATUS.get(ended.report.status, 1)


def write(report: Report, out: Path) -> None:
    """``report.json`` and ``report.md`` in ``out``, each put in place in one step."""
    texts = {
        "report.json": json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n",
        "report.md": report.to_markdown(),
    }
    for name, text in texts.items():
        part = out / f".{name}.part"
        part.write_text(text, encoding="utf-8", errors="replace")
        part.replace(out / name)


def commands(ended: Ended, out: Path, env: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """What to do next: (in words, the commands)."""
    rolecall, arq = (_shown(Path(sys.executable).parent / name) for name in ("rolecall", "arq"))
    data = "" if env.get("REDIS_URL") or env.get("ROLECALL_DATA") else f"ROLECALL_DATA={_shown(out / 'data')} "
    shipped = _shown(EXAMPLE / "roles" / "code-reviewer.md")
    return [
        ("open the report", [f"less {_shown(out / 'report.md')}"]),
        (
            "follow the log from the last record on (`up` brings the store back; the second in another terminal)",
            [
                f"{data}{rolecall} up",
                f"{data}{rolecall} session log {ended.report.session} --since {ended.cursor} --follow",
            ],
        ),
        ("run it on your own code", ["make demo TARGET=path/to/your/code"]),
        (
            "start a role of your own while `up` runs: copy one, say in it what it is for, start a worker",
            [
                f"mkdir -p my-roles && sed 's/code-reviewer/my-role/' {shipped} > my-roles/my-role.md",
                f"{data}ROLECALL_ROLES=my-roles {arq} workers.roles.my_role",
            ],
        ),
    ]


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make demo", description="A fleet of real worker processes reviews a directory of Python code."
    )
    parser.add_argument("target", nargs="?", default="", help="the directory; default: the installed redis client")
    parser.add_argument("--verbose", action="store_true", help="show the log's records and the fleet's processes")
    parser.add_argument("--no-kill", action="store_true", help="kill no worker")
    parser.add_argument("--out", default="", metavar="DIR", help="where the report goes; default: runs/<time>")
    return parser


def _target(given: str) -> Target:
    return look(Path(given)) if given else default_target()


def _out(given: str) -> Path:
    """The directory for the report, made. Raises OSError."""
    out = Path(given) if given else Path("runs") / time.strftime("review-%Y%m%d-%H%M%S")
    (out / "logs").mkdir(parents=True, exist_ok=True)
    return out.resolve()


def _shown(path: Path) -> str:
    """A path as it is typed: relative where it is below the working directory."""
    try:
        return shlex.quote(str(path.relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(path))


def _model_words(model: Model) -> str:
    if model.offline:
        return "offline, shipped with rolecall: it only words what the tools found (OPENAI_BASE_URL names a real one)"
    return model.endpoint
