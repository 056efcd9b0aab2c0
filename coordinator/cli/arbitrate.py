"""``arbitrate``: what stands against what, and which of it counts."""

from __future__ import annotations

import click

from coordinator.cli.app import App, pass_app
from coordinator.cli.lazy import Command
from coordinator.cli.render import plain
from coordinator.cli.store import Target, open_target, person_name, target_options


@click.command(cls=Command, short_help="Resolve conflicting results by the rules.")
@click.option("--dry-run", is_flag=True, help="Print the decisions, record none.")
@click.option("--as", "who", default="", metavar="NAME", help="Who you are on record. Default: your login.")
@target_options
@pass_app
def arbitrate(app: App, target: Target, dry_run: bool, who: str) -> None:
    """Resolve a space's conflicting results by the rules: print each decision and why.

    Each conflict becomes one `decision` record with both sides; doing it again adds nothing. The same rules decide in
    the merge, whether this was run or not.
    """
    from coordinator.arbitration import Arbitrated, arbitrate_by_hand

    async def work() -> Arbitrated:
        async with open_target(app, target) as opened:
            return await arbitrate_by_hand(
                opened.log, opened.artifacts, opened.roles, opened.space, who=person_name(who), dry_run=dry_run
            )

    done = app.run(work())
    lines = [
        plain(f"{row['kind']}: {', '.join(row['tasks'])} -> {row['kept'] or 'none'}: {row['why']}")
        for row in done.decisions
    ]
    app.emit(done.to_json(), "\n".join(lines) or "nothing to decide")
    new = sum(row["outcome"] == "added" for row in done.recorded)
    if done.recorded:
        app.note(f"{new} of {len(done.recorded)} conflicts newly on record")
