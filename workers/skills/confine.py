"""What keeps a skill's process in its place, as far as the system allows. Standard library only.

Guarantees: every function either does its part or says with its result that the system does not offer it; none raises.
Never runs in the worker: only in the process that is started for one call.

On Linux: the process can't look into the environment or memory of any process outside it nor signal one (Landlock; for
root also a user of its own), can't gain rights, can't start more than so many processes, dies with its parent, and,
where this is allowed (root), lives in a process-id space of its own, which ends whole when its first process does.
Files it reads and writes as the worker does: nothing here is a sandbox for files, but for root the few that hold the
fleet's secrets are out of its sight. Elsewhere: limits only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys

_LINUX = sys.platform.startswith("linux")

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CLONE_NEWNS, _CLONE_NEWPID = 0x00020000, 0x20000000
_MS_RDONLY, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 1 << 12, 1 << 14, 1 << 18
_CAP_VERSION = 0x20080522
_KEPT = (1, 2, 3)
"""To read, write and change files as root does (the interpreter itself may lie in root's home); nothing else."""
_LAST_CAPABILITY = 63
_USERS = ((1 << 30, 1 << 30), (61_184, 4_096))
"""Ranges for a user of its own, first number and how many: far beyond any real user; where a container has no such
numbers, those that are set aside for passing users."""
# The same numbers on every architecture.
_SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_ADD_RULE, _SYS_LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_FS_REFER = 1 << 13
_LANDLOCK_SCOPE = 0b11  # abstract sockets and signals


def _libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None, use_errno=True) if _LINUX else None
    except OSError:
        return None


_LIBC = _libc()


def _prctl(option: int, value: int, more: int = 0) -> bool:
    return _LIBC is not None and _LIBC.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(more), 0, 0) == 0


def die_with_parent(how: int = signal.SIGKILL) -> bool:
    """The kernel sends this process the signal ``how`` when its parent dies."""
    return _prctl(_PR_SET_PDEATHSIG, how)


def adopt_orphans() -> bool:
    """Orphans among the descendants become children of this process, so that none gets out of sight."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def own_process_space() -> bool:
    """The next child is the first process of a space of its own: when it ends, all in it are killed by the kernel."""
    return _LIBC is not None and _LIBC.unshare(_CLONE_NEWPID) == 0


def hide(paths: list[str]) -> bool:
    """From now on these files and directories are empty for this process and its children, and for nobody else."""
    if _LIBC is None or _LIBC.unshare(_CLONE_NEWNS) != 0:
        return False
    if _LIBC.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None) != 0:
        return False
    done = True
    for path in filter(os.path.exists, paths):
        place = os.fsencode(os.path.realpath(path))
        if os.path.isdir(place):
            failed = _LIBC.mount(b"none", place, b"tmpfs", ctypes.c_ulong(_MS_RDONLY), b"size=4k,mode=555")
        else:
            failed = _LIBC.mount(b"/dev/null", place, None, ctypes.c_ulong(_MS_BIND), None)
        done = done and failed == 0
    return done


def limits(*, memory_bytes: int, file_bytes: int, open_files: int) -> None:
    """Resource limits, inherited by every child. A limit that can't be set (already lower) stays as it is."""
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, open_files),
    ):
        try:
            _, hard = resource.getrlimit(kind)
            least = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (least, least))
        except (OSError, ValueError):
            continue


def own_user(scratch: str) -> int:
    """For root: the number of a user for this call alone, who owns ``scratch`` from now on; 0: there can be none."""
    if _LIBC is None or os.geteuid() != 0:
        return 0
    for first, count in _USERS:
        user = first + os.getpid() % count
        try:
            os.chown(scratch, user, user)
        except OSError:
            continue
        return user
    return 0


def drop_rights(user: int, processes: int) -> list[str]:
    """Give up what a skill has no use for and bound its processes; the words name what was done."""
    done = []
    if _LIBC is not None and os.geteuid() == 0 and _become(_LIBC, user):
        done.append("user" if user else "capabilities")
    # The kernel counts threads too, and all of a user's: the supervisor counts exactly, this only keeps it able to.
    room = 4 * processes + 8 * (os.cpu_count() or 1)
    count = 0 if os.geteuid() == user else _tasks(os.geteuid())
    try:
        resource.setrlimit(resource.RLIMIT_NPROC, (count + room, count + room))
        done.append("processes")
    except (OSError, ValueError):
        pass
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1):
        done.append("no-new-privileges")
    if _LIBC is not None and _landlock(_LIBC):
        done.append("landlock")
    return done


def _become(libc: ctypes.CDLL, user: int) -> bool:
    """Change to the user (0: stay) and of root's capabilities keep those about files."""
    kept = sum(1 << number for number in _KEPT)
    for number in range(_LAST_CAPABILITY + 1):
        if number not in _KEPT:
            _prctl(_PR_CAPBSET_DROP, number)  # without this, root gets them back with the next program it starts
    if user:
        try:
            _prctl(_PR_SET_KEEPCAPS, 1)
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        except OSError:
            pass
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAP_VERSION, 0), 8)
    # Two sets of three words (effective, permitted, inheritable): the lower 32 capabilities, then the upper.
    data = ctypes.create_string_buffer(struct.pack("=6I", kept, kept, kept, 0, 0, 0), 24)
    changed = libc.capset(header, data) == 0
    for number in _KEPT:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number)  # or the next program that it starts would lose it
    _prctl(_PR_SET_DUMPABLE, 1)  # a change of user took it away, and with it the sight of one's own /proc/self
    return bool(changed)


def _tasks(user: int) -> int:
    """Threads of this user now."""
    count = 0
    for name in os.listdir("/proc") if _LINUX else []:
        if not name.isdigit():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid == user:
                with open(f"/proc/{name}/stat", "rb") as file:
                    count += int(file.read().rpartition(b")")[2].split()[17])
        except OSError:
            continue
    return count


def _landlock(libc: ctypes.CDLL) -> bool:
    """A Landlock domain of its own. It leaves files alone; what counts is that no process outside can be looked into
    (every domain has that) and, where the kernel knows it, that none can be signalled."""
    version = libc.syscall(_SYS_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 2:  # the first version forbids every move of a file to another directory
        return False
    scoped = version >= 6
    packed = struct.pack("=QQQ", 0, 0, _LANDLOCK_SCOPE) if scoped else struct.pack("=Q", _LANDLOCK_FS_REFER)
    rules = libc.syscall(_SYS_LANDLOCK_CREATE, packed, ctypes.c_size_t(len(packed)), 0)
    if rules < 0:
        return False
    try:
        if not scoped:
            root = os.open("/", os.O_PATH | os.O_CLOEXEC)
            try:
                rule = struct.pack("=Qi", _LANDLOCK_FS_REFER, root)
                if libc.syscall(_SYS_LANDLOCK_ADD_RULE, rules, 1, rule, 0) != 0:
                    return False
            finally:
                os.close(root)
        return bool(libc.syscall(_SYS_LANDLOCK_RESTRICT, rules, 0) == 0)
    finally:
        os.close(rules)


def descendants(pid: int, most: int = 1 << 30) -> list[int]:
    """Living descendants of ``pid``, itself not among them; looks no further once there are ``most``."""
    found: list[int] = []
    todo = [pid]
    tree = None if os.path.exists("/proc/self/task") else _parents()
    while todo and len(found) < most:
        parent = todo.pop()
        children = _children(parent) if tree is None else tree.get(parent, [])
        found += children
        todo += children
    return found


def _children(pid: int) -> list[int]:
    out: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                out += map(int, file.read().split())
    except OSError:  # it ended while we looked
        pass
    return out


def _parents() -> dict[int, list[int]]:
    """Children by parent from ``ps``, for systems without ``/proc``."""
    import subprocess

    tree: dict[int, list[int]] = {}
    listing = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=False)
    for line in listing.stdout.splitlines():
        pid, parent = map(int, line.split())
        tree.setdefault(parent, []).append(pid)
    return tree


def resident_bytes(pids: list[int]) -> int:
    """Memory in use by these processes together; shared pages count for each. 0 where the system does not tell."""
    pages = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                pages += int(file.read().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")
