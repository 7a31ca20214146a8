"""Routing: which version of the executor works on the sub-queries of a run."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from itertools import pairwise
from weakref import WeakKeyDictionary

import structlog

from router.background import at_most, errors_logged
from router.calls import Role
from router.errors import BadVersion
from router.ledger import Ledger
from router.search import Executor, RunContext
from router.trace import Execution
from router.versions.book import Traffic

_log = structlog.get_logger("versions")
_LOST = ("no_report", "model_failed")
"""If an execution by a candidate has one of these outcomes, another version works on the sub-query.
"""
_FRESH_S = 1.0
"""Seconds between two reads of the stored traffic (the versions in use). Another gateway may have
changed it.
"""


class VersionRouting:
    """An executor that passes each sub-query to the version that serves the run. A run keeps its
    version until it ends, even if the traffic (the versions in use) changes meanwhile.
    """

    def __init__(
        self,
        make: Callable[[str], Executor],
        configured: str,
        read: Callable[[], Awaitable[Traffic]],
        load: Callable[[str], Awaitable[object]],
        report: Callable[[str], None] = lambda _said: None,
    ) -> None:
        """`make`: returns the executor of a version. `configured`: the config's own model, which
        needs no loading. `read`: returns the stored traffic; raises `StoreFailed`. `load`: loads a
        version into the engine; raises `BadVersion` and `UpstreamError`. `report`: called with
        messages for the operator.
        """
        self._configured = configured
        self._read = read
        self._load = load
        self._report = report
        self.of = cache(make)
        """Returns the executor of a version."""
        self.traffic = Traffic(configured)
        """The versions that new runs use. Versions that could not be loaded are left out."""
        self._on_record: Traffic | None = None
        self._kept = WeakKeyDictionary[Ledger, Traffic]()
        self._refreshing = asyncio.Lock()
        self._news = asyncio.Event()

    @property
    def report_tokens(self) -> int:
        """Max tokens of an executor's report."""
        return self.of(self._configured).report_tokens

    @property
    def in_use(self) -> set[str]:
        """Names of the versions that running or new runs may use."""
        versions = set[str]()
        for traffic in (self.traffic, *self._kept.values()):
            versions.update(filter(None, (traffic.active, traffic.candidate)))
        return versions

    def role(self, context: RunContext) -> Role:
        """Return the role of the active version, even if a candidate serves the run. Callers use
        the role for estimates, which must not depend on the candidate.
        """
        return self.of(self._traffic(context).active).role(context)

    def serving(self, context: RunContext) -> str:
        """Return the name of the version that serves a run."""
        return self._traffic(context).serving(context.ledger.run_id)

    async def run(
        self,
        sub_query: str,
        index: int,
        context: RunContext,
    ) -> Execution:
        """See `Executor.run`. The version that serves the run works on the sub-query.

        If the engine does not have that version, the active version works on the sub-query instead.
        If the engine does not have the active version either, the configured model does. If a
        candidate fails, the active version works on the sub-query, too, so that a trial does not
        make a client's answer worse.
        """
        traffic = self._traffic(context)
        versions = list(dict.fromkeys((self.serving(context), traffic.active, self._configured)))
        steps_in = False
        for version, instead in pairwise(versions):
            execution = await self.of(version).run(sub_query, index, context, instead=steps_in)
            if _turned_away(execution, index, context.ledger):
                self._on_record = None  # load it again: a restarted engine has no versions
            elif version == traffic.active or execution.outcome not in _LOST:
                return execution
            _log.warning(
                "executor.instead", version=version, instead=instead, run_id=context.ledger.run_id
            )
            context.failures.pop(index, None)
            steps_in = True
        return await self.of(versions[-1]).run(sub_query, index, context, instead=steps_in)

    def reload(self) -> None:
        """Let `follow` load the versions in use again soon. Called after the engine was restarted,
        because a restarted engine has no versions loaded.
        """
        self._on_record = None
        self._news.set()

    async def refresh(self) -> None:
        """Read the stored traffic (the versions in use). If it has changed, load its versions, and
        use them for new runs. Raises `StoreFailed`, and `UpstreamError` if the engine fails.
        """
        async with self._refreshing:
            on_record = await self._read()
            if on_record == self._on_record:
                return
            self._on_record = on_record  # before the loading, so that `reload` can reset it
            traffic = Traffic(self._configured)
            try:
                if await self._ready(on_record.active):
                    candidate = on_record.candidate
                    complete = candidate is None or await self._ready(candidate)
                    traffic = on_record if complete else Traffic(on_record.active)
            except BaseException:
                self._on_record = None
                raise
            self.traffic = traffic

    async def follow(self) -> None:
        """Refresh the traffic regularly, and soon after `reload`. Never returns."""
        while True:
            async with at_most(_FRESH_S):
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
            self._report(f"executor version {version} is not in use here: {error}")
            return False
        return True

    def _traffic(self, context: RunContext) -> Traffic:
        return self._kept.setdefault(context.ledger.of_run, self.traffic)


def _turned_away(execution: Execution, index: int, ledger: Ledger) -> bool:
    """Return whether the endpoint refused the first call of an execution, as engines do if they
    have no model with the version's name.
    """
    failed_at_once = execution.outcome == "model_failed" and not execution.conversation.outputs
    return failed_at_once and ledger.last_outcome(index) == "refused"
