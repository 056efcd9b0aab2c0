"""Commands from a warm process: for tests that run hundreds of them as a person or an agent would.

Guarantees: each command is a process of its own (forked from one that has imported everything), with the caller's
arguments, directory, environment and its own three streams; its exit code is the command's. Never keeps anything from
one command to the next. The first start of a real ``python -m coordinator.cli`` is tested elsewhere.

``python -m tests.warm SOCKET`` serves; the shim that `commands` writes is the client.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import secrets
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import dies_with_test, wait_until_sync

ROOT = Path(__file__).resolve().parents[1]
CLIENT = """#!{python} -IS
import json, os, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({socket!r})
told = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(link, [len(told).to_bytes(4, "big")], [0, 1, 2])
link.sendall(told)
code = link.recv(1)
sys.exit(code[0] if code else 70)
"""


@contextmanager
def commands(folder: Path) -> Iterator[Path]:
    """Serve commands; ``folder`` has an executable ``rolecall`` afterwards, to be put on a PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    at = f"/tmp/rolecall-warm-{secrets.token_hex(6)}"  # a socket's path must be short
    shim = folder / "rolecall"
    shim.write_text(CLIENT.format(python=sys.executable, socket=at))
    shim.chmod(0o755)
    server = subprocess.Popen([sys.executable, "-m", "tests.warm", at], cwd=ROOT, preexec_fn=dies_with_test())
    try:
        wait_until_sync(lambda: os.path.exists(at), "the commands are warm", 30)
        yield folder
    finally:
        server.terminate()
        server.wait(10)
        Path(at).unlink(missing_ok=True)


def serve(at: str) -> None:
    """Fork for each command, until this process is ended."""
    import coordinator
    import protocol
    from coordinator.cli import run  # before its module of that name is imported

    for package in (protocol, coordinator):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children: they tell by themselves
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(at + ".new")
        listener.listen(64)
        os.rename(at + ".new", at)
        while True:
            link, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _command(link, run)
            link.close()


def _command(link: socket.socket, run: Callable[[], int]) -> None:
    """In the forked process: become the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(link, 4, 3)
    told, size = b"", int.from_bytes(head, "big")
    while len(told) < size:
        told += link.recv(size - len(told))
    argv, folder, environment = json.loads(told)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115 - for life
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["rolecall", *argv]
    code = 1
    try:
        code = run()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:  # noqa: BLE001 - the top of a process, where Python would say the same
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        link.sendall(bytes([code & 255]))
        os._exit(code & 255)


if __name__ == "__main__":
    serve(sys.argv[1])
