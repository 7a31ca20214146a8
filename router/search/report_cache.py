"""Finished reports, kept for a while for runs that ask the same sub-query."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cachetools import TTLCache
from msgspec.structs import replace

from router.calls import Role
from router.protocol.sub_queries import normal_question
from router.search.context import RunContext
from router.search.executor import Executes
from router.trace import Execution
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
class _Kept:
    """A report with its execution, and the run that paid for it."""

    execution: Execution
    run_id: str

    def given(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """Return the execution for another run, and repeat its search events there."""
        for search in self.execution.searches:
            titles = tuple(passage.title for passage in search.passages)
            context.on_event(SearchDone(index, search.query, titles))
        return replace(self.execution, sub_query=sub_query, shared_from=(self.run_id,))


@dataclass(slots=True, eq=False)
class ReportCounts:
    """Sub-queries by the source of their report."""

    kept: int = 0
    """Answered from a kept report."""
    worked: int = 0
    """Worked on by this run's executor."""


class ReportCache:
    """An executor that gives a finished report to later runs with the same sub-query, which pay
    nothing for it. Failures are not kept, and runs at the same time work on their own.
    """

    def __init__(
        self,
        executor: Versioned,
        index: Callable[[], str | None],
        *,
        keep_s: float = 300.0,
        counts: ReportCounts | None = None,
    ) -> None:
        """`index`: returns the identifier of the current index; None if it is unknown, and then no
        report is kept. `keep_s`: how long reports are kept, in seconds. `counts`: kept up to date
        for metrics.
        """
        self._executor = executor
        self._index = index
        self._kept: TTLCache[_Key, _Kept] = TTLCache(
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

        self.counts.worked += 1
        execution = await self._executor.run(sub_query, index, context)
        # Keep it unless another version stepped in, or the index was replaced meanwhile.
        by_version = context.ledger.worked_on(index) <= {key.version}
        same_index = key.index_id is not None and key.index_id == self._index()
        if execution.outcome == "reported" and by_version and same_index:
            self._kept[key] = _Kept(execution, context.ledger.run_id)
        return execution

    def _key(self, sub_query: str, context: RunContext) -> _Key:
        return _Key(
            context.ledger.tenant,
            normal_question(sub_query),
            self._executor.serving(context),
            context.reporting.form,
            self._index(),
        )
