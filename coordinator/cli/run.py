"""``run``: start a session, follow it, exit by its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.app import App, dump, pass_app, read_text, write_text
from coordinator.cli.lazy import Command
from coordinator.cli.render import counts, plain, record_line
from protocol.errors import ConfigError, PlanRefused, RoleError, StoreUnreachable

if TYPE_CHECKING:
    from coordinator.cli.store import Store
    from coordinator.outcome import Outcome
    from coordinator.session import Order
    from protocol.record import Record

LATER = ("meeting", "roundtable")


@dataclass(slots=True)
class Run:
    """One run: what was asked for, and the session once it is there."""

    order: Order
    follow: bool
    verbose: bool
    detach: bool
    output: str
    who: str
    session: str = ""
    states: dict[str, str] = field(default_factory=dict)


@click.command(cls=Command, short_help="Start a session, follow it, exit by its outcome.")
@click.argument("goal", default="")
@click.option("--flow", metavar="plan|solo", help="Default: plan with --plan, solo with --role, else code chooses.")
@click.option("--plan", "plan_file", metavar="FILE", help="The plan (YAML or JSON), - for stdin.")
@click.option("--features", metavar="JSON", help="What is known of the goal, in place of a router role's answer.")
@click.option("--role", default="", help="The role that does it (flow solo).")
@click.option("--verify", default="", metavar="ROLE", help="A verifier role for the delivery (flow solo).")
@click.option("--input", "given", metavar="JSON", help="The task's input (flow solo), - for stdin.")
@click.option("--model", "models", multiple=True, metavar="ROLE=KEY", help="Another model for a role, in this run.")
@click.option("--budget-tokens", type=click.IntRange(1), metavar="N", help="The most tokens that it may use.")
@click.option("--budget-money", type=click.FloatRange(0, min_open=True), metavar="X", help="The most that it may cost.")
@click.option("--title", default="", help="A title instead of the goal's first line.")
@click.option("--follow", is_flag=True, help="Show every record as it arrives.")
@click.option("--verbose", is_flag=True, help="Show what the agents are writing as well, on stderr.")
@click.option("--detach", is_flag=True, help="Only start it; print its id.")
@click.option("-o", "--output", default="", metavar="FILE", help="Where the merged result goes (.json: as JSON).")
@click.option("--as", "who", default="", metavar="NAME", help="Who you are on record. Default: your login.")
@pass_app
def run(
    app: App,
    goal: str,
    flow: str | None,
    plan_file: str | None,
    features: str | None,
    role: str,
    verify: str,
    given: str | None,
    models: tuple[str, ...],
    budget_tokens: int | None,
    budget_money: float | None,
    title: str,
    follow: bool,
    verbose: bool,
    detach: bool,
    output: str,
    who: str,
) -> int:
    """Start a session for GOAL, follow it to its end, print the merged result.

    Without --flow, --plan and --role a router role describes the goal by its features (or --features does), and code
    decides: one task for the role `worker`, or a plan by the role `planner`.

    Exits 0 if all was delivered, 1 if it failed, is partial or was cancelled. Ctrl-C leaves it running and says how
    to follow and how to cancel it.
    """
    from coordinator.session import Order

    if flow in LATER:
        raise ConfigError(f"the flow {flow!r} is not part of this version", mend="use plan or solo")
    if detach and (follow or verbose or output):
        raise click.UsageError("--detach goes with none of --follow, --verbose, --output: nothing is waited for")
    if plan_file is not None and (role or flow == "solo"):
        raise click.UsageError("a plan names its own roles: give --plan, or --role with the flow solo")
    from coordinator.planfile import parse

    plan = parse(read_text(plan_file, "the plan"), name=plan_file) if plan_file is not None else None
    if not goal.strip() and plan is None:
        raise click.UsageError('what is the goal? rolecall run "…", or --plan FILE')
    order = Order(
        goal=goal,
        flow=flow or ("plan" if plan is not None else "solo" if role else "route"),
        plan=plan,
        role=role,
        verify=verify,
        input=_json(given, "--input"),
        models=_models(models),
        guards=budget_guards(budget_tokens, budget_money),
        policy=app.settings.lost_policy,
        title=title,
        extra=_features(features, flow or plan_file or role),
    )
    made = Run(order, follow, verbose, detach, output, who)
    try:
        return app.run(_run(app, made))
    except KeyboardInterrupt:
        if made.session:
            app.note(
                f"\n{made.session} goes on. Follow it: rolecall session log {made.session} --follow\n"
                f"cancel it: rolecall session cancel {made.session}"
            )
        raise


async def _run(app: App, made: Run) -> int:
    from protocol.kit import tracing

    traces = tracing.load(app.env, "rolecall-run")
    try:
        with traces.span("rolecall run", parent=tracing.context_of(app.env)) as span:
            return await _start(app, made, span.traceparent)
    finally:
        traces.close()


async def _start(app: App, made: Run, traceparent: str | None) -> int:
    from coordinator import session
    from coordinator.cli.store import open_store, person_name
    from protocol.stores.redis_artifacts import Artifacts

    async with open_store(app, start=True) as store:
        if not made.detach:
            await _somebody_leads(app, store)
        artifacts = Artifacts(store.client, store.keys, store.scripts)
        try:
            made.session = await session.start(
                made.order,
                log=store.log,
                artifacts=artifacts,
                bell=store.wake,
                who=person_name(made.who),
                known_roles=await _known(store, made.order),
                traceparent=traceparent,
            )
        except PlanRefused as refused:
            if refused.reason == "unknown_role":
                raise RoleError(refused.message, mend=refused.mend) from None
            raise
        if made.detach:
            if not await store.inspector.alive("leader"):
                app.note("no leader is alive: it waits until one is (rolecall up, or rolecall leader)")
            app.emit({"session": made.session}, made.session)
            return 0
        app.note(f"session {made.session}")
        await _note_idle(app, store, made.order)
        outcome = await _watch(app, store, made)
        await _finish(app, made, outcome, artifacts)
        return outcome.exit_code


async def _somebody_leads(app: App, store: Store) -> None:
    """Raises StoreUnreachable where no leader beats; a missing manager or worker is only noted."""
    if not await store.inspector.alive("leader"):
        raise StoreUnreachable(
            "no leader is alive: nothing would happen",
            op="run",
            mend="start a fleet with `rolecall up`, or `rolecall leader`; --detach leaves the session waiting",
        )
    if not await store.inspector.alive("manager"):
        app.note("no manager is alive: nothing is merged or taken over until one is (rolecall manager)")


async def _note_idle(app: App, store: Store, order: Order) -> None:
    """Say which roles nobody works for now: their tasks wait."""
    from coordinator.session import check

    plan = check(order, None)
    wanted = set(plan.roles) if plan else {role for role in (order.role, order.verify) if role}
    if order.flow == "route" and "features" not in order.extra and "router" in await store.roles.all():
        wanted.add("router")
    idle = wanted - {info.role for info in await store.workers.live()}
    if idle:
        app.note(f"no worker is alive for {', '.join(sorted(idle))}: those tasks wait until one is")


async def _known(store: Store, order: Order) -> Mapping[str, Any]:
    """The published roles. Raises RoleError for a role of the order's own that is not among them."""
    known = await store.roles.all()
    for role in filter(None, (order.role, order.verify, *order.models)):
        if role not in known:
            from difflib import get_close_matches

            near = get_close_matches(role, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise RoleError(
                f"nobody ever published the role {role!r}",
                mend=f"{hint}known: {', '.join(sorted(known)) or 'none yet: is a worker running?'}",
            )
    return known


async def _watch(app: App, store: Store, made: Run) -> Outcome:
    """Follow the session to its end. Without ``--follow`` only what changes is noted, on stderr."""
    from coordinator.cli.live import live_text
    from coordinator.follow import follow
    from coordinator.outcome import Outcome

    outcome = Outcome(made.session)
    records = follow(store.log, store.blocking, store.keys, made.session, tell=app.note)
    async with live_text(app, store, made.session, wanted=made.verbose) as text:
        async for entry, record in records:
            text.settle(record)
            outcome.take(record)
            if made.follow:
                found = record.to_json()
                app.line({"entry": entry, "record": found}, record_line(entry, found))
            else:
                _note_progress(app, made, record)
            if outcome.over:
                break
    await records.aclose()
    return outcome


def _note_progress(app: App, made: Run, record: Record) -> None:
    from protocol.tasks import target_state

    if record.is_task and record.id != made.session:
        state = target_state(record)
        before = made.states.get(record.id)
        made.states[record.id] = state
        if state in ("completed", "blocked", "lost", "failed") and state != before:
            numbers: dict[str, int] = {}
            for one in made.states.values():
                numbers[one] = numbers.get(one, 0) + 1
            app.note(f"{plain(record.id)} {state}: {plain(record.what)}  ({counts(numbers)})")
    if record.detail.get("kind") == "question" and record.event == "info":
        app.note(
            f"{record.who} asks: {plain(record.what)}\n  rolecall answer {record.id} TEXT --session {made.session}"
        )


async def _finish(app: App, made: Run, outcome: Outcome, artifacts: Any) -> None:
    """Print or write the merged result and say how it went."""
    from coordinator.outcome import merged_text

    as_json = made.output.endswith(".json") if made.output else app.json
    text = None
    if outcome.merge is not None:
        text = await merged_text(artifacts, made.session, outcome.merge, "json" if as_json else "markdown")
    if made.output and made.output != "-":
        write_text(made.output, text if text is not None else dump(outcome.to_json(), indent=True))
        app.note(f"the result is in {made.output}")
    value = outcome.to_json()
    if made.follow:
        if app.json:
            app.note(dump(value))
        elif made.output == "-" and text is not None:
            write_text("-", text)
    elif app.json:
        if text is not None and as_json:
            import orjson

            value["result"] = orjson.loads(text)
        app.emit(value)
    elif text is not None and made.output in ("", "-"):
        write_text("-", text)
    app.note(f"{made.session} {outcome.result}{f': {plain(outcome.why)}' if outcome.why else ''}")
    for row in outcome.missing[:20]:
        if isinstance(row, dict):
            app.note(f"  missing {plain(row.get('task'))}: {plain(row.get('reason'))}")


def budget_guards(tokens: int | None, money: float | None) -> dict[str, int | float]:
    """A session's guards from the budget options."""
    given: dict[str, int | float | None] = {"tokens": tokens, "money": money}
    return {name: value for name, value in given.items() if value is not None}


def _models(pairs: tuple[str, ...]) -> dict[str, str]:
    out: dict[str, str] = {}
    for pair in pairs:
        role, sign, key = pair.partition("=")
        if not (sign and role and key):
            raise ConfigError(f"--model {pair!r} is no ROLE=KEY", mend="write it like reviewer=fast")
        out[role] = key
    return out


def _features(given: str | None, way: str | None) -> dict[str, Any]:
    if given is None:
        return {}
    if way:
        raise click.UsageError("--features is for a run whose way code chooses: leave out --flow, --plan and --role")
    return {"features": _json(given, "--features")}


def _json(given: str | None, option: str) -> Any:
    if given is None:
        return None
    import orjson

    try:
        return orjson.loads(read_text("-", option) if given == "-" else given)
    except orjson.JSONDecodeError as error:
        raise ConfigError(
            f"{option} is no JSON: {error}", mend="quote it for the shell, or give - and pipe it in"
        ) from None
