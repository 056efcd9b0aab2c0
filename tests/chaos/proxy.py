"""A TCP proxy that can drop everything without closing anything, as a broken network does.

Guarantees: after `drop` no byte passes either way and no end hears of it; after `restore` new connections work and the
old ones stay dead without a word (a router forgot them). Runs in the test's event loop.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards to one port on loopback."""

    def __init__(self, target: int) -> None:
        self.accepted = 0
        self._target = target
        self._dropping = False
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._open: list[asyncio.StreamWriter] = []

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._stop_pumps()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for writer in self._open:
            writer.close()

    def drop(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._dropping = True
        self._stop_pumps()

    def restore(self) -> None:
        """New connections work again."""
        self._dropping = False

    def _stop_pumps(self) -> None:
        for pump in self._pumps:
            pump.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._open.append(writer)  # kept open: whoever is cut off must not see an end
        if self._dropping:
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._open.append(far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
            sink.close()
        except OSError:
            sink.close()
