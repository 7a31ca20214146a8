"""One executor run for all runs that ask the same sub-query concurrently, or shortly after."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cachetools import TTLCache
from msgspec.structs import replace

from router.calls import Role
from router.protocol import NO_EVIDENCE
from router.protocol.sub_queries import normal_question
from router.search.context import RunContext
from router.search.executor import Executes
from router.trace import Conversation, Execution
from router.trace.values import SearchDone

_MAX_REPORTS = 10_000
"""Max reports kept; the least recently used is evicted first."""


class Versioned(Executes, Protocol):
    """An executor with several versions."""

    def serving(self, context: RunContext) -> str:
        """Return the version that serves a run."""


class _Key(NamedTuple):
    """Everything that a report depends on and that may differ between runs of one process."""

    tenant: str
    sub_query: str
    version: str
    form: str
    index_id: str | None


@dataclass(frozen=True, slots=True)
class _Shared:
    """A report with its execution, and the run that paid for it."""

    execution: Execution
    run_id: str

    def given(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """Return the execution for another run, and repeat its search events there."""
        for search in self.execution.searches:
            titles = tuple(passage.title for passage in search.passages)
            context.on_event(SearchDone(index, search.query, titles))
        return replace(self.execution, sub_query=sub_query, shared_from=(self.run_id,))


@dataclass(slots=True)
class _Flight:
    """A sub-query under way: one run leads, the others wait for its report."""

    lead: asyncio.Lock = field(default_factory=asyncio.Lock)
    parties: int = 0
    shared: _Shared | None = None
    over: bool = False
    """True once the leader has reported or failed for a reason that is not its own run's."""


@dataclass(slots=True, eq=False)
class ReportCounts:
    """Sub-queries by the source of their report."""

    kept: int = 0
    """Answered from a stored report."""
    shared: int = 0
    """Shared with another run that was working on the same sub-query."""
    worked: int = 0
    """Worked on by this run's executor."""


class ReportCache:
    """An executor that shares reports between runs with the same sub-query.

    A run that waits for another run's report pays nothing, and waits no longer than its own search
    deadline. If the leading run is cancelled, or runs out of time or budget, the next one leads.
    Failures are never shared: after one, every run works on its own.
    """

    def __init__(
        self,
        executor: Versioned,
        index: Callable[[], str | None],
        *,
        keep_s: float = 300.0,
        counts: ReportCounts | None = None,
    ) -> None:
        """`index`: returns the identifier of the current index; None if it is unknown, and then
        only concurrent runs share. `keep_s`: how long reports are kept, in seconds.
        `counts`: kept up to date for metrics.
        """
        self._executor = executor
        self._index = index
        self._flights: dict[_Key, _Flight] = {}
        self._kept: TTLCache[_Key, _Shared] = TTLCache(
            _MAX_REPORTS, keep_s, lambda: asyncio.get_running_loop().time()
        )
        self.counts = counts or ReportCounts()

    @property
    def report_tokens(self) -> int:
        """Max tokens of a report."""
        return self._executor.report_tokens

    def role(self, context: RunContext) -> Role:
        """See `Executes.role`."""
        return self._executor.role(context)

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """See `Executor.run`. `shared_from` of the result names the run that paid for it."""
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
                return Execution(
                    sub_query,
                    NO_EVIDENCE,
                    "timed_out",
                    (),
                    Conversation(()),
                    key.version,
                )
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
            if not flight.parties or flight.over:
                self._drop(key, flight)
        return await self._executor.run(sub_query, index, context)

    async def _lead(
        self,
        flight: _Flight,
        key: _Key,
        sub_query: str,
        index: int,
        context: RunContext,
    ) -> Execution:
        """Work on the sub-query on behalf of all runs that wait for it."""
        try:
            execution = await self._executor.run(sub_query, index, context)
        except Exception:
            flight.over = True
            raise
        # Another run may have more time or budget, so the next one tries again.
        flight.over = execution.outcome not in ("timed_out", "budget_exhausted")
        by_version = context.ledger.worked_on(index) <= {key.version}  # no other one stepped in
        if execution.outcome == "reported" and by_version:
            flight.shared = _Shared(execution, context.ledger.run_id)
            # Keep it only if the index was not replaced meanwhile.
            if key.index_id is not None and key.index_id == self._index():
                self._kept[key] = flight.shared
        return execution

    def _key(self, sub_query: str, context: RunContext) -> _Key:
        return _Key(
            context.ledger.tenant,
            normal_question(sub_query),
            self._executor.serving(context),
            context.reporting.form,
            self._index(),
        )

    def _drop(self, key: _Key, flight: _Flight) -> None:
        """Let the next run that asks start a new flight."""
        if self._flights.get(key) is flight:
            del self._flights[key]
