"""Readiness of what the services need, and notification of its changes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from itertools import chain
from typing import Literal

import structlog

from router.background import errors_logged
from router.calls.role import Role
from router.trace import RoleName

_log = structlog.get_logger("readiness")
Need = Literal[RoleName, "retrieval", "store"]
"""A role's model, the passages, or the database."""


class Readiness:
    """Readiness registry: watchers report whether a component is up."""

    def __init__(self) -> None:
        self._down: dict[str, tuple[list[Need], str]] = {}
        self._news = asyncio.Event()

    def report(self, source: str, needs: Collection[Need], why: str | None) -> None:
        """Report that `source`, such as `engines.executor`, is down, and `why`; None if it is up.
        `needs`: what depends on it.
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
        """Return the reason why one of `needs` is not met; None if all are."""
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
        """Everything that is down, by source: what depends on it, and why."""
        return dict(self._down)

    async def changes(self) -> AsyncIterator[None]:
        """Yield immediately and after every change. Quick changes may count as one."""
        while True:
            news = self._news
            yield
            await news.wait()


_EVERY_S = 0.5
_FIRST_S = 1.0
_LONGEST_S = 30.0


async def watch_role(
    name: RoleName,
    role: Role,
    readiness: Readiness,
    probe: Callable[[RoleName], Awaitable[object]],
) -> None:
    """Report a role as down while no breaker of its replicas or fallbacks is closed, or its calls
    keep failing. Never returns.

    An unhealthy gateway gets no requests, so `probe` makes a call as soon as a breaker lets one
    through, and again after pauses that double.
    """
    clock = asyncio.get_running_loop().time
    models = (role, *role.fallbacks)
    pause_s = _FIRST_S
    due = 0.0
    while True:
        works = any(_works(model) for model in models)
        readiness.report(f"roles.{name}", [name], None if works else "all its calls fail")

        if works:
            pause_s = _FIRST_S
            due = 0.0
        elif clock() >= due and not _wait_s(models):
            due = clock() + pause_s
            pause_s = min(2 * pause_s, _LONGEST_S)
            with errors_logged(_log, "role.probe_failed", role=name):
                await probe(name)
        await asyncio.sleep(_EVERY_S)


def _works(model: Role) -> bool:
    """Return whether the calls of a role work and a breaker of its replicas is closed."""
    states = [replica.endpoint.breaker.state for replica in model.replicas]
    return model.health.works and "closed" in states


def _wait_s(models: Iterable[Role]) -> float:
    """Return the seconds until a breaker lets a call through."""
    replicas = chain.from_iterable(model.replicas for model in models)
    return min(replica.endpoint.breaker.wait_s for replica in replicas)
