"""``agents``, ``agent terminate``, ``message``, ``say``: the agents of a session, and a person's part with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.app import App, pass_app, read_text
from coordinator.cli.lazy import Command, Group
from coordinator.cli.render import clock, table
from coordinator.cli.store import Opened, Store, Target, open_target, target_options
from coordinator.cli.tasks import person_options
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.steering import Steering


@click.command("agents", cls=Command, short_help="List the agents of a session and how they are.")
@target_options
@pass_app
def agents(app: App, target: Target) -> None:
    """List the agents of a session: running, waiting, idle, completed or terminated, with their task.

    Those with a conversation have a number; the others run a skill, or have not begun.
    """

    async def work() -> list[dict[str, Any]]:
        from coordinator import steering
        from protocol.stores.redis_conversations import RedisConversations

        async with open_target(app, target) as opened:
            store = fleet_of(opened)
            conversations = RedisConversations(store.client, store.keys, store.scripts)
            return [agent.to_json() for agent in await steering.agents(store.log, conversations, opened.space)]

    rows = app.run(work())
    shown = [
        (
            r["agent"], r["agent_id"], r["display_name"], r["status"], r["task"], r["waiting_for"], r["mail"],
            clock(r["updated_ms"] / 1000) if r["updated_ms"] else "",
        )
        for r in rows
    ]  # fmt: skip
    heads = ("agent", "number", "name", "status", "task", "waits for", "mail", "last saved")
    app.emit(rows, table(heads, shown) or "no agent yet")


@click.group(cls=Group, short_help="End an agent.")
def agent() -> None:
    """End an agent; recorded with who did it."""


@agent.command("terminate", short_help="Cancel its task; it takes no more messages.")
@click.argument("agent_id", metavar="ID")
@person_options
@target_options
@pass_app
def terminate(app: App, target: Target, agent_id: str, who: str, why: str) -> None:
    """End agent ID (its name, number or display name): its open task is cancelled, a running turn stops at once."""
    done = _steer(app, target, who, lambda steering, space: steering.terminate(space, agent_id, why))
    cancelled = f"; cancelled {', '.join(done['cancelled'])}" if done["cancelled"] else ""
    app.emit(done, f"terminate {done['agent']}: {done['outcome']}{cancelled}")


@click.command("message", cls=Command, short_help="Send a message to an agent.")
@click.argument("agent_id", metavar="AGENT")
@click.argument("text")
@click.option("--as", "who", default="", metavar="NAME", help="Who you are on record. Default: your login.")
@target_options
@pass_app
def message(app: App, target: Target, agent_id: str, text: str, who: str) -> None:
    """Send TEXT (- for stdin) to AGENT (its name, number or display name); it reads it before its next model call."""
    words = read_text("-", "the message") if text == "-" else text
    sent = _steer(app, target, who, lambda steering, space: steering.message(space, agent_id, words))
    app.emit(sent, f"{sent['id']} is in the mailbox of {sent['agent']}")
    if sent["status"] == "completed":
        app.note(f"{sent['agent']} has delivered: it reads the message only if it is given another task")


@click.command("say", cls=Command, short_help="Speak up in a session.")
@click.argument("session_id", metavar="SESSION")
@click.argument("text")
@click.option("--as", "who", default="", metavar="NAME", help="Who you are on record. Default: your login.")
@pass_app
def say(app: App, session_id: str, text: str, who: str) -> None:
    """Speak up in SESSION with TEXT (- for stdin), where its flow lets people speak."""
    words = read_text("-", "the words") if text == "-" else text
    said = _steer(app, Target(session_id), who, lambda steering, space: steering.say(space, words))
    app.emit(said, f"said in {session_id}")


def fleet_of(opened: Opened) -> Store:
    """The fleet's store. Raises ConfigError on a state file: nobody's conversation is in one."""
    if opened.store is None:
        raise ConfigError("a state file has no agents with conversations", mend="name a session: --session ID")
    return opened.store


def _steer(
    app: App, target: Target, who: str, do: Callable[[Steering, str], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    """Run one deed of a person at an agent."""

    async def work() -> dict[str, Any]:
        from coordinator.cli.store import person_name
        from coordinator.steering import Steering
        from protocol.stores.redis_conversations import RedisConversations

        async with open_target(app, target) as opened:
            store = fleet_of(opened)
            conversations = RedisConversations(store.client, store.keys, store.scripts)
            name = person_name(who)
            steering = Steering(store.log, conversations, store.roles, store.wake, store.person(who), who=name)
            return await do(steering, opened.space)

    return app.run(work())
