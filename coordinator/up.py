"""A whole fleet on one machine: real processes, kept alive, their deaths reported to the store at once.

Guarantees: every child is a process of its own session (Ctrl-C reaches the supervisor alone); one that ends is started
again with a growing pause, and its end is written to the store before that, so that its work is taken over at once
instead of after the dead-after time; `stop` drains (workers first, then managers and leaders) and kills what does not
end within the grace time. On Linux the children get SIGTERM when the supervisor is killed, so that no orphan fleet
stays. Never does a task's work, never decides what happens to it.

::

    spawned ──► running ──► ended ──► reported ──► (pause 0.2 s … 10 s) ──► spawned
                   └─ stop ──► SIGTERM ──► ended | SIGKILL after the grace time ──► reported
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal

from coordinator.child import TOKEN_VARIABLE, Child, children, describe, end_with_parent, import_path, log_file, send
from coordinator.deaths import Deaths
from protocol.errors import RolecallError
from protocol.kit.embedded import Embedded, ensure_server
from protocol.kit.embedded import stop as stop_server
from protocol.kit.settings import Settings

FIRST_PAUSE_S: Final = 0.2
MOST_PAUSE_S: Final = 10.0
STEADY_S: Final = 30.0
"""A child that ran this long has proved itself: its next pause is the first again."""
MARGIN_S: Final = 2.0
"""A child keeps the grace time by itself; the supervisor's own clock is for one that does not."""
SERVER_LOOK_S: Final = 0.5

EventKind = Literal["server", "started", "died", "reported", "restarting", "draining", "killed", "stopped", "trouble"]


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """Something that happened. ``text`` is a sentence; ``start`` is the dead child's start id where it is known."""

    kind: EventKind
    text: str
    child: str = ""
    pid: int = 0
    start: str = ""


class Fleet:
    """A fleet of child processes. An async context: started on entry, drained on exit.

    ``roles``: worker processes per role id. ``env``: what the children get (default: this process's). ``output``: a
    directory for one log file a child; None lets them write to this process's stderr. ``on_event`` is called in the
    event loop for whatever happens and must not block.
    """

    def __init__(
        self,
        settings: Settings,
        roles: Mapping[str, int],
        *,
        leaders: int = 1,
        managers: int = 1,
        env: Mapping[str, str] | None = None,
        output: Path | None = None,
        on_event: Callable[[FleetEvent], None] = lambda event: None,
    ) -> None:
        self.settings = settings
        self.output = output
        self.embedded: Embedded | None = None
        self.url = settings.redis_url or ""
        self.children: list[Child] = children(roles, leaders=leaders, managers=managers)
        self._env = dict(os.environ if env is None else env)
        self._tell = on_event
        self._deaths: Deaths | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._killing = asyncio.Event()
        self._unreported: list[tuple[str, str, str]] = []
        self._reporting = asyncio.Lock()
        self._own_server = False
        self._stopped = False

    async def __aenter__(self) -> Fleet:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server (without ``REDIS_URL``) and every child. Raises StoreError or ConfigError, each with its
        mend; then nothing is left running."""
        try:
            await self._open_store()
            for child in self.children:
                await self._spawn(child)
            self._keepers = [asyncio.create_task(self._keep(child), name=child.name) for child in self.children]
            if self.embedded is not None:
                self._keepers.append(asyncio.create_task(self._watch_server(self.embedded), name="server"))
        except BaseException:
            self._killing.set()
            await self.stop()
            raise

    async def ready(self, timeout_s: float = 60.0) -> bool:
        """Wait until every child beats; False if that takes longer than ``timeout_s``, or if the fleet stops."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not await self._all_beat():
            if asyncio.get_running_loop().time() > deadline or self._stopping.is_set():
                return False
            await asyncio.sleep(0.1)
        return True

    async def _all_beat(self) -> bool:
        try:
            return self._deaths is not None and await self._deaths.all_beat([child.suffix for child in self.children])
        except RolecallError:
            return False  # the store is away, or being opened anew

    async def wait(self) -> None:
        """Wait until `stop` was asked for."""
        await self._stopping.wait()

    def ask_stop(self) -> None:
        """What a signal does: the first time drain, the second time kill. May be called from a signal handler of the
        event loop."""
        if self._stopping.is_set():
            self._killing.set()
        self._stopping.set()

    async def stop(self) -> None:
        """Drain: workers first, then managers and leaders, last the embedded server that was started here. Legal
        twice, and before `start`."""
        self._stopping.set()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers = []
        if any(child.alive for child in self.children) and not self._killing.is_set():
            self._say("draining", f"draining: up to {self.settings.grace_s:g} s for what runs to finish")
        deadline = asyncio.get_running_loop().time() + self.settings.grace_s + MARGIN_S
        await self._end([child for child in self.children if child.kind == "worker"], deadline)
        await self._end([child for child in self.children if child.kind != "worker"], deadline)
        if self._deaths is not None:
            await self._deaths.close()
            self._deaths = None
        if self.embedded is not None and self._own_server:
            await asyncio.to_thread(stop_server, self.embedded)
            self.embedded = None
            self._say("server", "the embedded server has stopped; its data is kept")
        if not self._stopped:
            self._stopped = True
            self._say("stopped", "the fleet has stopped")

    async def _open_store(self) -> None:
        if self.settings.redis_url is None:
            self.embedded = await asyncio.to_thread(ensure_server, self.settings.data_dir)
            self.url = self.embedded.url
            self._own_server = self._own_server or self.embedded.started_here
            how = "started" if self.embedded.started_here else "found running"
            self._say("server", f"embedded server {how} in {str(self.embedded.directory)!r}", pid=self.embedded.pid)
        before, self._deaths = self._deaths, await Deaths.open(self.url, self.settings.prefix)
        if before is not None:
            await before.close()

    async def _spawn(self, child: Child) -> None:
        child.token = secrets.token_hex(4)
        env = self._env | {"REDIS_URL": self.url, TOKEN_VARIABLE: child.token} | import_path(self._env)
        out: IO[bytes] | int = 2 if self.output is None else log_file(self.output, child.name)
        try:
            child.process = await asyncio.create_subprocess_exec(
                *child.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=env,
                start_new_session=True,
                preexec_fn=end_with_parent() if sys.platform == "linux" else None,
            )
        finally:
            if not isinstance(out, int):
                out.close()
        child.began = asyncio.get_running_loop().time()
        self._say("started", f"{child.name} started (pid {child.pid})", child)

    async def _keep(self, child: Child) -> None:
        """Fill one place for as long as the fleet runs."""
        pause = FIRST_PAUSE_S
        while True:
            if child.process is not None:
                code = await child.process.wait()
                if self._stopping.is_set():
                    return
                how = describe(code)
                self._say("died", f"{child.name} (pid {child.pid}) {how}", child)
                await self._report(child, f"child {how}")
                if asyncio.get_running_loop().time() - child.began >= STEADY_S:
                    pause = FIRST_PAUSE_S
            self._say("restarting", f"{child.name} starts again in {pause:g} s", child)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
                return
            except TimeoutError:
                pause = min(pause * 2, MOST_PAUSE_S)
            try:
                child.restarts += 1
                await self._spawn(child)
            except OSError as error:
                child.process = None
                self._say("trouble", f"{child.name} can't be started: {error.strerror or error}", child)

    async def _report(self, child: Child, reason: str) -> None:
        """Tell the store that this start is dead. What can't be told now is told with the next report."""
        self._unreported.append((child.name, child.suffix, reason))
        await self._report_all()

    async def _report_all(self) -> None:
        async with self._reporting:
            while self._unreported and self._deaths is not None:
                name, suffix, reason = self._unreported[0]
                try:
                    start = await self._deaths.report(suffix, reason)
                except RolecallError as error:
                    self._say("trouble", f"the end of {name} could not be reported yet: {error.message}")
                    return
                self._unreported.pop(0)
                if start:
                    self._tell(FleetEvent("reported", f"the end of {start} is in the store", name, start=start))

    async def _end(self, group: Sequence[Child], deadline: float) -> None:
        """SIGTERM to all of ``group``, SIGKILL to what still lives at ``deadline`` or when a second signal came."""
        waits = {asyncio.create_task(c.process.wait()): c for c in group if c.alive and c.process is not None}
        if not waits:
            return
        for child in waits.values():
            send(child, signal.SIGTERM)
        ended = asyncio.create_task(asyncio.wait(waits))
        killing = asyncio.create_task(self._killing.wait())
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        await asyncio.wait([ended, killing], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        killing.cancel()
        late = [child for wait, child in waits.items() if not wait.done()]
        for child in late:
            send(child, signal.SIGKILL)
            self._say("killed", f"{child.name} (pid {child.pid}) did not end in time and was killed", child)
        await ended
        for child in late:
            await self._report(child, "child killed: it did not end within the grace time")

    async def _watch_server(self, embedded: Embedded) -> None:
        """The embedded server is restarted too; it may come back at another address, so the children follow."""
        while True:
            await asyncio.sleep(SERVER_LOOK_S)
            if _runs(embedded):
                continue
            self._say("died", f"the embedded server (pid {embedded.pid}) has ended", pid=embedded.pid)
            pause = FIRST_PAUSE_S
            while True:
                try:
                    await self._open_store()
                    break
                except RolecallError as error:
                    self._say("trouble", f"the embedded server does not start: {error}")
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, MOST_PAUSE_S)
            assert self.embedded is not None
            embedded = self.embedded
            await self._report_all()
            for child in self.children:
                send(child, signal.SIGKILL)

    def _say(self, kind: EventKind, text: str, child: Child | None = None, *, pid: int = 0) -> None:
        self._tell(FleetEvent(kind, text, child.name if child else "", child.pid if child else pid))


def _runs(embedded: Embedded) -> bool:
    if embedded.server is not None:
        return embedded.server.process.poll() is None
    try:
        os.kill(embedded.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is there, and another user's
    return True
