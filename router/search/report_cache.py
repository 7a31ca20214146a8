"""Cache of reports: runs that have the same sub-query at the same time, or within a few minutes,
share one execution of it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cachetools import TTLCache
from msgspec.structs import replace

from router.background import loop_time
from router.calls import Role
from router.frozen import Frozen
from router.protocol import NO_EVIDENCE
from router.protocol.sub_queries import normal_question
from router.search.context import RunContext
from router.search.executor import Executes
from router.trace import Execution
from router.trace.scope import Scope

_MAX_REPORTS = 10_000
"""Max reports kept; the least recently used is evicted first."""


class Versioned(Executes, Protocol):
    """An executor that may have several versions in service at the same time."""

    def serving(self, context: RunContext) -> str:
        """Return the name of the executor version that works in the run of `context`."""


class _Key(NamedTuple):
    """Key of a cached report: everything that the report depends on and that may differ between
    the runs of one process.
    """

    tenant: str
    sub_query: str
    version: str
    form: str
    scope: Scope
    index_id: str | None


class _Shared(Frozen):
    """An execution whose report may be shared, and the run that paid for it."""

    execution: Execution
    run_id: str

    def given(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """Return the execution for the run of `context`, with `shared_from` set to the run that
        made it. Emit the execution's search events in the run of `context`.
        """
        for search in self.execution.searches:
            context.on_event(search.event(index))
        return replace(self.execution, sub_query=sub_query, shared_from=(self.run_id,))


@dataclass(slots=True)
class _Flight:
    """A sub-query that is being worked on. One run, the leader, works on it, and the other runs
    with the same sub-query wait for the leader's report.
    """

    lead: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock that the leader holds while it works on the sub-query."""
    parties: int = 0
    """Number of runs that work on the sub-query or wait for its report."""
    shared: _Shared | None = None
    """The leader's execution, once it has a report."""
    over: bool = False
    """True once the leader has ended its work, with or without a report. Exception: False if the
    leader's run was cancelled, or ran out of time or budget; then another run can lead.
    """


@dataclass(slots=True, eq=False)
class ReportCounts:
    """Counts of sub-queries, by the source of their report, for metrics."""

    kept: int = 0
    """Sub-queries whose report was in the cache."""
    shared: int = 0
    """Sub-queries that waited for the report of another run's executor."""
    worked: int = 0
    """Sub-queries that the run's own executor worked on."""


class ReportCache:
    """An executor that shares reports between runs with the same sub-query. It wraps the executor
    that does the work.

    A run that waits for another run's report pays nothing, and waits no longer than until its own
    search deadline. If the run that does the work is cancelled, or runs out of time or budget, the
    next waiting run does it. Failures are never shared: after a failure, each waiting run works on
    the sub-query itself.
    """

    def __init__(
        self,
        executor: Versioned,
        index: Callable[[Scope], str | None],
        *,
        keep_s: float = 300.0,
        counts: ReportCounts | None = None,
    ) -> None:
        """`executor`: works on the sub-queries. `index`: returns an identifier of the contents of a
        scope's indexes, or None if their contents are unknown. Without an identifier, reports are
        shared only between concurrent runs. `keep_s`: how long reports are kept, in seconds.
        `counts`: the counters to increment.
        """
        self._executor = executor
        self._index = index
        self._flights = dict[_Key, _Flight]()
        self._kept = TTLCache[_Key, _Shared](_MAX_REPORTS, keep_s, loop_time)
        self.counts = counts or ReportCounts()

    @property
    def report_tokens(self) -> int:
        """Max tokens of a report."""
        return self._executor.report_tokens

    def role(self, context: RunContext) -> Role:
        """See `Executes.role`."""
        return self._executor.role(context)

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """See `Executor.run`. If the execution comes from another run, `shared_from` names that
        run.
        """
        if not context.sharing:
            return await self._executor.run(sub_query, index, context)
        key = self._key(sub_query, context)
        kept = self._kept.get(key)
        if kept and not any(kept.execution is wasted for wasted in context.wasted):
            self.counts.kept += 1
            return kept.given(sub_query, index, context)

        flight = self._flights.setdefault(key, _Flight())
        flight.parties += 1
        try:
            try:
                async with asyncio.timeout_at(context.search_deadline):
                    await flight.lead.acquire()
            except TimeoutError:
                return Execution(sub_query, NO_EVIDENCE, "timed_out", executor=key.version)
            try:
                if flight.shared:
                    self.counts.shared += 1
                    return flight.shared.given(sub_query, index, context)
                self.counts.worked += 1
                if not flight.over:
                    return await self._lead(
                        flight,
                        key,
                        sub_query,
                        index,
                        context,
                    )
            finally:
                flight.lead.release()
        finally:
            flight.parties -= 1
            # Later runs with this sub-query do not wait for this work.
            if (not flight.parties or flight.over) and self._flights.get(key) is flight:
                del self._flights[key]
        return await self._executor.run(sub_query, index, context)

    async def _lead(
        self,
        flight: _Flight,
        key: _Key,
        sub_query: str,
        index: int,
        context: RunContext,
    ) -> Execution:
        """Work on the sub-query as the leader, and keep the report for the runs that wait."""
        try:
            execution = await self._executor.run(sub_query, index, context)
        except Exception:
            flight.over = True
            raise
        # Another run may have more time or budget, so the next waiting run tries again.
        flight.over = execution.outcome not in ("timed_out", "budget_exhausted")
        # False if another version of the executor did a part of the work
        by_version = context.ledger.worked_on(index) <= {key.version}
        if execution.outcome == "reported" and by_version:
            flight.shared = _Shared(execution, context.ledger.run_id)
            # Cache the report only if the index was not replaced in the meantime, and no call of
            # the reranker failed, because the index's identifier includes the reranker.
            failed = any(getattr(search.reranking, "error", None) for search in execution.searches)
            if not failed and key.index_id is not None and key.index_id == self._index(key.scope):
                self._kept[key] = flight.shared
        return execution

    def _key(self, sub_query: str, context: RunContext) -> _Key:
        return _Key(
            context.ledger.tenant,
            normal_question(sub_query),
            self._executor.serving(context),
            context.reporting.form,
            context.scope,
            self._index(context.scope),
        )
