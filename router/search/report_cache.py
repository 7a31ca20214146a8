"""One executor run for all who ask the same sub-query: at the same time, or a little later."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cachetools import TTLCache
from msgspec.structs import replace

from router.calls import Role
from router.protocol import NO_EVIDENCE
from router.protocol.sub_queries import normal_question
from router.search.context import RunContext
from router.search.executor import Executes, Unfinished
from router.trace import Conversation, Execution
from router.trace.values import SearchDone, SearchRecord

_MOST = 10_000
"""Reports that are kept; the one that was not asked for longest goes first."""
ANOTHER_TENANT = "another tenant's run"
"""Stands in a trace instead of the identifier of a run that is not the tenant's own."""


class Versioned(Executes, Protocol):
    """Executors of several versions, whose work can be gone on with."""

    def serving(self, context: RunContext) -> str:
        """The version that works in a run."""

    async def run(
        self, sub_query: str, index: int, context: RunContext, unfinished: Unfinished | None = None
    ) -> Execution:
        """See `Executor.run`."""


class _Key(NamedTuple):
    """Runs that agree in this are shown the same and do the same; all else is the same in a
    process.
    """

    tenant: str | None
    """None for all who share with everybody."""
    sub_query: str
    version: str
    tabular: bool
    index_id: str | None


class _Payer(NamedTuple):
    tenant: str
    run_id: str


@dataclass(frozen=True, slots=True)
class _Shared:
    """A report with what led to it, and the runs that paid."""

    execution: Execution
    payers: tuple[_Payer, ...]


@dataclass(slots=True)
class _Flight:
    """A sub-query that is worked on: one of those who ask leads, the others wait."""

    lead: asyncio.Lock = field(default_factory=asyncio.Lock)
    unfinished: Unfinished = field(default_factory=Unfinished)
    payers: tuple[_Payer, ...] = ()
    """The runs whose leading ended early."""
    foreign: bool = False
    """True where another version, or another role's model, stepped in for one of them."""
    parties: int = 0
    shared: _Shared | None = None
    over: bool = False
    """True once nobody can go on from it: it was reported, or it failed."""


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

    Who waits for another run's report pays nothing, and waits no longer than its own search
    deadline; where the leading run is cancelled or cut, one that waits goes on from its last turn.
    Only reports are shared: after a failure everybody works alone.
    """

    def __init__(
        self,
        executor: Versioned,
        index: Callable[[], str | None],
        *,
        keep_s: float = 300.0,
        across_tenants: bool = False,
        counts: ReportCounts | None = None,
    ) -> None:
        """`index`: what identifies the index that is searched now; None where that is not known,
        and then only runs at the same time share. `counts`: kept up to date for metrics.
        """
        self._executor = executor
        self._index = index
        self._across_tenants = across_tenants
        self._flights: dict[_Key, _Flight] = {}
        self._kept: TTLCache[_Key, _Shared] = TTLCache(
            _MOST, keep_s, lambda: asyncio.get_running_loop().time()
        )
        self.counts = counts or ReportCounts()

    @property
    def report_tokens(self) -> int:
        """The most tokens of a report."""
        return self._executor.report_tokens

    def role(self, context: RunContext) -> Role:
        """See `Executes.role`."""
        return self._executor.role(context)

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """See `Executor.run`; `shared_from` of what it returns tells whose work it is."""
        if context.sharing == "nobody":
            return await self._executor.run(sub_query, index, context)
        key = self._key(sub_query, context)
        if (kept := self._kept.get(key)) and not any(
            kept.execution is one for one in context.wasted
        ):
            self.counts.kept += 1
            return _given(kept, sub_query, index, context)
        flight = self._flights.setdefault(key, _Flight())
        flight.parties += 1
        try:
            try:
                async with asyncio.timeout_at(context.search_deadline):
                    await flight.lead.acquire()
            except TimeoutError:
                return Execution(
                    sub_query, NO_EVIDENCE, "timed_out", (), Conversation(()), key.version
                )
            try:
                if flight.shared:
                    self.counts.shared += 1
                    return _given(flight.shared, sub_query, index, context)
                self.counts.worked += 1
                if not flight.over:
                    return await self._lead(flight, key, sub_query, index, context)
            finally:
                flight.lead.release()
        finally:
            flight.parties -= 1
            if not flight.parties:
                self._drop(key, flight)
        return await self._executor.run(sub_query, index, context)

    async def _lead(
        self, flight: _Flight, key: _Key, sub_query: str, index: int, context: RunContext
    ) -> Execution:
        """Work on it, from where the last one who led has stopped."""
        payer = _Payer(context.ledger.tenant, context.ledger.run_id)
        turns = flight.unfinished.turns
        _tell(flight.unfinished.searches, index, context)
        try:
            execution = await self._executor.run(sub_query, index, context, flight.unfinished)
            # One that ended by the terms of this run, another one can go on with.
            flight.over = execution.outcome not in ("timed_out", "budget_exhausted")
            if (
                execution.outcome == "reported"
                and not flight.foreign
                and _by_version(key.version, index, context)
            ):
                flight.shared = _Shared(execution, (*flight.payers, payer))
                # It was not swapped meanwhile
                if key.index_id is not None and key.index_id == self._index():
                    self._kept[key] = flight.shared
            return _named(execution, flight.payers, context)
        except Exception:
            flight.over = True
            raise
        finally:
            if flight.unfinished.turns > turns:
                flight.payers += (payer,)
                flight.foreign |= not _by_version(key.version, index, context)
            if flight.over:
                self._drop(key, flight)

    def _key(self, sub_query: str, context: RunContext) -> _Key:
        everybody = self._across_tenants and context.sharing == "everybody"
        tenant = None if everybody else context.ledger.tenant
        return _Key(
            tenant,
            normal_question(sub_query),
            self._executor.serving(context),
            context.tabular,
            self._index(),
        )

    def _drop(self, key: _Key, flight: _Flight) -> None:
        """Let the next one who asks begin anew."""
        if self._flights.get(key) is flight:
            del self._flights[key]


def _by_version(version: str, index: int, context: RunContext) -> bool:
    """True where nobody stepped in for the version that was to work on a sub-query."""
    return context.ledger.worked_on(index) <= {version}


def _given(shared: _Shared, sub_query: str, index: int, context: RunContext) -> Execution:
    """The report as that of another run; what was searched for is told as if it were searched
    for now.
    """
    _tell(shared.execution.searches, index, context)
    return _named(replace(shared.execution, sub_query=sub_query), shared.payers, context)


def _named(execution: Execution, payers: Sequence[_Payer], context: RunContext) -> Execution:
    """The execution with those who paid for it."""
    own = context.ledger.tenant
    names = tuple(payer.run_id if payer.tenant == own else ANOTHER_TENANT for payer in payers)
    return replace(execution, shared_from=names) if names else execution


def _tell(searches: Sequence[SearchRecord], index: int, context: RunContext) -> None:
    for search in searches:
        context.on_event(
            SearchDone(index, search.query, tuple(passage.title for passage in search.passages))
        )
