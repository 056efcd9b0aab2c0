"""From the store to the documents of a conversation, once or kept up to date.

Guarantees: what is exported is what the log and the conversations say at that moment, each agent's at its last saved
point; a mirror reads only what is new, and ends when the session is over and its last words are written. Writes nothing
into the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from coordinator import steering
from coordinator.conversations import AgentDocs, SessionDocs, SessionWords, Speaker, agent_docs, session_docs
from coordinator.importing import imported_docs
from coordinator.outcome import Outcome
from protocol.envelope import Lang
from protocol.errors import StoreError
from protocol.keys import Keys
from protocol.kit.rolefiles import load_roles
from protocol.ports import Loaded
from protocol.record import Json, is_name
from protocol.stores.client import Client, guard
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_conversations import RedisConversations
from protocol.stores.redis_imports import KIND, Imports
from protocol.stores.redis_log import RedisLog
from protocol.stores.redis_roles import Roles

PAGE: Final = 1_000
NEWS_MS: Final = 2_000
"""A mirror looks again after so long also where no stream has news: some metadata has no entry."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What conversations are read from."""

    client: Client
    keys: Keys
    log: RedisLog
    conversations: RedisConversations
    artifacts: Artifacts
    roles: Roles
    imports: Imports
    lang: Lang = "en"
    roles_path: tuple[Path, ...] = ()
    tell: Callable[[str], None] = lambda text: None


@dataclass(slots=True)
class Exporter:
    """One session, read again and again: `docs` reads what is new since the last time."""

    space: str
    sources: Sources
    last: str = "0-0"
    words: SessionWords = field(init=False)
    outcome: Outcome = field(init=False)
    _read: dict[str, Loaded] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)
    _roles: dict[str, str] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    _mail: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.words = SessionWords(self.space, self.sources.lang)
        self.outcome = Outcome(self.space)

    async def docs(self) -> SessionDocs:
        """The session's documents as of now."""
        s = self.sources
        meta = await s.log.meta(self.space)
        if meta.get("kind") == KIND:
            return await imported_docs(s.imports, self.space)
        await self._fold()
        known = await steering.agents(s.log, s.conversations, self.space)
        self._names = {agent.name for agent in known}
        docs: list[AgentDocs] = []
        for agent in known:
            if not agent.number:
                continue
            mail = await s.conversations.mail(self.space, agent.name) if agent.mail else ()
            self._mail[agent.name] = mail[-1].entry if mail else self._mail.get(agent.name, "0-0")
            loaded = await self._load(agent)
            docs.append(
                agent_docs(
                    loaded, mail, number=agent.number, name=agent.display_name, role=agent.role, status=agent.status
                )
            )
        speakers = {a.name: Speaker(a.display_name, a.number or None) for a in known}
        updated = [ms for a in known if isinstance(ms := a.meta.get("updated_ms"), int)]
        roles = await self._role_files({a.role for a in known if a.role})
        return session_docs(
            self.words, meta, docs, speakers=speakers, texts=await self._artifacts(),
            updated_ms=max(updated, default=0), roles=roles,
        )  # fmt: skip

    async def news(self, blocking: Client, block_ms: int = NEWS_MS) -> bool:
        """Wait until something of the session may have changed; False where nothing did within ``block_ms``."""
        keys = self.sources.keys.space(self.space)
        streams: dict[Any, Any] = {keys.log: self.last}
        for name in self._names:
            loaded = self._read.get(name)
            streams[keys.conv(name)] = f"{loaded.entries[-1].n}-0" if loaded and loaded.entries else "0-0"
            streams[keys.mailbox(name)] = self._mail.get(name, "0-0")
        with guard("follow"):
            return bool(await blocking.xread(streams, count=1, block=block_ms))

    async def _fold(self) -> None:
        while page := await self.sources.log.tail(self.space, self.last, PAGE):
            for entry, record in page:
                self.words.fold(entry, record)
                self.outcome.take(record)
            self.last = page[-1][0]

    async def _load(self, agent: steering.Agent) -> Loaded:
        """The conversation, of which only the new entries are read."""
        before = self._read.get(agent.name)
        after = before.entries[-1].n if before and before.entries else 0
        new = await self.sources.conversations.read(self.space, agent.name, after=after)
        entries = (*before.entries, *new.entries) if before else new.entries
        self._read[agent.name] = Loaded(entries, new.meta, new.mail)
        return self._read[agent.name]

    async def _artifacts(self) -> Mapping[str, str]:
        for sha256 in sorted(self.words.wants - self._texts.keys()):
            try:
                self._texts[sha256] = (await self.sources.artifacts.get(self.space, sha256)).decode("utf-8", "replace")
            except StoreError as error:
                if error.retryable:
                    raise
                self.sources.tell(f"the artifact {sha256} is gone: its message says only what the record says")
                self.words.wants.discard(sha256)
        return self._texts

    async def _role_files(self, wanted: set[str]) -> Mapping[str, str]:
        """The roles' files as they are here; of a role that is not here what its workers published."""
        missing = wanted - self._roles.keys()
        if missing:
            here = load_roles(self.sources.roles_path).roles
            published = await self.sources.roles.all() if missing - here.keys() else {}
            for role in missing:
                if role in here:
                    self._roles[role] = here[role].path.read_text(encoding="utf-8")
                elif role in published:
                    self.sources.tell(f"the file of role {role!r} is not on this machine: only its head is exported")
                    self._roles[role] = head_of(published[role])
        return {f"{role}.md": self._roles[role] for role in sorted(wanted & self._roles.keys()) if is_name(role)}


async def mirror(
    exporter: Exporter, write: Callable[[SessionDocs], list[str]], blocking: Client
) -> AsyncIterator[list[str]]:
    """Keep a directory up to date until the session is over; each time the paths that changed."""
    quiet = False
    while True:
        changed = await asyncio.to_thread(write, await exporter.docs())
        if changed:
            yield changed
        if exporter.outcome.over and quiet and not changed:  # a stopped turn may still say its last words
            return
        quiet = not await exporter.news(blocking)


def head_of(front: Mapping[str, Json]) -> str:
    """A role file's front matter from what its workers published; its prompt is not among it."""
    import yaml

    kept = {key: value for key, value in front.items() if key != "digest" and value not in (None, "", [], {})}
    return f"---\n{yaml.safe_dump(kept, allow_unicode=True, sort_keys=False)}---\n"
