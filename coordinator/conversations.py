"""Conversations as documents: what ``metadata.json`` and ``messages.json`` of a session and of its agents say.

A session's own conversation is kept nowhere: it is a projection of the log (`SessionWords`), so it is saved at the very
moment at which something happened, and can't disagree with it. An agent's is what its journal saved.

Guarantees: pure; the same log and the same conversations give the same documents, to the letter, whoever makes them and
however often. Never invents a message, never reads a clock.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from protocol.envelope import Lang, envelope, fenced
from protocol.ports import Loaded, Mail
from protocol.record import Json, Record
from protocol.tasks import is_about_agent

Doc = dict[str, Json]
TOKENS: Final = ("prompt_tokens", "completion_tokens", "total_tokens", "calls")
VERDICT: Final = ("verdict", "verifies", "reasons", "findings", "result")


@dataclass(frozen=True, slots=True)
class AgentDocs:
    """One agent's two documents; ``number`` names its folder."""

    number: int
    metadata: Doc
    messages: Doc


@dataclass(frozen=True, slots=True)
class SessionDocs:
    """One session's documents. ``roles``: file name -> text; ``store`` is the ``state.json`` that it was imported with,
    ``index`` its entry in ``index.json`` (imported: as it was there)."""

    id: str
    metadata: Doc
    messages: Doc
    agents: tuple[AgentDocs, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    index: Doc = field(default_factory=dict)
    store: Doc | None = None

    @property
    def imported(self) -> bool:
        return self.store is not None


@dataclass(frozen=True, slots=True)
class Speaker:
    """An agent as its messages name it; ``number`` None where it has no conversation."""

    name: str
    number: int | None = None


def local(ms: int) -> str:
    """Server milliseconds as ISO 8601 seconds in local time, without a zone."""
    return datetime.fromtimestamp(ms // 1000, tz=UTC).astimezone().strftime("%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True, slots=True)
class _Draft:
    """A message before its speaker's display name is known. ``kind``: that of its envelope; none where it is empty.
    ``sha256``: the artifact whose text it is."""

    role: str
    id: str
    text: str
    metadata: Mapping[str, Json]
    agent: str = ""
    kind: str = ""
    language: str = "text"
    sha256: str = ""


@dataclass(slots=True)
class SessionWords:
    """A session's own conversation, folded from its log in order; may be folded on as the log grows."""

    space: str
    lang: Lang = "en"
    first_ms: int = 0
    last_ms: int = 0
    goal: str = ""
    root: Mapping[str, Json] = field(default_factory=dict)
    tokens: Counter[str] = field(default_factory=Counter)
    wants: set[str] = field(default_factory=set)
    """Artifacts (SHA-256) whose text is a message's content."""
    _drafts: list[_Draft] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)
    _roles: dict[str, str] = field(default_factory=dict)

    def fold(self, entry: str, record: Record) -> None:
        """Take one record in."""
        ms = int(entry.partition("-")[0])
        self.first_ms = self.first_ms or ms
        detail = record.detail
        if isinstance(detail.get("role"), str) and record.is_task:
            self._roles[record.id] = detail["role"]
        usage = detail.get("usage")
        if isinstance(usage, dict):
            self.tokens.update({key: usage[key] for key in TOKENS if isinstance(usage.get(key), int)})
        draft = self._draft(record)
        if draft is not None:
            self._drafts.append(draft)
            self.last_ms = ms
            if draft.sha256:
                self.wants.add(draft.sha256)

    def messages(self, speakers: Mapping[str, Speaker], texts: Mapping[str, str]) -> list[Doc]:
        """The messages; ``speakers`` by agent name, ``texts`` of artifacts by SHA-256."""
        return [self._message(draft, speakers, texts) for draft in self._drafts]

    def _message(self, draft: _Draft, speakers: Mapping[str, Speaker], texts: Mapping[str, str]) -> Doc:
        metadata, text = dict(draft.metadata), texts.get(draft.sha256, draft.text)
        if draft.kind:
            speaker = speakers.get(draft.agent) or Speaker(draft.agent)
            text = envelope(self.lang, speaker.name, draft.kind, draft.id, fenced(text, draft.language))
            metadata["agent_id"] = speaker.number
        return {"role": draft.role, "content": text, "message_id": draft.id, "metadata": metadata}

    def _draft(self, record: Record) -> _Draft | None:
        detail = record.detail
        match record.event:
            case "task_started" if record.id == self.space:
                self.root, self.goal = detail, str(detail.get("goal") or record.what)
                return self._person(self.goal, "msg_user_001")
            case "task_assigned":
                prompt = detail.get("prompt")
                words = f"{record.what}\n\n{prompt}" if isinstance(prompt, str) and prompt else record.what
                return self._leader(words, task=record.id, to=detail.get("agent") or detail.get("role"))
            case "task_completed":
                return self._report(record)
            case "task_merged":
                artifact = detail.get("markdown")
                sha256 = str(artifact.get("sha256")) if isinstance(artifact, dict) else ""
                return self._leader(record.what, chat=True, sha256=sha256, merge=record.id)
            case "task_blocked" | "task_failed":
                return self._leader(record.what, chat=record.event == "task_blocked", task=record.id)
            case "task_agent_lost":
                return self._leader(record.what, task="" if is_about_agent(record) else record.id)
            case "decision":
                return self._decision(record)
            case "info" if detail.get("kind") == "question":
                return self._question(record)
            case "info" if detail.get("kind") == "message":
                text, to = str(detail.get("text") or record.what), detail.get("to")
                if isinstance(detail.get("message_id"), str):
                    return self._person(text, detail["message_id"], to=to)
                return self._leader(text, chat=True, to=to)
        return None

    def _person(self, text: str, name: str = "", **more: Json) -> _Draft:
        return _Draft("user", name or self._next("msg_person"), text, _metadata("user", chat=True, work=True, **more))

    def _leader(self, text: str, *, chat: bool = False, sha256: str = "", **more: Json) -> _Draft:
        metadata = _metadata("system", chat=chat, work=False, **more)
        return _Draft("assistant", self._next("msg_leader"), text, metadata, sha256=sha256)

    def _report(self, record: Record) -> _Draft:
        detail = record.detail
        value = {k: detail[k] for k in VERDICT if k in detail} if "verdict" in detail else detail.get("result")
        if value is None and isinstance(detail.get("artifact"), dict):
            value = {"artifact": detail["artifact"]}
        text, language = (value, "text") if isinstance(value, str) else (_pretty(value), "json")
        name = self._next(f"out_{self._role(record.id, record.who)}")
        metadata = _metadata("sub_agent", chat=False, work=False, task=record.id)
        return _Draft("user", name, text, metadata, record.who, "completion report", language)

    def _question(self, record: Record) -> _Draft:
        text = str(record.detail.get("text") or record.what)
        agent = record.detail.get("agent")
        if not isinstance(agent, str):
            return self._leader(text, chat=True, question=record.id)
        name = self._next(f"ask_{self._role(str(record.detail.get('task', '')), agent)}")
        metadata = _metadata("sub_agent", chat=True, work=False, question=record.id)
        return _Draft("user", name, text, metadata, agent, "message")

    def _decision(self, record: Record) -> _Draft:
        detail = record.detail
        if isinstance(detail.get("by"), str):  # a person; a leader's or manager's `by` is an object
            if detail.get("action") == "answer":
                return self._person(str(detail.get("answer", "")), answers=detail.get("question"))
            why = detail.get("why")
            return self._person(f"{record.what}: {why}" if isinstance(why, str) and why else record.what)
        return self._leader(record.what, chat=detail.get("action") == "finish")

    def _role(self, task: str, agent: str) -> str:
        return self._roles.get(task) or agent.rpartition("_")[0] or agent

    def _next(self, prefix: str) -> str:
        self._counts[prefix] += 1
        return f"{prefix}_{self._counts[prefix]:03d}"


def agent_docs(loaded: Loaded, mail: Sequence[Mail], *, number: int, name: str, role: str, status: str) -> AgentDocs:
    """The documents of one agent. ``name``: its display name; ``status``: as its task says it is."""
    meta = loaded.meta
    common: Doc = {"agent_id": number, "role_id": str(meta.get("role_id") or role), "display_name": name}
    times: Doc = {"created_at": local(_ms(meta, "created_ms")), "updated_at": local(_ms(meta, "updated_ms"))}
    waiting = status in ("waiting", "running")
    metadata = common | {"status": status} | times | {
        "task_summary": str(meta.get("task_summary", "")), "model_key": str(meta.get("model_key", "")),
        "thinking_mode": str(meta.get("thinking_mode") or "fast"), "pending_messages": [_pending(m) for m in mail],
        "pending_tool_calls": meta.get("pending_tool_calls", []) if waiting else [],
    }  # fmt: skip
    return AgentDocs(number, metadata, common | times | {"messages": agent_messages(loaded)})


def agent_messages(loaded: Loaded) -> list[Json]:
    """Every message of the conversation, in order: what counted for nothing and summaries of others left out."""
    out: list[Json] = []
    for entry in loaded.entries:
        given = entry.body.get("message")
        if isinstance(given, dict) and entry.kind != "compact" and entry.body.get("taken") is not False:
            out.append(given)
    return out


def session_docs(
    words: SessionWords, meta: Mapping[str, str], agents: Sequence[AgentDocs], *, speakers: Mapping[str, Speaker],
    texts: Mapping[str, str], updated_ms: int, roles: Mapping[str, str],
) -> SessionDocs:  # fmt: skip
    """The documents of a session that lives here. ``updated_ms``: the last change of any of its agents."""
    name, root = words.space, words.root
    title = meta.get("title") or name
    created, last = words.first_ms or int(meta.get("created", 0)), words.last_ms or words.first_ms
    head: Doc = {"id": name, "title": title, "created_at": local(created)}
    keys = {agent.metadata["model_key"] for agent in agents} - {""}
    thinking = root.get("thinking_mode") == "thinking"
    mode = root.get("run_mode")
    metadata = head | {
        "updated_at": local(max(last, updated_ms, created)), "project_path": str(root.get("project_path") or ""),
        "model_key": next(iter(keys)) if len(keys) == 1 else "", "thinking_mode": thinking,
        "run_mode": mode if mode in ("fast", "thinking", "deep") else "thinking" if thinking else "fast",
        "status": "archived" if meta.get("status") == "archived" else "active", "agent_count": len(agents),
        "agent_ids": [agent.number for agent in agents],
    }  # fmt: skip
    messages = head | {
        "updated_at": local(max(last, created)), "messages": words.messages(speakers, texts),
        "metadata": {"flow": meta.get("flow", "")}, "token_statistics": {key: words.tokens[key] for key in TOKENS},
    }  # fmt: skip
    index = {key: metadata[key] for key in ("title", "created_at", "updated_at", "agent_count")}
    return SessionDocs(name, metadata, messages, tuple(agents), roles, index)


def _metadata(source: str, *, chat: bool, work: bool, **more: Json) -> Doc:
    out: Doc = {"message_source": source, "visibility": "chat" if chat else "compact", "starts_work": work}
    return out | {key: value for key, value in more.items() if value not in (None, "")}


def _pending(mail: Mail) -> Doc:
    return {
        "id": mail.id, "source_display_name": mail.sender, "source_agent_id": mail.sender_agent,
        "message_type": mail.kind, "content": mail.text, "created_at": mail.at_s,
    }  # fmt: skip


def _ms(meta: Mapping[str, Json], key: str) -> int:
    value = meta.get(key, 0)
    return value if isinstance(value, int) else 0


def _pretty(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
