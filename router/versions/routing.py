"""The versions of the executor that are in use, and which of them works in which run."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from itertools import pairwise
from weakref import WeakKeyDictionary

import structlog

from router.background import errors_logged
from router.calls import Role
from router.errors import BadVersion
from router.ledger import Ledger
from router.search import Executor, RunContext
from router.trace import Execution
from router.versions.book import Traffic

_log = structlog.get_logger("versions")
_FRESH_S = 1.0
"""How long it takes at most until a change by another gateway is heard of."""


class VersionRouting:
    """An executor whose sub-queries go to the run's version, which keeps the run to its end."""

    def __init__(
        self,
        make: Callable[[str], Executor],
        configured: str,
        read: Callable[[], Awaitable[Traffic]],
        load: Callable[[str], Awaitable[object]],
        tell: Callable[[str], None] = lambda _said: None,
    ) -> None:
        """`make`: the executor of a version. `configured`: the version that needs no loading.
        `read`: the traffic on record; raises `StoreFailed`. `load`: makes the engine know a
        version; raises `BadVersion` and `UpstreamError`.
        """
        self._configured = configured
        self._read = read
        self._load = load
        self._tell = tell
        self.of = cache(make)
        """The executor of one version."""
        self.traffic = Traffic(configured)
        """That of runs that begin now; without versions that could not be loaded."""
        self._on_record: Traffic | None = None
        self._kept: WeakKeyDictionary[Ledger, Traffic] = WeakKeyDictionary()
        self._refreshing = asyncio.Lock()
        self._news = asyncio.Event()

    @property
    def report_tokens(self) -> int:
        """The most tokens of a report."""
        return self.of(self._configured).report_tokens

    @property
    def in_use(self) -> set[str]:
        """The versions that runs work with, or may begin to."""
        traffics = (self.traffic, *self._kept.values())
        return {
            version for each in traffics for version in (each.active, each.candidate) if version
        }

    def role(self, context: RunContext) -> Role:
        """The active version's: what somebody else does with a candidate would tell nothing of
        it.
        """
        return self.of(self._traffic(context).active).role(context)

    def serving(self, context: RunContext) -> str:
        """The version that works in a run."""
        return self._traffic(context).serving(context.ledger.run_id)

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """See `Executor.run`. The run's version works on it.

        If the engine does not have that version, the active one steps in, and for the active one
        the configured model. If a candidate fails, the active version steps in too, so that no
        client suffers from a trial.
        """
        traffic = self._traffic(context)
        versions = list(dict.fromkeys((self.serving(context), traffic.active, self._configured)))
        steps_in = False
        for version, instead in pairwise(versions):
            execution = await self.of(version).run(sub_query, index, context, instead=steps_in)
            if _turned_away(execution, index, context.ledger):
                self._on_record = None  # an engine that was started anew has lost it
            elif version == traffic.active or execution.outcome not in (
                "no_report",
                "model_failed",
            ):
                return execution
            _log.warning(
                "executor.instead", version=version, instead=instead, run_id=context.ledger.run_id
            )
            context.failures.pop(index, None)
            steps_in = True
        return await self.of(versions[-1]).run(sub_query, index, context, instead=steps_in)

    async def require(self, version: str) -> None:
        """Make the engine know a version that a run is to work with. Raises `BadVersion` and
        `UpstreamError`.
        """
        if version != self._configured:
            await self._load(version)

    def reload(self) -> None:
        """Load what is in use anew, soon: the engine was started anew, and has lost it."""
        self._on_record = None
        self._news.set()

    async def refresh(self) -> None:
        """Read the traffic, and load what is new in it. Raises what `read` raises, and
        `UpstreamError`.
        """
        async with self._refreshing:
            on_record = await self._read()
            if on_record == self._on_record:
                return
            # `reload` may take it back meanwhile
            self._on_record, traffic = on_record, Traffic(self._configured)
            try:
                if await self._ready(on_record.active):
                    whole = on_record.candidate is None or await self._ready(on_record.candidate)
                    traffic = on_record if whole else Traffic(on_record.active)
            except BaseException:
                self._on_record = None
                raise
            self.traffic = traffic

    async def follow(self) -> None:
        """Keep up with the record, for ever."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FRESH_S):
                    await self._news.wait()
            self._news.clear()
            with errors_logged(_log, "traffic.unread"):
                await self.refresh()

    async def _ready(self, version: str) -> bool:
        if version == self._configured:
            return True
        try:
            await self._load(version)
        except BadVersion as error:
            _log.warning("version.not_loaded", version=version, error=str(error))
            self._tell(f"executor version {version} is not in use here: {error}")
            return False
        return True

    def _traffic(self, context: RunContext) -> Traffic:
        own = Traffic(context.executor) if context.executor else self.traffic
        return self._kept.setdefault(context.ledger.of_run, own)


def _turned_away(execution: Execution, index: int, ledger: Ledger) -> bool:
    """Whether its model refused its first call, as an engine does that has no model of that
    name.
    """
    unheard = execution.outcome == "model_failed" and not execution.conversation.outputs
    return unheard and ledger.last_outcome(index) == "refused"
