"""Every Redis key, with its type and lifetime. All key names are made here and nowhere else.

The keys of one space share the hash tag ``{S}``; a role's stream and its companion share a slot (``rc:role:R`` hashes
as a whole, its companion by the tag ``{rc:role:R}``); so do ``rc:workers`` and ``rc:spaces`` with theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import ConfigError
from protocol.record import is_name

DEFAULT_PREFIX = "rc:"
GROUP = "workers"


def check_name(name: str, what: str = "name") -> str:
    """``name`` if it may be part of a key; else a ConfigError that says which characters may."""
    if not is_name(name):
        raise ConfigError(f"{what} {name!r} can't be part of a key", mend="use 1 to 64 of A-Z a-z 0-9 _ -")
    return name


@dataclass(frozen=True, slots=True)
class SpaceKeys:
    """The keys of one space (lifetime: the space's; archived and deleted with it)."""

    base: str
    """``rc:{S}``: every key of the space starts with it."""

    @property
    def log(self) -> str:
        """stream: the records, seven fields an entry; the truth."""
        return f"{self.base}:log"

    @property
    def tasks(self) -> str:
        """hash: task id -> packed ``TaskState``."""
        return f"{self.base}:tasks"

    @property
    def ids(self) -> str:
        """hash: id of every other record -> digest,entry."""
        return f"{self.base}:ids"

    @property
    def meta(self) -> str:
        """hash: kind, policy, session, created, counters (n, bytes), matter, lease and term, indexed."""
        return f"{self.base}:meta"

    @property
    def outbox(self) -> str:
        """sorted set: assigned, not yet known to be enqueued: task -> server ms of the assignment."""
        return f"{self.base}:outbox"

    @property
    def due(self) -> str:
        """sorted set: retrying task -> server ms at which it is due."""
        return f"{self.base}:due"

    @property
    def held(self) -> str:
        """hash: task in the hands of a fleet worker -> its start; a lost task -> ``!lost``."""
        return f"{self.base}:held"

    @property
    def names(self) -> str:
        """hash: ``w:<who>`` and ``s:<session>`` -> their entries, or ``*`` where these have an index stream; ``=main``:
        the first session, ``=multi``: from which entry on sessions are indexed."""
        return f"{self.base}:names"

    @property
    def beats(self) -> str:
        """sorted set: agent -> server ms of its last record, for agents that are not fleet workers."""
        return f"{self.base}:beats"

    @property
    def snap(self) -> str:
        """string: the leader's folded view; never the truth."""
        return f"{self.base}:snap"

    @property
    def live(self) -> str:
        """stream, capped: token deltas for people watching; expires 1 h after the last."""
        return f"{self.base}:live"

    @property
    def used(self) -> str:
        """hash: the session's token use by role and model, its budget's counts, what calls in flight hold."""
        return f"{self.base}:used"

    @property
    def calls(self) -> str:
        """sorted set: model call in flight -> server ms at which its lease ends."""
        return f"{self.base}:calls"

    def index(self, kind: str, value: str) -> str:
        """stream with the log's own ids: kind ``e`` event, ``w`` who, ``s`` session."""
        return f"{self.base}:ix:{kind}:{value}"

    def conv(self, agent: str) -> str:
        """stream: an agent's messages and journal."""
        return f"{self.base}:conv:{agent}"

    def conv_meta(self, agent: str) -> str:
        """hash: an agent's metadata."""
        return f"{self.base}:convm:{agent}"

    @property
    def agents(self) -> str:
        """hash: each agent of the space that has a conversation -> its number, one of a kind in the store."""
        return f"{self.base}:agents"

    def mailbox(self, agent: str) -> str:
        """stream: messages to an agent that it has not taken up yet."""
        return f"{self.base}:mail:{agent}"

    def art(self, sha256: str) -> str:
        """list of chunks of at most 1 MB: an artifact by content; 1 h to live until a record names it."""
        return f"{self.base}:art:{sha256}"

    @property
    def arts(self) -> str:
        """hash: sha256 -> size of each artifact a record names (bounds a space's artifacts)."""
        return f"{self.base}:arts"

    def files(self, agent: str) -> str:
        """hash: an agent's outputs: path -> digest, size, type, modified."""
        return f"{self.base}:files:{agent}"

    @property
    def docs(self) -> str:
        """hash: of an imported conversation, what stands beside its messages: path -> JSON or text."""
        return f"{self.base}:docs"

    def area(self, area: str) -> str:
        """hash: the small files of a workspace area: path -> text."""
        return f"{self.base}:area:{area}"

    def rebuilt(self, part: str) -> str:
        """what a rebuild has made so far, under the names of the projections; expires 1 h after it stopped."""
        return f"{self.base}:rb:{part}"


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys under one prefix (``rc:`` by default): two fleets with two prefixes share a server unseen."""

    prefix: str = DEFAULT_PREFIX

    def space(self, name: str) -> SpaceKeys:
        return SpaceKeys(f"{self.prefix}{{{check_name(name, 'space')}}}")

    @property
    def spaces(self) -> str:
        """sorted set: every space -> ms of its last change; written before the space's first key; permanent."""
        return f"{self.prefix}spaces"

    @property
    def spaces_open(self) -> str:
        """set: spaces that the sweep still looks at (not settled)."""
        return f"{self.prefix}{{{self.prefix}spaces}}:open"

    @property
    def roles(self) -> str:
        """hash: role id -> front matter and digest, published by workers; permanent."""
        return f"{self.prefix}roles"

    def role(self, role: str) -> str:
        """stream with group ``workers``: small references (space, task, attempt); its length is the backlog."""
        return f"{self.prefix}role:{check_name(role, 'role')}"

    def queued(self, role: str) -> str:
        """hash: space:task:attempt -> entry id in the role's stream."""
        return f"{self.prefix}{{{self.role(role)}}}:queued"

    @property
    def wake(self) -> str:
        """stream, capped at about 10,000: "space S has news"."""
        return f"{self.prefix}wake"

    @property
    def workers(self) -> str:
        """sorted set: live starts -> server ms of the last beat; permanent."""
        return f"{self.prefix}workers"

    @property
    def workers_info(self) -> str:
        """hash: start -> JSON {role, host, pid, loop_age_s, in_hand, began}; with the start's life."""
        return f"{self.prefix}{{{self.workers}}}:info"

    @property
    def graves(self) -> str:
        """sorted set: buried start -> server ms of the burial; kept a day after its tasks are settled."""
        return f"{self.prefix}{{{self.workers}}}:graves"

    @property
    def grave_info(self) -> str:
        """hash: buried start -> JSON {reason, at, last_beat, info}; lives as long as the grave."""
        return f"{self.prefix}{{{self.workers}}}:graveinfo"

    @property
    def unsettled(self) -> str:
        """set: buried starts whose tasks are not all taken care of yet."""
        return f"{self.prefix}{{{self.workers}}}:unsettled"

    @property
    def agent_ids(self) -> str:
        """string: the last number that was given to an agent, in any space; permanent."""
        return f"{self.prefix}{{{self.workers}}}:agents"

    @property
    def watch(self) -> str:
        """hash: when the last sweep ran, on which server run; from when ages count."""
        return f"{self.prefix}{{{self.workers}}}:watch"

    def ctl(self, start: str) -> str:
        """stream, capped, expires with the beat: hints to one worker (cancel, message, drain)."""
        return f"{self.prefix}ctl:{start}"

    def alarms(self, role: str) -> str:
        """arq's queue of a role: its alarms."""
        return f"{self.prefix}alarms:{check_name(role, 'role')}"

    def health(self, role: str) -> str:
        """string, lives 2 dead-after: set by a worker of the role that beats and reads (``arq --check``)."""
        return f"{self.prefix}health:{check_name(role, 'role')}"

    def limit(self, mark: str, part: str) -> str:
        """zsets ``calls`` and ``running``, hash ``state``: an endpoint's permits; expire 10 min after the last."""
        return f"{self.prefix}{{limit:{mark}}}:{part}"
