"""The offline model, started where no endpoint is named: a local OpenAI-compatible server that ships with rolecall.

Guarantees: an endpoint that the settings name is used as it is and nothing is started; what was started here ends with
the review, also where that is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from protocol.errors import ModelError
from protocol.kit.settings import Settings
from review.report import Model

READY_S = 20.0
WELL_KNOWN = "https://api.openai.com/v1"
"""Where the client library goes when a model of the list names no address."""


class OfflineModel:
    """An async context. ``model``: who will word the summary; ``variables``: what the fleet's environment needs."""

    def __init__(self, env: Mapping[str, str], logs: Path) -> None:
        self._env = env
        self._logs = logs
        self._process: asyncio.subprocess.Process | None = None
        self.model = Model("", offline=False)
        self.variables: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        named = Settings.load(self._env, Path.cwd()).models
        if named:
            self.model = Model(named[0].base_url or WELL_KNOWN, offline=False)
            return self
        with (self._logs / "offline-model.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "workers.offline", "--parent", str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None, "it was asked for"
        try:
            url = (await asyncio.wait_for(self._process.stdout.readline(), READY_S)).decode().strip()
        except TimeoutError:
            url = ""
        if not url:
            await self.__aexit__()
            raise ModelError(
                "the offline model did not start", kind="unreachable", retryable=False,
                mend=f"see {self._logs / 'offline-model.log'}, or name an endpoint with OPENAI_BASE_URL",
            )  # fmt: skip
        self.model = Model(url, offline=True)
        self.variables = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "offline"}
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            await process.wait()
