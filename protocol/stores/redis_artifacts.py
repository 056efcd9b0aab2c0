"""Artifacts on Redis: what is too large for a record, by content.

Guarantees: an artifact is whole or not there, and read back only if its bytes have the digest that names it; chunks of
at most 1 MB; 16 MB an artifact and 256 MB a space (settings), refused by name beyond that. What no record names within
an hour goes by itself. Never overwrites: the same content is the same artifact.
"""

from __future__ import annotations

import hashlib
from typing import Final

from protocol.errors import FenceLost, StoreError, StoreFull
from protocol.keys import Keys
from protocol.ports import ArtifactRef as ArtifactRef  # its first home: imported from here as well
from protocol.ports import Dispatch
from protocol.stores.client import Client, awaited, guard
from protocol.stores.scripts import Scripts

CHUNK: Final = 1024 * 1024
ARTIFACT_MAX_BYTES: Final = 16 * CHUNK
SPACE_MAX_BYTES: Final = 256 * CHUNK
UNNAMED_TTL_MS: Final = 3_600_000


class Artifacts:
    """The artifacts of every space on one server."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        scripts: Scripts | None = None,
        *,
        artifact_max_bytes: int = ARTIFACT_MAX_BYTES,
        space_max_bytes: int = SPACE_MAX_BYTES,
        unnamed_ttl_ms: int = UNNAMED_TTL_MS,
    ) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts or Scripts(client)
        self._artifact_max = artifact_max_bytes
        self._space_max = space_max_bytes
        self._ttl_ms = unnamed_ttl_ms

    async def put(self, space: str, data: bytes) -> ArtifactRef:
        """Store ``data``, to be named within the hour. Raises StoreFull past a limit."""
        if len(data) > self._artifact_max:
            raise StoreFull(
                f"an artifact of {len(data)} bytes is larger than {self._artifact_max}",
                op="put",
                retryable=False,
                mend="deliver it in parts, or less of it",
            )
        ref = ArtifactRef(hashlib.sha256(data).hexdigest(), len(data))
        chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)] or [b""]
        await self._keep("put", space, ref, None, chunks)
        return ref

    async def name(self, space: str, ref: ArtifactRef, dispatch: Dispatch | None = None) -> None:
        """Make ``ref`` stay: a record names it. With a dispatch only while the attempt is its owner's (FenceLost)."""
        await self._keep("name", space, ref, dispatch, [])

    async def get(self, space: str, sha256: str) -> bytes:
        """The bytes. Raises StoreError where there is no such artifact, or where it is damaged."""
        with guard("artifact"):
            chunks: list[bytes] = await awaited(self._client.lrange(self._keys.space(space).art(sha256), 0, -1))
        if not chunks:
            raise StoreError(f"space {space!r} has no artifact {sha256!r}", op="get", retryable=False)
        data = b"".join(chunks)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StoreError(f"artifact {sha256!r} of {space!r} is damaged", op="get", retryable=False)
        return data

    async def drop(self, space: str, sha256: str) -> bool:
        """Remove an artifact; False where there was none. Its bytes count until the space is near its limit."""
        keys = self._keys.space(space)
        with guard("artifact"):
            found: int = await awaited(self._client.delete(keys.art(sha256)))
            if found:  # listed as gone: the next put that comes near the limit takes it out of the sum
                await awaited(self._client.hset(keys.arts, sha256, "0:0"))
        return bool(found)

    async def _keep(
        self, op: str, space: str, ref: ArtifactRef, dispatch: Dispatch | None, chunks: list[bytes]
    ) -> None:
        keys = self._keys.space(space)
        claim = (dispatch.task, dispatch.attempt, dispatch.owner) if dispatch else ("", 0, "")
        answer = await self._scripts.run(
            "keep",
            [keys.art(ref.sha256), keys.arts, keys.tasks],
            [op, ref.sha256, ref.size, self._space_max, self._ttl_ms, *claim, *chunks],
        )
        word = answer[0].decode()
        if word == "lost":
            raise FenceLost(f"artifact {ref.sha256!r}: the attempt is not this worker's any more: {answer[1].decode()}")
        if word == "full":
            raise StoreFull(
                f"space {space!r} holds {answer[1]} bytes of artifacts, {ref.size} more are past {self._space_max}",
                op=op,
                retryable=False,
                mend="archive the space, or deliver less",
            )
        if word == "missing":
            raise StoreError(f"space {space!r} has no artifact {ref.sha256!r}: put it first", op=op, retryable=False)
