"""The executors of one round, some of which start before the delegator has finished its turn."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace

from router.background import task_group
from router.protocol.decision import agreeing
from router.search.context import RunContext
from router.search.executor import Executes
from router.trace import Event, Execution
from router.trace.values import Reported, SearchDone, SubQueryDispatched


class Dispatching:
    """Runs the sub-queries of a block in parallel.

    Work that starts early is a guess. Until `run` gets the complete block, its events are held back
    and its calls are marked as undecided in the ledger. Work on sub-queries that the block does not
    contain is cancelled, and what it spent counts as wasted.
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
        """`number`: the round, from 1. `first`: the number of its first sub-query in the run.
        `group`: the task group of the executors. `most`: max sub-queries started early; None for no
        limit. `width`: max executors at a time; None for no limit.
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
        self._sub_queries: list[str] = []
        self._tasks: list[asyncio.Task[Execution]] = []
        self._held_back: list[SearchDone | Reported] = []
        self._decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, sub_queries: tuple[str, ...]) -> None:
        """Start the sub-queries that the block certainly begins with. Starts nothing if they do not
        continue those started before, as after a call that broke off and was repeated.
        """
        started = len(self._sub_queries)
        if agreeing(self._sub_queries, sub_queries) == started:
            self._outer.ledger.await_decision(self._first)
            for sub_query in sub_queries[started : self._max_early]:
                self._start(sub_query)

    async def drop(self, kept: int = 0) -> None:
        """Cancel all early work but the first `kept` sub-queries, and wait until it has ended. Do
        nothing once the block is decided.
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
        """Cancel early work that does not match this block; return the tasks that remain, which
        work on the block's first sub-queries.
        """
        await self.drop(agreeing(self._sub_queries, sub_queries))
        return self._tasks

    def emit_held_back(self) -> None:
        """Emit the events that were held back, and all later ones immediately."""
        self._decided.set_result(None)
        for event in self._held_back:
            self._outer.on_event(event)

    async def run(
        self, sub_queries: Sequence[str], managers: Sequence[str] = ()
    ) -> list[Execution]:
        """Work on the block `sub_queries`; return the executions in the same order. `managers`: as
        in `Dispatch`.
        """
        managers = managers or [""] * len(sub_queries)
        # Early work is for no named manager, so it serves only the sub-queries before the first.
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
        # Not an attribute: it refers to `self`, and the cycle would keep all of it in memory until
        # the garbage collector runs.
        context = replace(self._outer, on_event=self._on_event, manager=manager)
        async with self._slots:
            execution = await self._executor.run(sub_query, index, context)
        if execution.outcome == "budget_exhausted" and not self._decided.done():
            # The reservation of the delegator's call may have been in the way: wait for its end,
            # and try again.
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
    """Open the dispatching of round `number` (from 1), whose first sub-query has the number
    `first`. No executor runs once the context is left.
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
