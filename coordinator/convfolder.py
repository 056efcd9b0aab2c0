"""A directory of conversations: where each document of `coordinator.conversations` stands, written and read back.

::

    agents/<role id>.md
    conversations/index.json
    conversations/<id>/metadata.json, messages.json
    conversations/<id>/agents/<n>/metadata.json, messages.json
    state.json

Guarantees: a file is replaced in one step (a reader sees the old or the new), and only where its content changes; keys
that nobody here knows stay in it; two that write at once wait for each other; a file that is no JSON is refused by its
path and left untouched. Never removes a file, never touches one that is not in the layout.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.conversations import AgentDocs, Doc, SessionDocs
from protocol.errors import ConfigError, Refused
from protocol.record import Json, is_name

VERSION: Final = "1.0"
FILE_MAX: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Problem:
    """A conversation that can't be read: which, the file, and what is wrong with it."""

    session: str
    message: str


class Folder:
    """One such directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, docs: SessionDocs) -> list[str]:
        """Write a session's documents; the paths of the files that changed. Raises ConfigError for a place that can't
        be written, Refused for a file there that is no JSON."""
        with self._held():
            home = self._root / "conversations" / docs.id
            changed = [self._text(self._root / "agents" / name, text) for name, text in docs.roles.items()]
            for agent in docs.agents:
                place = home / "agents" / str(agent.number)
                changed += [
                    self._doc(place / "messages.json", agent.messages),
                    self._doc(place / "metadata.json", agent.metadata),
                ]
            changed += [self._doc(home / "messages.json", docs.messages)]
            changed += [self._doc(home / "metadata.json", docs.metadata)]
            index = self._read(self._root / "conversations" / "index.json") or {}
            entry = index.get(docs.id)
            index[docs.id] = with_unknown(docs.index, entry) if isinstance(entry, dict) else docs.index
            changed += [self._text(self._root / "conversations" / "index.json", text_of(index))]
            changed += [self._text(self._root / "state.json", text_of(self._state(docs, index)))]
        return [path for path in changed if path]

    def read(self) -> tuple[list[SessionDocs], list[Problem]]:
        """Every conversation of the directory, and those that can't be read. Raises Refused where there is none."""
        home = self._root / "conversations"
        names = sorted(path.name for path in home.iterdir() if path.is_dir()) if home.is_dir() else []
        if not names:
            raise Refused(
                f"{str(self._root)!r} holds no conversations", reason="empty", path=str(home),
                mend="name a directory that `rolecall export` wrote",
            )  # fmt: skip
        store, index = self._read(self._root / "state.json") or {}, self._read(home / "index.json") or {}
        roles = {path.name: path.read_text(encoding="utf-8") for path in sorted((self._root / "agents").glob("*.md"))}
        found: list[SessionDocs] = []
        problems: list[Problem] = []
        for name in names:
            entry = index.get(name)
            try:
                made = self._session(home / name, entry if isinstance(entry, dict) else {}, roles, store)
            except Refused as error:
                problems.append(Problem(name, error.message))
            else:
                found.append(made)
        return found, problems

    def _session(self, place: Path, entry: Doc, roles: Mapping[str, str], store: Doc) -> SessionDocs:
        if not is_name(place.name):
            raise _bad(place, "its name can't be a conversation's: use 1 to 64 of A-Z a-z 0-9 _ -")
        metadata, messages = self._need(place / "metadata.json"), self._need(place / "messages.json")
        _check_messages(place / "messages.json", messages)
        agents: list[AgentDocs] = []
        inner = place / "agents"
        for folder in sorted(inner.iterdir() if inner.is_dir() else (), key=lambda path: (len(path.name), path.name)):
            if not folder.is_dir():
                continue
            number = folder.name
            if not (number.isascii() and number.isdigit() and 0 < int(number) < 2**53 and str(int(number)) == number):
                raise _bad(folder, "an agent's folder is named by its number")
            made = AgentDocs(int(number), self._need(folder / "metadata.json"), self._need(folder / "messages.json"))
            for file, doc in (("metadata.json", made.metadata), ("messages.json", made.messages)):
                if doc.get("agent_id", made.number) != made.number:
                    raise _bad(folder / file, f"its agent_id is {doc['agent_id']!r}, its folder says {number}")
            _check_messages(folder / "messages.json", made.messages)
            agents.append(made)
        return SessionDocs(place.name, metadata, messages, tuple(agents), roles, entry, store)

    def _state(self, docs: SessionDocs, index: Mapping[str, Json]) -> Doc:
        """``state.json`` after this session: what stands there wins over what an imported session brought along."""
        there = self._read(self._root / "state.json")
        created, updated = docs.metadata.get("created_at"), docs.metadata.get("updated_at")
        fresh: Doc = {"version": VERSION, "last_conversation_id": docs.id, "agent_id_counter": 0,
                      "created_at": created, "updated_at": updated}  # fmt: skip
        state = there if there is not None else dict(docs.store) if docs.store else fresh
        for key, value in fresh.items():
            state.setdefault(key, value)
        counter = state["agent_id_counter"]
        known = counter if isinstance(counter, int) else 0
        state["agent_id_counter"] = max([known, *(agent.number for agent in docs.agents)])
        if not docs.imported:
            dated = ((str(e.get("created_at")), name) for name, e in index.items() if isinstance(e, dict))
            state["last_conversation_id"] = max(dated)[1]
            state["updated_at"] = max(str(state["updated_at"]), str(updated))
        return state

    def _doc(self, path: Path, doc: Doc) -> str:
        there = self._read(path)
        return self._text(path, text_of(with_unknown(doc, there) if there is not None else doc))

    def _text(self, path: Path, text: str) -> str:
        """Replace a file in one step where its text is another; its path in the directory, '' where it is not."""
        data = text.encode("utf-8")
        with _named(path):
            try:
                if path.read_bytes() == data:
                    return ""
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                with beside.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)
        return str(path.relative_to(self._root))

    def _need(self, path: Path) -> Doc:
        found = self._read(path)
        if found is None:
            raise _bad(path, "it is missing")
        return found

    def _read(self, path: Path) -> Doc | None:
        """The JSON object of a file; None where there is no file."""
        with _named(path):
            try:
                if path.stat().st_size > FILE_MAX:
                    raise _bad(path, f"it has more than {FILE_MAX} bytes")
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            value = json.loads(data.decode("utf-8-sig"), parse_constant=_no_constant)
            if b"\\u" in data:
                json.dumps(value, ensure_ascii=False).encode()  # half a character can't be written again
        except (ValueError, RecursionError) as error:
            raise _bad(path, f"it is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise _bad(path, "it holds no JSON object")
        return value

    @contextmanager
    def _held(self) -> Iterator[None]:
        """One writer at a time; the kernel frees the directory when its holder dies."""
        with _named(self._root):
            self._root.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def text_of(doc: Doc) -> str:
    """A document as it stands in its file: UTF-8, two spaces, characters as they are."""
    return json.dumps(doc, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def with_unknown(doc: Doc, there: Doc) -> Doc:
    """``doc`` with the keys of ``there`` that it does not know: of the document itself, and of each message."""
    out = doc | {key: value for key, value in there.items() if key not in doc}
    ours, theirs = doc.get("messages"), there.get("messages")
    if isinstance(ours, list) and isinstance(theirs, list):
        by_id = {m["message_id"]: m for m in theirs if isinstance(m, dict) and isinstance(m.get("message_id"), str)}
        out["messages"] = [_message_with(each, by_id) for each in ours]
    return out


def _message_with(message: Json, by_id: Mapping[str, Doc]) -> Json:
    if not isinstance(message, dict) or not isinstance(message.get("message_id"), str):
        return message
    old = by_id.get(message["message_id"])
    if old is None:
        return message
    out: Doc = message | {key: value for key, value in old.items() if key not in message}
    ours, theirs = message.get("metadata"), old.get("metadata")
    if isinstance(ours, dict) and isinstance(theirs, dict):
        out["metadata"] = ours | {key: value for key, value in theirs.items() if key not in ours}
    return out


def _check_messages(path: Path, doc: Doc) -> None:
    messages: Sequence[Json] | Json = doc.get("messages")
    if not isinstance(messages, list):
        raise _bad(path, "messages: is no list")
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad(path, f"messages[{at}]: is no message with a role")


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON value")


def _bad(path: Path, why: str) -> Refused:
    return Refused(f"{str(path)!r}: {why}", reason="bad_file", path=str(path), mend="mend it, or move it away")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{str(path)!r}: {error.strerror}", mend="name a place that you may use") from None
