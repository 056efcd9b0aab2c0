"""One role as its file says now: a file that is edited while the fleet runs takes effect with the next task.

Guarantees: ``current`` is always a whole, valid role; an edit that breaks the file is named once and the last good
text stays in force. Never reads the file again where its modification time and size are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocol.errors import RoleError, StoreError
from protocol.kit.lifecycle import Stopping
from protocol.kit.logs import get_log
from protocol.kit.rolefiles import RoleFile, load_role, load_roles
from protocol.kit.settings import Settings
from protocol.stores.redis_roles import Roles

log = get_log(__name__)
PUBLISH_EVERY_S: Final = 2.0


@dataclass
class RoleSource:
    """The role of this process."""

    role: RoleFile
    _stamp: tuple[int, int] = field(default=(0, 0))
    _refused: tuple[int, int] = field(default=(0, 0))

    @classmethod
    def find(cls, name: str, settings: Settings) -> RoleSource:
        """The role whose id or module name is ``name``; RoleError lists the known ones."""
        made = cls(load_roles(settings.roles_path).need(name))
        made._stamp = made._stat()
        return made

    @property
    def id(self) -> str:
        return self.role.id

    def current(self) -> RoleFile:
        """The role, read again where its file changed."""
        stamp = self._stat()
        if stamp not in (self._stamp, self._refused, (0, 0)):
            try:
                fresh = load_role(self.role.path)
                if fresh.id != self.role.id:
                    raise RoleError(f"its id is {fresh.id!r} now, this worker serves {self.role.id!r}")
            except (RoleError, OSError) as error:
                self._refused = stamp
                log.warning("the edited role file is not taken", path=str(self.role.path), why=str(error))
            else:
                self.role, self._stamp = fresh, stamp
                log.info("the role file was edited", role=fresh.id, digest=fresh.digest)
        return self.role

    def _stat(self) -> tuple[int, int]:
        try:
            stat = self.role.path.stat()
        except OSError:
            return (0, 0)  # gone for a moment while an editor saves it
        return (stat.st_mtime_ns, stat.st_size)

    async def publish(self, roles: Roles, stopping: Stopping) -> None:
        """Publish the role now and whenever it changes, and again after the store forgot it."""
        while True:
            role = self.current()
            try:
                if (await roles.all()).get(role.id, {}).get("digest") != role.digest:
                    await roles.publish(role.id, role.front(), role.digest)
            except StoreError as error:
                if not error.retryable:
                    log.warning("the role can't be published", why=str(error))
            if await stopping.sleep(PUBLISH_EVERY_S):
                return
