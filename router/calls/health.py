"""Readiness of the gateway's dependencies, and notification of changes."""

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
"""A dependency of the gateway's services: the model of a role, the retrieval, or the database."""


class Readiness:
    """Registry of the components' states. Watchers report whether a component is up, and the health
    service reads which dependencies are unavailable.
    """

    def __init__(self) -> None:
        self._parts = dict[str, tuple[list[Need], str | None]]()
        self._news = asyncio.Event()

    def report(self, source: str, needs: Collection[Need], why: str | None) -> None:
        """Report whether a component is up.

        `source`: name of the component, such as `engines.executor`. `needs`: the dependencies that
        are not available while the component is down. `why`: the reason why it is down; None if it
        is up.
        """
        before = self.all.get(source)
        self._parts[source] = list(needs), why
        now = self.all.get(source)
        # A new reason alone is not a change, because a reason may contain the time or id of an
        # error
        if (before and before[0]) == (now and now[0]):
            return
        if why is None:
            _log.info("readiness.up", source=source)
        else:
            _log.warning("readiness.down", source=source, why=why)
        self._news.set()
        self._news = asyncio.Event()

    def down(self, needs: Collection[Need]) -> str | None:
        """Return the reason why one of the dependencies `needs` is not available; None if all of
        them are.
        """
        return next(
            (f"{source}: {why}" for source, (of, why) in self.all.items() if set(of) & set(needs)),
            None,
        )

    @property
    def all(self) -> dict[str, tuple[list[Need], str]]:
        """All components that are down, by name. Each has the dependencies that it makes
        unavailable, and the reason why it is down.
        """
        return {
            source: (needs, why) for source, (needs, why) in self._parts.items() if why is not None
        }

    @property
    def parts(self) -> dict[str, bool]:
        """All components that were reported so far, by name; True for a component that is up."""
        return {source: why is None for source, (_, why) in self._parts.items()}

    async def changes(self) -> AsyncIterator[None]:
        """Yield once immediately, and again after every change. Several changes in quick succession
        may cause only one yield.
        """
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
    """Watch the calls of a role, and report to `readiness` whether the role works. Never returns.

    A role is down while neither its model nor any of its fallbacks works. A model does not work
    while its calls keep failing, or while the circuit breakers of all its replicas are open.

    A gateway that is reported as down gets no requests, so no successful request can show that the
    model works again. Instead, `probe` makes a call as soon as a breaker lets one through, and
    again after pauses that double each time.
    """
    clock = asyncio.get_running_loop().time
    models = (role, *role.fallbacks)
    pause_s = _FIRST_S
    due = 0.0
    while True:
        works = any(_works(model) for model in models)
        readiness.report(f"roles.{name}", [name], None if works else _failures(models))

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
    """Return True if the role's calls are not failing persistently, and the breaker of at least one
    of its replicas is closed.
    """
    states = [replica.endpoint.breaker.state for replica in model.replicas]
    return model.health.works and "closed" in states


def _failures(models: Iterable[Role]) -> str:
    """Return the reason why a role is down, with the last error of each model's first endpoint."""
    causes = (f"; {model.model.endpoint}: {model.endpoint.last_failure}" for model in models)
    return "".join(["all calls of this role fail", *causes])


def _wait_s(models: Iterable[Role]) -> float:
    """Return the seconds until the first breaker among all replicas of `models` lets a call
    through.
    """
    replicas = chain.from_iterable(model.replicas for model in models)
    return min(replica.endpoint.breaker.wait_s for replica in replicas)
