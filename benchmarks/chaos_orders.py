"""Tells fault proxies in another process what to do, and hears what they have seen."""

from collections.abc import Mapping, Sequence

import aiohttp
import msgspec

from benchmarks.chaos_proxy import AllSeen, State


class Proxies:
    """Those of one process of `benchmarks.chaos_proxy`."""

    def __init__(self, orders: str, deployments: Sequence[str]) -> None:
        """`orders`: where they take them. `deployments`: theirs in order, as the ledger names them."""
        self._orders, self.deployments = orders, deployments
        self.attempts: Mapping[str, list[str]] = {}
        """Request ids by deployment; known once they were asked what they have seen."""
        self.faults: Mapping[str, dict[str, int]] = {}
        """Calls by deployment, by what went wrong with them."""

    async def share(self, share: float) -> None:
        """Let this share of calls go wrong from now on."""
        await self._order("POST", f"share/{share}")

    async def become(self, proxy: int, state: State) -> None:
        """Change a proxy's state."""
        await self._order("POST", f"state/{proxy}/{state}")

    async def look(self) -> None:
        """Ask what they have seen."""
        seen = msgspec.json.decode(await self._order("GET", "seen"), type=AllSeen)
        by_name = list(zip(self.deployments, seen.proxies, strict=True))
        self.attempts = {name: one.attempts for name, one in by_name}
        self.faults = {name: one.faults for name, one in by_name} | {"retrieval": seen.retrieval}

    async def _order(self, method: str, path: str) -> bytes:
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.request(method, f"{self._orders}/{path}") as response,
        ):
            return await response.read()
