"""Dispatch of one round's sub-queries to executors. Some executors may start before the delegator
has finished its turn (early dispatch).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from msgspec.structs import replace

from router.background import task_group
from router.protocol.decision import agreeing
from router.search.context import RunContext
from router.search.executor import Executes
from router.trace import Event, Execution
from router.trace.values import Reported, SearchDone, SubQueryDispatched


class Dispatching:
    """Runs the sub-queries of one turn of the delegator, called a block, in parallel.

    Work that starts before the block is complete is speculative. Until `run` gets the complete
    block, the events of such work are held back, and the ledger marks its calls as undecided, that
    is neither used nor wasted. Speculative work is kept up to the first sub-query that differs from
    the complete block. The rest is cancelled, and its tokens count as wasted.
    """

    def __init__(
        self,
        executor: Executes,
        number: int,
        first: int,
        context: RunContext,
        group: asyncio.TaskGroup,
        *,
        max_early: int | None = None,
        width: int | None = None,
    ) -> None:
        """`number`: the number of the round, from 1. `first`: the number of the round's first
        sub-query. Sub-queries are numbered through the run, from 0. `group`: the task group in
        which executors run. `max_early`: max sub-queries that start early; None for no limit.
        `width`: max executors at a time; None for no limit.
        """
        self._executor = executor
        self._number = number
        self._first = first
        self._group = group
        self._max_early = max_early
        self._slots: AbstractAsyncContextManager[None] = (
            asyncio.Semaphore(width) if width else nullcontext()
        )
        self._outer = context
        self._sub_queries = list[str]()
        self._tasks = list[asyncio.Task[Execution]]()
        self._held_back = list[SearchDone | Reported]()
        self._decided = asyncio.Future[None]()

    def begin(self, sub_queries: tuple[str, ...]) -> None:
        """Start work on `sub_queries`, the first sub-queries of the block, while the delegator
        still writes the rest. Sub-queries that earlier calls have started are not started again.

        Start nothing if `sub_queries` does not begin with the sub-queries that were started
        earlier. This happens if the delegator's call broke off, and its retry writes different
        sub-queries.
        """
        started = len(self._sub_queries)
        if agreeing(self._sub_queries, sub_queries) == started:
            self._outer.ledger.await_decision(self._first)
            for sub_query in sub_queries[started : self._max_early]:
                self._start(sub_query)

    async def drop(self, kept: int = 0) -> None:
        """Cancel all early work, except for the work on the first `kept` sub-queries, and wait
        until the cancelled tasks have ended. Do nothing once the complete block is known.
        """
        if self._decided.done():
            return
        dropped = self._tasks[kept:]
        del self._tasks[kept:]
        del self._sub_queries[kept:]
        for task in dropped:
            task.cancel()
        if dropped:
            await asyncio.wait(dropped)

        finished = [task for task in dropped if not task.cancelled() and not task.exception()]
        self._outer.wasted.extend(task.result() for task in finished)
        self._held_back = [event for event in self._held_back if event.index < self._first + kept]
        self._outer.ledger.decide(self._first + kept)

    async def keep(self, sub_queries: Sequence[str]) -> list[asyncio.Task[Execution]]:
        """Cancel early work on the first sub-query that differs from the complete block
        `sub_queries`, and on all later ones. Return the remaining tasks. They work on the first
        sub-queries of the block, in order.
        """
        await self.drop(agreeing(self._sub_queries, sub_queries))
        return self._tasks

    def emit_held_back(self) -> None:
        """Emit the events that were held back. From now on, events are emitted immediately."""
        self._decided.set_result(None)
        for event in self._held_back:
            self._outer.on_event(event)

    async def run(
        self, sub_queries: Sequence[str], managers: Sequence[str] = ()
    ) -> list[Execution]:
        """Work on the complete block `sub_queries`; return the executions in the same order.

        `managers`: the name of the manager for each sub-query, or an empty string for the default
        manager. The sequence may be empty if the block names no manager.
        """
        managers = managers or [""] * len(sub_queries)
        # Early work has no manager, so it is kept only for the sub-queries before the first one
        # with a manager.
        unnamed = next((at for at, manager in enumerate(managers) if manager), len(managers))
        await self.keep(sub_queries[:unnamed])

        block = list(zip(sub_queries, managers, strict=True))
        for index, (sub_query, manager) in enumerate(block, self._first):
            self._outer.on_event(
                SubQueryDispatched(index, self._number, sub_query, manager=manager)
            )
        self.emit_held_back()
        for sub_query, manager in block[len(self._sub_queries) :]:
            self._start(sub_query, manager)
        return [await task for task in self._tasks]

    def _start(self, sub_query: str, manager: str = "") -> None:
        work = self._work(self._first + len(self._sub_queries), sub_query, manager)
        self._sub_queries.append(sub_query)
        self._tasks.append(self._group.create_task(work))

    async def _work(
        self,
        index: int,
        sub_query: str,
        manager: str,
    ) -> Execution:
        # Not an attribute of `self`, because the context refers to `self`: this reference cycle
        # would stay in memory until the garbage collector runs.
        context = replace(self._outer, on_event=self._on_event, manager=manager)
        async with self._slots:
            execution = await self._executor.run(sub_query, index, context)
        if execution.outcome == "budget_exhausted" and not self._decided.done():
            # The budget may be short only because the delegator's unfinished call still reserves
            # a part of it. Wait until that call has ended, and try again.
            self._held_back = [event for event in self._held_back if event.index != index]
            self._outer.ledger.waste(index)
            await asyncio.wait([self._decided])  # unlike awaiting the future, never cancels it
            async with self._slots:
                execution = await self._executor.run(sub_query, index, context)
        self._on_event(Reported(index, execution))
        return execution

    def _on_event(self, event: Event) -> None:
        if self._decided.done():
            self._outer.on_event(event)
        elif isinstance(event, SearchDone | Reported):
            self._held_back.append(event)


@asynccontextmanager
async def dispatching(
    executor: Executes,
    number: int,
    first: int,
    context: RunContext,
    width: int | None = None,
) -> AsyncIterator[Dispatching]:
    """Open a `Dispatching` for the round with the number `number`, from 1. `first`: the number of
    the round's first sub-query in the run. `width`: max executors at a time; None for no limit.
    On exit, executors that still run are cancelled or awaited, so that none outlives the context.
    """
    try:
        async with task_group() as group:
            work = Dispatching(
                executor,
                number,
                first,
                context,
                group,
                width=width,
            )
            yield work
            await work.drop()
    finally:
        context.ledger.decide(0)
