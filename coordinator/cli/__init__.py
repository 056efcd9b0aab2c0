"""The command line: thin, one file a group of commands.

Guarantees: results on stdout, everything else on stderr; an error is one or two lines that name the thing and the
mend, and an exit code: 0 done, 1 refused or failed for a reason in the data, 2 wrong usage or configuration, 3 the
store or an endpoint can't be reached, 130 interrupted. Never a traceback without ``--debug``; never imports what the
chosen command does not need, so that ``rolecall --help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from coordinator.cli.app import App
from coordinator.cli.lazy import LazyGroup
from protocol.errors import RolecallError

INTERRUPTED = 130


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            click.echo(f"rolecall {version('rolecall')}")
        except PackageNotFoundError:
            click.echo("rolecall, from its source tree")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120, "auto_envvar_prefix": None},
    invoke_without_command=True,
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
@click.pass_context
def rolecall(ctx: click.Context) -> None:
    """A fleet of language-model workers, led by code over Redis Streams."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(argv: Sequence[str] | None = None, app: App | None = None) -> int:
    """Run one command line and return its exit code. Raises nothing."""
    app = app or App.of_process()
    try:
        # Not `rolecall.main`: it decides about interrupts and closed pipes by itself.
        with rolecall.make_context("rolecall", list(sys.argv[1:] if argv is None else argv), obj=app) as ctx:
            code = rolecall.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.Exit as left:
        return left.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does: it got what it wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except click.UsageError as error:
        return _usage(error, app)
    except click.ClickException as error:
        return _say(error.format_message(), "", 2, app)
    except RolecallError as error:
        return _say(error.message, error.mend, error.exit_code, app)
    except Exception as error:  # noqa: BLE001 - the top of the process: a fault of our own is still one line
        return _say(f"internal fault: {error!r}", "run it again with --debug, report what it says", 1, app)
    return code if isinstance(code, int) else 0


def _usage(error: click.UsageError, app: App) -> int:
    path = error.ctx.command_path if error.ctx else "rolecall"
    return _say(error.format_message().rstrip("."), f"{path} --help shows how it is used", 2, app)


def _say(message: str, mend: str, code: int, app: App) -> int:
    if app.debug:
        import traceback

        traceback.print_exc()
    lines = [f"rolecall: {' '.join(message.split())}"] + ([f"  {' '.join(mend.split())}"] if mend else [])
    click.echo("\n".join(lines), err=True)
    return code


def main() -> NoReturn:
    """The entry point of ``rolecall`` and of ``python -m coordinator.cli``."""
    sys.exit(run())
