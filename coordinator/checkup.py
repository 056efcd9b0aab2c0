"""What is wrong with this installation or fleet: one check after another, each with its mend.

Guarantees: every check ends, whatever is broken (a failure of one never hides the others); reads only, but for one
file that it writes and removes in the data directory. Never starts a server, never shows a secret.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from coordinator import selftest
from protocol.errors import GateRefused, RolecallError
from protocol.keys import Keys
from protocol.kit import embedded
from protocol.kit.rolefiles import load_roles
from protocol.kit.settings import Settings, hide_password
from protocol.record import Json
from protocol.stores.client import Client, connect, guard
from protocol.stores.redis_workers import Workers

OLDEST: Final = {"redis": (6, 2), "valkey": (7, 2)}


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was looked at, whether it is right, and what to do where it is not."""

    check: str
    ok: bool
    mend: str = ""

    def to_json(self) -> dict[str, Json]:
        return {"check": self.check, "ok": self.ok, "mend": self.mend}


async def examine(settings: Settings, env: Mapping[str, str], states: Path) -> list[Check]:
    """All checks, in an order in which the first bad one is the one to mend first. ``states``: the folder of the state
    files here."""
    out = [*_installation(settings, env)]
    why = await selftest.test_file()
    out.append(Check("the store on a state file: self test", not why, why))
    out += [Check(f"state file {path.name!r}: its lock", not why, why) for path, why in selftest.held_locks(states)]
    url = settings.redis_url
    if url is None:
        found = embedded.find_running(settings.data_dir)
        if found is None:
            try:
                binary = embedded.find_binary(env.get("PATH"))
                out.append(Check(f"embedded server: not running, {binary.name} can be started", True))
            except RolecallError as error:
                out.append(Check(f"embedded server: {error.message}", False, error.mend))
            return out
        url = found.url
    client = connect(url, pool=2)
    try:
        server = [check async for check in _server(client, url)]
        out += server
        if len(server) > 1:  # it answers
            why = await selftest.test_redis(client, settings.prefix)
            out.append(Check("the store on the server: self test", not why, why))
            out += [check async for check in _fleet(client, settings)]
    except RolecallError as error:
        out.append(Check(f"the fleet: {error.message}", False, error.mend or "look at the server"))
    finally:
        await client.aclose()
    return out


def _installation(settings: Settings, env: Mapping[str, str]) -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check(f"Python {version}", sys.version_info >= (3, 11), "use Python 3.11 or later")
    yield _writable(settings.data_dir)
    loaded = load_roles(settings.roles_path)
    yield Check(
        f"roles: {len(loaded.roles)} load" + (f", {len(loaded.problems)} do not" if loaded.problems else ""),
        not loaded.problems,
        "; ".join(map(str, loaded.problems)),
    )
    yield _skills(env)
    if settings.models:
        bare = [m.key for m in settings.models if not m.api_key and m.base_url is None]
        keys = ", ".join(model.key for model in settings.models)
        mend = f"no API key for {', '.join(bare)}: set the variable that api_key_env names"
        yield Check(f"models: {keys}", not bare, mend if bare else "")
    else:
        wanting = sorted(role.id for role in loaded.roles.values() if role.executor == "model")
        yield Check(
            "models: none configured",
            not wanting,
            f"set OPENAI_BASE_URL or OPENAI_MODEL, or [[models]] in rolecall.toml: {', '.join(wanting)} need one",
        )
    yield _gates()
    if settings.metrics_port:
        yield _port(settings.metrics_port)


async def _server(client: Client, url: str) -> AsyncIterator[Check]:
    shown = hide_password(url)
    try:
        with guard("connect"):
            info: Mapping[str, Any] = await client.info()
    except RolecallError as error:
        yield Check(f"server {shown} can't be reached", False, f"{error.message}; {error.mend}")
        return
    yield Check(f"server {shown} answers", True)
    kind = "valkey" if "valkey_version" in info else "redis"
    version = str(info.get(f"{kind}_version", "0"))
    oldest = OLDEST[kind]
    fresh = tuple(int(part) for part in version.split(".")[:2]) >= oldest
    yield Check(f"server version: {kind} {version}", fresh, f"use {kind} {oldest[0]}.{oldest[1]} or later")
    policy = str(info.get("maxmemory_policy", "unknown"))
    yield Check(
        f"maxmemory-policy: {policy}", policy == "noeviction", "CONFIG SET maxmemory-policy noeviction, or records go"
    )
    kept = str(info.get("aof_enabled", "0")) == "1"
    yield Check(
        f"append-only file: {'on' if kept else 'off'}", kept, "set appendonly yes, or a restart loses what was written"
    )


async def _fleet(client: Client, settings: Settings) -> AsyncIterator[Check]:
    live = await Workers(client, Keys(settings.prefix), stalled_s=settings.stalled_s).live()
    digests: dict[str, set[str]] = defaultdict(set)
    for info in live:
        if info.digest:
            digests[info.role].add(info.digest)
    mixed = sorted(role for role, some in digests.items() if len(some) > 1)
    yield Check(
        "one version of each role is alive",
        not mixed,
        f"workers of {', '.join(mixed)} run different role files: make them the same on every host",
    )
    stalled = [info.start for info in live if info.state == "stalled"]
    yield Check("no worker is stalled", not stalled, f"the event loop hangs in: {', '.join(stalled)}")
    for kind in ("leader", "manager"):
        there = any(kind in (info.role, info.kind) for info in live)
        yield Check(f"a {kind} is alive", there, f"start one: rolecall {kind}, or rolecall up")


def _writable(folder: Path) -> Check:
    name = f"data directory {str(folder)!r}"
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".rolecall-"):
            pass
    except OSError as error:
        return Check(name, False, f"can't be written ({error.strerror}): mend its rights or set ROLECALL_DATA")
    return Check(name, True)


def _skills(env: Mapping[str, str]) -> Check:
    """Asked in a process of its own: the workers' side knows skills, and this room never imports it."""
    root = Path(__file__).resolve().parents[1]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, (str(root), env.get("PYTHONPATH"))))}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "workers.skills", "list", "--json"],
            env={**env, **path}, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("skills", False, f"can't be listed: {error}")
    said = done.stderr.decode("utf-8", "replace").strip()
    try:
        found = orjson.loads(done.stdout)
    except orjson.JSONDecodeError:
        return Check("skills", False, said.splitlines()[-1] if said else "python -m workers.skills list says why")
    rows = found.get("skills", found) if isinstance(found, dict) else found
    return Check(f"skills: {len(rows)} load", done.returncode == 0, said or "rolecall skills list says why")


def _gates() -> Check:
    """The gates on a clean record, one with a slip, and one that means nothing."""
    from protocol.gates import default_new_id, pass_gates

    trace = b'{"parent_id":null,"session_id":"s"}'
    clean = b'{"id":"T","who":"a","time":1,"event":"info","what":"w","detail":{},"trace":' + trace + b"}"
    slip = "好的：{“who”:“a”，“event”:“info”}".encode()
    problems: list[str] = []
    for text, passes in ((clean, True), (slip, True), (b'{"who":"a","event":"done"}', False), (b"no json", False)):
        try:
            _, report = pass_gates(text, now=1, session="s", new_id=default_new_id(lambda: "x"))
            right = passes and report.clean == (text == clean)
        except GateRefused:
            right = not passes
        if not right:
            problems.append(f"wrong about {text.decode()!r}")
    return Check("gates: self test", not problems, f"{'; '.join(problems)}: install rolecall again" if problems else "")


def _port(port: int) -> Check:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            mend = f"{error.strerror}: the next free port is taken instead; free it or change ROLECALL_METRICS_PORT"
            return Check(f"metrics port {port}", False, mend)
    return Check(f"metrics port {port}", True)
