"""Agents as people see and steer them: who there is and how they are, a message, an end.

Guarantees: an agent's status follows from its task where it has one (a conversation may lag behind a death); what a
person does is on record before it takes effect, with who did it; the text of a message is never taken for anybody's but
its sender's. Never starts, stops or assigns anything but by records.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.commands import sentence
from coordinator.person import Done, Person
from protocol.errors import AppendRefused, ConfigError, Refused, StoreFull
from protocol.ports import Clock, Mail
from protocol.record import Json, Record, Trace, digest
from protocol.stores.redis_conversations import MAILBOX_MAX, RedisConversations
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_roles import Roles
from protocol.stores.redis_wake import Wake
from protocol.tasks import FINISHED, TaskState

MESSAGE_MAX: Final = 64 * 1024
"""Characters of one message."""
TALKING_FLOWS: Final = frozenset({"meeting", "roundtable"})
"""Flows in which a person may speak up."""
STATUS_OF: Final[Mapping[str, str]] = {
    "processing": "running", "waiting": "waiting", "completed": "completed", "merged": "completed",
    "cancelled": "terminated",
}  # fmt: skip
"""An agent's status by its task's state; in any other state it is ``idle``: it has no slot and waits for nobody."""


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent of a space. ``number`` 0: it has no conversation (its role runs a skill, or it has not begun)."""

    space: str
    name: str
    number: int
    role: str
    status: str
    meta: Mapping[str, Json]
    task: str = ""
    state: TaskState | None = None
    mail: int = 0

    @property
    def display_name(self) -> str:
        """``<role name>_<number>``; without a conversation the agent's own name."""
        return f"{self.meta.get('role_name') or self.role}_{self.number}" if self.number else self.name

    def to_json(self) -> dict[str, Json]:
        return {
            "session": self.space, "agent": self.name, "agent_id": self.number or None, "role": self.role,
            "display_name": self.display_name, "status": self.status, "task": self.task,
            "attempt": self.state.attempt if self.state else 0,
            "waiting_for": self.state.waiting_for if self.state else "",
            "worker": self.state.owner if self.state and self.status == "running" else "", "mail": self.mail,
            "model_key": self.meta.get("model_key", ""), "updated_ms": self.meta.get("updated_ms", 0),
        }  # fmt: skip


def status_of(meta: Mapping[str, Json], state: TaskState | None) -> str:
    """``running``, ``waiting``, ``idle``, ``completed`` or ``terminated``."""
    saved = meta.get("status")
    if saved == "terminated" or state is None:
        return str(saved or "idle")
    return STATUS_OF.get(state.state, "idle")


class Steering:
    """A person at the agents of a fleet. ``person`` settles tasks; ``who`` goes on record."""

    def __init__(
        self, log: RedisLog, conversations: RedisConversations, roles: Roles, wake: Wake, person: Person, *, who: str,
        clock: Clock = time.time,
    ) -> None:  # fmt: skip
        self._log = log
        self._conversations = conversations
        self._roles = roles
        self._wake = wake
        self._person = person
        self._who = who
        self._clock = clock

    async def message(self, space: str, name: str, text: str) -> dict[str, Json]:
        """Put a message into an agent's mailbox; it is taken up before its next model call. Raises ConfigError for an
        agent that is not there, Refused for one that reads no messages."""
        body = text.strip()
        if not body:
            raise Refused("an empty message says nothing", reason="empty", mend="give the text, or - for stdin")
        if len(body) > MESSAGE_MAX:
            raise Refused(
                f"the message has {len(body)} characters, at most {MESSAGE_MAX}", reason="too_large", mend="shorten it"
            )
        agent = await find(self._log, self._conversations, space, name)
        front = (await self._roles.all()).get(agent.role, {})
        if front.get("executor") == "skill":
            raise Refused(f"{agent.name!r} runs a skill: it reads no messages", reason="no_mailbox")
        if agent.status == "terminated":
            raise Refused(f"{agent.name!r} is terminated: it reads no messages", reason="no_mailbox")
        if len(await self._conversations.mail(space, agent.name)) >= MAILBOX_MAX:
            raise StoreFull(
                f"the mailbox of {agent.name!r} holds {MAILBOX_MAX} messages already", op="message", retryable=False,
                mend="wait until the agent has read them",
            )  # fmt: skip
        number = await self._conversations.count_word(space)
        mail = Mail(f"msg_user_{number:03d}", self._who, body, source="user", at_s=self._clock())
        detail = {"kind": "message", "to": agent.name, "text": body, "message_id": mail.id, "by": self._who}
        entry = await self._append(
            space, self._record(space, agent, "info", f"INFO_{mail.id}", f"to {agent.name}: {body}", detail)
        )
        await self._conversations.post(space, agent.name, mail)
        return {"agent": agent.name, "id": mail.id, "entry": entry, "status": agent.status}

    async def terminate(self, space: str, name: str, why: str = "") -> dict[str, Json]:
        """End an agent for good: its open tasks are cancelled, it takes no more messages. Doing it twice changes
        nothing."""
        agent = await find(self._log, self._conversations, space, name)
        done: list[Done] = []
        for task, state in (await self._log.task_states(space)).items():
            if state.agent == agent.name and state.state not in FINISHED:
                try:
                    done.append(await self._person.cancel(space, task, why or f"the agent {agent.name} was terminated"))
                except AppendRefused:
                    pass  # it has delivered meanwhile
        detail = {"action": "terminate", "agent": agent.name, "by": self._who, "why": why or "terminated by hand"}
        mark = digest(space, agent.name)[:16]
        record = self._record(space, agent, "decision", f"DEC_terminate_{mark}", f"terminate {agent.name}", detail)
        known = await self._log.find(space, record.id)
        entry = "" if known is not None else await self._append(space, record)
        await self._conversations.mark(space, agent.name, {"status": "terminated", "pending_tool_calls": []})
        await self._wake.ring([space])
        return {
            "agent": agent.name, "outcome": "already" if known is not None else "added", "entry": entry,
            "cancelled": [one.task for one in done],
        }  # fmt: skip

    async def say(self, space: str, text: str) -> dict[str, Json]:
        """Speak up in a session. Raises Refused by name where its flow takes no words."""
        meta = await self._log.meta(space)
        if meta.get("kind") != "session":
            raise Refused(f"{space!r} is no session: no flow runs there", reason="no_session", mend="see session list")
        flow = meta.get("flow", "")
        if flow not in TALKING_FLOWS:
            raise Refused(
                f"the flow {flow!r} of {space!r} takes no words", reason="no_words",
                mend=f"`rolecall message AGENT TEXT --session {space}` reaches an agent, `answer` a question",
            )  # fmt: skip
        raise Refused(f"the flow {flow!r} is not part of this version", reason="no_words")

    def _record(self, space: str, agent: Agent, event: str, name: str, what: str, detail: Mapping[str, Json]) -> Record:
        return Record(
            id=name, who=self._who, time=int(self._clock()), event=event, what=sentence(what),  # type: ignore[arg-type]  # one of the 17
            detail=dict(detail), trace=Trace(parent_id=agent.task or None, session_id=space),
        )  # fmt: skip

    async def _append(self, space: str, record: Record) -> str:
        await self._log.open_space(space)
        outcome = (await self._log.append(space, [record]))[0]
        if outcome.outcome == "refused":
            raise AppendRefused(f"{record.what}: {outcome.message}", reason=outcome.reason)
        return outcome.entry


async def agents(log: RedisLog, conversations: RedisConversations, space: str) -> list[Agent]:
    """Every agent of a space, those with a conversation first, in the order of their numbers."""
    states = await log.task_states(space)
    held: dict[str, tuple[str, TaskState]] = {}
    for task, state in states.items():  # of several tasks the one that is not finished, else the last
        if state.agent and (state.agent not in held or held[state.agent][1].state in FINISHED):
            held[state.agent] = task, state
    numbers = await conversations.agents(space)
    out: list[Agent] = []
    for name, number in sorted(numbers.items(), key=lambda pair: pair[1]):
        meta, mail = await conversations.meta(space, name)
        task, found = held.pop(name, (str(meta.get("task", "")), None))
        role = str(meta.get("role_id") or (found.role if found else ""))
        out.append(Agent(space, name, number, role, status_of(meta, found), meta, task, found, mail))
    for name, (task, state) in sorted(held.items()):
        out.append(Agent(space, name, 0, state.role, status_of({}, state), {}, task, state))
    return out


async def find(log: RedisLog, conversations: RedisConversations, space: str, name: str) -> Agent:
    """The agent by its name, its number or its display name. Raises ConfigError where there is none, or several."""
    known = await agents(log, conversations, space)
    named = [agent for agent in known if agent.name == name]
    found = named or [agent for agent in known if name in (str(agent.number or ""), agent.display_name)]
    if len(found) == 1:
        return found[0]
    words = "several agents are called" if found else "there is no agent"
    listed = ", ".join(agent.name for agent in (found or known)[:20]) or "none yet"
    raise ConfigError(f"{words} {name!r} in {space!r}", mend=f"`rolecall agents` lists them; known: {listed}")
