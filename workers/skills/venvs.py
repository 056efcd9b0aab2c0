"""Environments for skills that have a ``requirements.txt``: one for each content of that file.

Guarantees: the fleet's own environment is never touched: packages go to ``<data>/skills/<key>-<digest>``, a virtual
environment made on first use (or by ``skills check``), under a lock, so that several workers make it once; a half-made
one is made anew. The digest covers the requirements and this Python's version. Nothing of the fleet's environment is
importable there, and pip sees none of the fleet's variables.
"""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from protocol.record import digest
from workers.skills.manifest import Skill

_READY: Final = ".ready"
_PATIENCE_S: Final = 600.0
_PIP_SEES: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


class VenvFailed(Exception):
    """The environment of a skill can't be made. ``log`` is what the tools said."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class Venvs:
    """The environments below one data directory. ``env`` is the worker's environment."""

    def __init__(self, data_dir: Path | None, env: Mapping[str, str]) -> None:
        self._data = data_dir
        self._env = {name: value for name, value in env.items() if _pip_sees(name)}

    def place(self, skill: Skill) -> Path | None:
        """The directory of its environment, there or not; None for a skill without requirements."""
        wanted = skill.requirements
        if wanted is None:
            return None
        if self._data is None:
            raise VenvFailed(f"skill {skill.key!r} has requirements, but there is no data directory: set ROLECALL_DATA")
        version = f"{sys.implementation.cache_tag}-{sys.platform}"
        return self._data / "skills" / f"{skill.key}-{digest(wanted.read_bytes(), version)[:16]}"

    async def python(self, skill: Skill) -> str:
        """The interpreter for ``skill``; makes its environment if it is not there. Raises `VenvFailed`."""
        place = self.place(skill)
        if place is None:
            return sys.executable
        python = place / "bin" / "python"
        if (place / _READY).exists() and python.exists():
            return str(python)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with (place.parent / f"{place.name}.lock").open("w") as lock:
                await _locked(lock.fileno())
                if not ((place / _READY).exists() and python.exists()):
                    await self._make(skill, place, python)
        except OSError as error:
            raise VenvFailed(f"{place} can't be made: {error.strerror}") from None
        return str(python)

    async def _make(self, skill: Skill, place: Path, python: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)
        # The pip of this environment may work on another one; without one, the new environment gets a pip first.
        here = _pip_reaches_out()
        make = ["-m", "venv", *(["--without-pip"] if here else [])]
        await self._tool(skill, [sys.executable, "-I", *make, str(place)], place.parent)
        pip = [sys.executable, "-I", "-m", "pip", "--python", str(python)] if here else [str(python), "-I", "-m", "pip"]
        install = ["install", "--disable-pip-version-check", "--no-input", "--quiet", "-r", str(skill.requirements)]
        await self._tool(skill, [*pip, *install], skill.folder)
        (place / _READY).touch()

    async def _tool(self, skill: Skill, command: list[str], cwd: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=cwd,
            env=self._env,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), _PATIENCE_S)
        except TimeoutError:
            raise VenvFailed(f"the requirements of skill {skill.key!r} took longer than {_PATIENCE_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            text = said.decode("utf-8", "replace").strip()
            last = text.splitlines()[-1] if text else f"exit code {process.returncode}"
            raise VenvFailed(f"the requirements of skill {skill.key!r} can't be installed: {last}", log=text[-16_384:])


def _pip_reaches_out() -> bool:
    """Whether this environment's pip knows ``--python`` (22.3)."""
    try:
        major, minor = metadata.version("pip").split(".")[:2]
        return (int(major), int(minor)) >= (22, 3)
    except (metadata.PackageNotFoundError, ValueError):
        return False


def _pip_sees(name: str) -> bool:
    return name in _PIP_SEES or name.upper() in _PROXIES or name.startswith("PIP_")


async def _locked(descriptor: int) -> None:
    """An exclusive lock, which the kernel frees when its holder dies; polled, so that it never blocks the loop."""
    waited = 0.0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if waited > _PATIENCE_S:
                raise VenvFailed("another process has been making this environment for too long") from None
        waited += 0.1
        await asyncio.sleep(0.1)
