"""From the documents of a conversation into the store, and out again as they were.

Guarantees: all of a conversation is there or nothing that counts; one that lives here, or that was imported before and
says something else, is never overwritten without a word; what goes in comes out equal, unknown keys and order included.
An imported conversation is read and exported; no flow leads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from coordinator.conversations import AgentDocs, Doc, SessionDocs
from protocol.errors import StoreFull
from protocol.record import Json
from protocol.stores.redis_imports import KIND, OWN, UNDER_WAY, Imports
from protocol.stores.redis_log import RedisLog

_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one conversation: ``imported``, ``already`` there, or ``refused`` (and why)."""

    session: str
    outcome: Literal["imported", "already", "refused"]
    message: str = ""

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {"session": self.session, "outcome": self.outcome}
        return out | ({"message": self.message} if self.message else {})


async def bring_in(
    docs: SessionDocs, imports: Imports, log: RedisLog, live: Callable[[str], Awaitable[SessionDocs]], *,
    force: bool = False,
) -> Imported:  # fmt: skip
    """Put a conversation that was read from files into the store. ``live`` gives the documents of one that lives here;
    ``force``: in place of one that was imported."""
    space = docs.id
    title = str(docs.metadata.get("title") or space)
    meta = {"title": title} | ({"status": "archived"} if docs.metadata.get("status") == "archived" else {})
    if not await imports.begin(space, meta):
        kind = (await log.meta(space)).get("kind", "")
        if kind not in (KIND, UNDER_WAY):
            same = _content(await live(space)) == _content(docs)
            words = "it lives here, and says something else; what lives here is not overwritten"
            return Imported(space, "already") if same else Imported(space, "refused", words)
        if kind == KIND and _content(await imported_docs(imports, space)) == _content(docs):
            return Imported(space, "already")
        if not force:
            words = "another one of this name was imported" if kind == KIND else "its import runs, or was cut off"
            return Imported(space, "refused", f"{words}; --force puts this one in its place")
        await imports.wipe(space)
    try:
        await _put(docs, imports)
    except StoreFull as error:
        return Imported(space, "refused", error.message)
    counter = (docs.store or {}).get("agent_id_counter")
    numbers = [agent.number for agent in docs.agents]
    await imports.done(space, meta, max([counter if isinstance(counter, int) and counter < 2**53 else 0, *numbers]))
    return Imported(space, "imported")


async def imported_docs(imports: Imports, space: str) -> SessionDocs:
    """The documents of an imported conversation, as they were."""
    kept = await imports.docs(space)
    agents: list[AgentDocs] = []
    for number in sorted(int(path.split("/")[1]) for path in kept if path.endswith("/metadata.json")):
        metadata = json.loads(kept[f"agent/{number}/metadata.json"])
        head = json.loads(kept[f"agent/{number}/messages.json"])
        agents.append(AgentDocs(number, metadata, await _whole(imports, space, _name(metadata, number), head)))
    messages = await _whole(imports, space, OWN, json.loads(kept["messages.json"]))
    roles = {path.removeprefix("role/"): text for path, text in kept.items() if path.startswith("role/")}
    index, store = json.loads(kept["index.json"]), json.loads(kept["state.json"])
    return SessionDocs(space, json.loads(kept["metadata.json"]), messages, tuple(agents), roles, index, store)


async def _put(docs: SessionDocs, imports: Imports) -> None:
    space = docs.id
    kept: dict[str, Json] = {
        "metadata.json": docs.metadata, "messages.json": _without_messages(docs.messages), "index.json": docs.index,
        "state.json": docs.store or {},
    }  # fmt: skip
    await imports.put(space, OWN, 0, docs.messages["messages"], {})
    for agent in docs.agents:
        kept[f"agent/{agent.number}/metadata.json"] = agent.metadata
        kept[f"agent/{agent.number}/messages.json"] = _without_messages(agent.messages)
        role = str(agent.metadata.get("role_id") or "agent")
        shown = str(agent.metadata.get("display_name") or "")
        known = ("status", "model_key", "task_summary")
        meta: dict[str, Json] = {key: agent.metadata[key] for key in known if key in agent.metadata}
        meta |= {"role_id": role, "role_name": shown.removesuffix(f"_{agent.number}") or role}
        await imports.put(space, _name(agent.metadata, agent.number), agent.number, agent.messages["messages"], meta)
    texts = {path: json.dumps(value, ensure_ascii=False) for path, value in kept.items()}
    await imports.keep(space, texts | {f"role/{name}": text for name, text in docs.roles.items()})


async def _whole(imports: Imports, space: str, agent: str, head: Doc) -> Doc:
    loaded = await imports.read(space, agent)
    return head | {"messages": [entry.body["message"] for entry in loaded.entries]}


def _without_messages(doc: Doc) -> Doc:
    """The document with its messages left out, their place among the keys kept."""
    return doc | {"messages": []}


def _name(metadata: Mapping[str, Json], number: int) -> str:
    """The name in this store of an imported agent: its role and its number."""
    role = _NOT_A_NAME.sub("_", str(metadata.get("role_id") or "")).strip("_")[:40]
    return f"{role or 'agent'}_{number}"


def _content(docs: SessionDocs) -> Sequence[Json]:
    return [docs.metadata, docs.messages, [(a.number, a.metadata, a.messages) for a in docs.agents]]
