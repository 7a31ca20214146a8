"""What is down of what the services need, and word of every change."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Literal

import structlog

from router.background import errors_logged
from router.calls.role import Role
from router.trace import RoleName

_log = structlog.get_logger("readiness")
Need = Literal["delegation", "execution", "answer", "retrieval", "store"]
"""A role's model, the passages, or the database."""


class Readiness:
    """A board on which whoever watches a part of the deployment says how it is."""

    def __init__(self) -> None:
        self._down: dict[str, tuple[list[Need], str]] = {}
        self._news = asyncio.Event()

    def say(self, source: str, needs: Collection[Need], why: str | None) -> None:
        """`source`, such as `engines.executor`, which `needs` depend on, is down, and `why`;
        None: it is there.
        """
        before = self._down.pop(source, None)
        if why is not None:
            self._down[source] = list(needs), why
        if (before and before[1]) == why:
            return
        if why is None:
            _log.info("readiness.up", source=source)
        else:
            _log.warning("readiness.down", source=source, why=why)
        self._news.set()
        self._news = asyncio.Event()

    def down(self, needs: Collection[Need]) -> str | None:
        """The reason why one of `needs` cannot be met; None where nothing is in the way."""
        return next(
            (
                f"{source}: {why}"
                for source, (of, why) in self._down.items()
                if set(of) & set(needs)
            ),
            None,
        )

    @property
    def all(self) -> dict[str, tuple[list[Need], str]]:
        """Everything that is down: by source, what depends on it and why."""
        return dict(self._down)

    async def changes(self) -> AsyncIterator[None]:
        """Once now, and after every change; those that come close together may count as one."""
        while True:
            news = self._news
            yield
            await news.wait()


_EVERY_S = 0.5
_FIRST_S = 1.0
_LONGEST_S = 30.0
NEEDS: dict[RoleName, Need] = {
    "delegation": "delegation",
    "execution": "execution",
    "answer": "answer",
}
"""What is missing where a role of a gateway is."""


async def watch_role(
    name: RoleName, role: Role, readiness: Readiness, probe: Callable[[RoleName], Awaitable[object]]
) -> None:
    """Say when no breaker of its replicas and of its fallbacks is closed, or its own calls keep
    failing, and when a call that worked has changed that; for ever. As nobody calls a gateway whose
    health is bad, `probe` does, as soon as a breaker lets a call through, and after pauses that
    double.
    """
    loop = asyncio.get_running_loop()
    pause_s = _FIRST_S
    due = 0.0
    while True:
        models = (role, *role.fallbacks)
        taken = [each for each in models if each.health.works]
        works = any(
            replica.endpoint.breaker.state == "closed"
            for each in taken
            for replica in each.replicas
        )
        readiness.say(f"roles.{name}", [NEEDS[name]], None if works else "all its calls fail")
        waits_s = [replica.endpoint.breaker.wait_s for each in models for replica in each.replicas]
        if works:
            pause_s = _FIRST_S
            due = 0.0
        elif loop.time() >= due and not min(waits_s):
            pause_s, due = min(2 * pause_s, _LONGEST_S), loop.time() + pause_s
            with errors_logged(_log, "role.probe_failed", role=name):
                await probe(name)
        await asyncio.sleep(_EVERY_S)
