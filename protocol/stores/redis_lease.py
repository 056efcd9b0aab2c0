"""Leases with terms: who leads which space, by the server's clock.

Guarantees: one holder at a time, a higher term for every new holder; an append with an older term is refused by the
log. Never trusts the holder's own clock beyond the deadline that it computed when the lease was confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.keys import Keys
from protocol.stores.client import Client, guard
from protocol.stores.scripts import Arg, Scripts


class Leases:
    """Takes, renews and releases leases of spaces."""

    def __init__(self, client: Client, keys: Keys, scripts: Scripts | None = None) -> None:
        self._keys = keys
        self._scripts = scripts or Scripts(client)

    async def acquire(self, space: str, holder: str, ttl_ms: int) -> int | None:
        """The term, where ``holder`` has the lease now; None where another holds it or there is no such space."""
        term = int(await self._scripts.run("lease", [self._keys.space(space).meta], ["take", holder, ttl_ms]))
        return term if term > 0 else None

    async def renew(self, spaces: Sequence[str], holder: str, ttl_ms: int) -> set[str]:
        """Renew many leases in one round trip; the spaces that are still held."""
        calls: list[tuple[list[str], list[Arg]]] = [
            ([self._keys.space(s).meta], ["renew", holder, ttl_ms]) for s in spaces
        ]
        answers = await self._scripts.run_many("lease", calls)
        for answer in answers:
            if isinstance(answer, Exception):
                with guard("lease"):
                    raise answer
        return {space for space, term in zip(spaces, answers, strict=True) if int(term) > 0}

    async def release(self, space: str, holder: str) -> None:
        """Give the lease up, so that another leader need not wait for its end."""
        await self._scripts.run("lease", [self._keys.space(space).meta], ["release", holder, 0])
