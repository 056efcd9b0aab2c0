"""``check-status``, ``generate-summary``, ``merge-outputs``: what a space amounts to."""

from __future__ import annotations

from typing import Any

import click

from coordinator.cli.app import App, dump, pass_app, read_input, write_text
from coordinator.cli.lazy import Command
from coordinator.cli.render import counts, plain
from coordinator.cli.store import Target, open_target, target_options


@click.command("check-status", cls=Command, short_help="Show the phase, agents, tasks by state, what waits.")
@target_options
@pass_app
def check_status(app: App, target: Target) -> None:
    """Show a space's phase, its agents, its tasks by state, and what waits for a person.

    Phases: empty planning running waiting ready_to_merge merged failed cancelled.
    """
    from coordinator.cli.sessions import session_text

    async def work() -> dict[str, Any]:
        async with open_target(app, target) as opened:
            return await opened.described()

    found = app.run(work())
    app.emit(found | {"space": found["session"]}, f"{session_text(found)}\n\n{counts(found['tasks'])}".rstrip())


@click.command("generate-summary", cls=Command, short_help="Count events, tasks, verdicts; what is open.")
@click.option("-o", "--output", default="", metavar="FILE", help="Where the summary goes, as JSON. Default: stdout.")
@target_options
@pass_app
def generate_summary(app: App, target: Target, output: str) -> None:
    """Sum up a space: counts by event and agent, open, blocked and lost tasks, verdicts, progress."""
    from coordinator.merging import read_all
    from coordinator.summary import summarize

    async def work() -> dict[str, Any]:
        async with open_target(app, target) as opened:
            entries = await read_all(opened.log, opened.space)
            return {"space": opened.space, **summarize(record for _, record in entries)}

    found = app.run(work())
    if output and output != "-":
        write_text(output, dump(found, indent=True))
        app.note(f"the summary is in {output}")
        return
    app.emit(found)


@click.command("merge-outputs", cls=Command, short_help="Merge what was delivered, or say what stands in the way.")
@click.option("-o", "--output", default="", metavar="FILE", help="Where the merged result goes (.json: as JSON).")
@click.option("--dry-run", is_flag=True, help="Show it, write nothing into the space.")
@click.option("--force", is_flag=True, help="Merge what is there; the merge is marked partial.")
@click.option("--deliveries", metavar="FILE", help="Merge deliveries and verdicts from a JSON file, without a store.")
@target_options
@pass_app
def merge_outputs(app: App, target: Target, output: str, dry_run: bool, force: bool, deliveries: str | None) -> int:
    """Merge a space's results by the rules: verdicts first, conflicts decided and kept on record.

    Refuses, listing what stands in the way, while tasks are open, blocked, lost or failed. Merging again without news
    changes nothing. With --deliveries only the pure merge runs, and prints what is kept and why.
    """
    from coordinator.handmerge import ByHand, merge_by_hand
    from protocol.errors import MergeRefused

    if deliveries is not None:
        if target.space or target.state:
            raise click.UsageError("--deliveries needs no --space, --session or --state")
        return _merge_file(app, deliveries, output)

    async def work() -> ByHand:
        async with open_target(app, target) as opened:
            return await merge_by_hand(
                opened.log, opened.artifacts, opened.roles, opened.space, force=force, dry_run=dry_run
            )

    try:
        done = app.run(work())
    except MergeRefused as refused:
        if app.json:
            obstacles = [{"task": task, "reason": reason} for task, reason in refused.obstacles]
            app.emit({"merged": False, "obstacles": obstacles})
        app.note(f"rolecall: {refused.message}")
        for task, reason in refused.obstacles[:50]:
            app.note(f"  {plain(task)}: {plain(reason)}")
        return refused.exit_code
    merged = done.merged
    if output and output != "-":
        as_json = output.endswith(".json")
        write_text(output, dump(merged.artifact, indent=True) if as_json else merged.markdown)
        app.note(f"the result is in {output}")
    value = {"merged": True, "written": done.written, "id": merged.merge_id, **merged.detail}
    app.emit(value, merged.markdown if output in ("", "-") else "")
    word = "would be merged" if dry_run else "merged" if done.written else "merged before, nothing new"
    app.note(f"{merged.merge_id} {word}: {merged.detail.get('status', '')}")
    return 0


def _merge_file(app: App, source: str, output: str) -> int:
    """The pure merge of a file's deliveries and verdicts."""
    from coordinator.deliveriesfile import from_deliveries_file
    from coordinator.merge import merge
    from protocol.gates import repair

    value, repairs = repair(read_input(source, "the deliveries"))
    for one in repairs:
        app.note(f"repaired: {one}")
    merged = merge(from_deliveries_file(value))
    if output and output != "-":
        write_text(output, dump(merged.artifact, indent=True) if output.endswith(".json") else merged.markdown)
        app.note(f"the result is in {output}")
    app.emit(merged.plain())
    return 0
