"""The executors of one round at work, those among them that were begun before the delegator had
ended its turn.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from router.background import task_group
from router.protocol.decision import agreeing
from router.search.context import RunContext
from router.search.executor import Executes
from router.trace import Event, Execution
from router.trace.values import Reported, SearchDone, SubQueryDispatched


class Dispatching:
    """Runs the sub-queries of a block side by side.

    What is begun early is a guess. Until `run` has said what the block really holds, nobody hears
    of it, and its calls wait to be booked. Whatever is not in the block then is cancelled, and what
    it spent was wasted.
    """

    def __init__(
        self,
        executor: Executes,
        number: int,
        first: int,
        context: RunContext,
        group: asyncio.TaskGroup,
        *,
        most: int | None = None,
        width: int = 10**6,
    ) -> None:
        """`number`: of the round, from 1. `first`: of its first sub-query in the run. Executors
        work in `group`. `most`: of those begun early; None for any number. `width`: of those at
        work at a time.
        """
        self._executor = executor
        self._number = number
        self._first = first
        self._group = group
        self._most = most
        self._slots = asyncio.Semaphore(width)
        self._outer = context
        self._texts: list[str] = []
        self._tasks: list[asyncio.Task[Execution]] = []
        self._unheard: list[SearchDone | Reported] = []
        self._decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, sub_queries: tuple[str, ...]) -> None:
        """Begin with what the block is certain to start with; with nothing more where that is not
        what it was certain to start with before, as when its call broke off and was made anew.
        """
        begun = len(self._texts)
        if agreeing(self._texts, sub_queries) == begun:
            self._outer.ledger.await_decision(self._first)
            for sub_query in sub_queries[begun : self._most]:
                self._start(sub_query)

    async def drop(self, kept: int = 0) -> None:
        """Cancel what was begun but for the first `kept`, and wait for its end. Once the block
        is known, nothing is.
        """
        if self._decided.done():
            return
        dropped = self._tasks[kept:]
        del self._tasks[kept:], self._texts[kept:]
        for task in dropped:
            task.cancel()
        if dropped:
            await asyncio.wait(dropped)
        self._outer.wasted.extend(
            task.result() for task in dropped if not task.cancelled() and not task.exception()
        )
        self._unheard = [event for event in self._unheard if event.index < self._first + kept]
        self._outer.ledger.decide(self._first + kept)

    async def keep(self, sub_queries: Sequence[str]) -> list[asyncio.Task[Execution]]:
        """Cancel what was begun and is not in this block; the work on its first sub-queries, as
        far as it was begun.
        """
        await self.drop(agreeing(self._texts, sub_queries))
        return self._tasks

    def tell(self) -> None:
        """From now on, say what happens, and say what has happened."""
        self._decided.set_result(None)
        for event in self._unheard:
            self._outer.on_event(event)

    async def run(
        self, sub_queries: Sequence[str], managers: Sequence[str] = ()
    ) -> list[Execution]:
        """Work on these, the block; the executions in their order. `managers`: as in a
        `Dispatch`.
        """
        managers = managers or [""] * len(sub_queries)
        unnamed = next((at for at, manager in enumerate(managers) if manager), len(managers))
        await self.keep(sub_queries[:unnamed])  # what is begun early goes to no manager by name
        for index, (sub_query, manager) in enumerate(
            zip(sub_queries, managers, strict=True), self._first
        ):
            self._outer.on_event(
                SubQueryDispatched(index, self._number, sub_query, manager=manager)
            )
        self.tell()
        begun = len(self._texts)
        for sub_query, manager in zip(sub_queries[begun:], managers[begun:], strict=True):
            self._start(sub_query, manager)
        return [await task for task in self._tasks]

    def _start(self, sub_query: str, manager: str = "") -> None:
        work = self._work(self._first + len(self._texts), sub_query, manager)
        self._texts.append(sub_query)
        self._tasks.append(self._group.create_task(work))

    async def _work(self, index: int, sub_query: str, manager: str) -> Execution:
        # Not kept in `self`, to which it leads back: whatever is in a cycle stays until the garbage
        # is looked for.
        context = replace(self._outer, on_event=self._on_event, manager=manager)
        async with self._slots:
            execution = await self._executor.run(sub_query, index, context)
        if execution.outcome == "budget_exhausted" and not self._decided.done():
            # What is reserved for the delegator's call may have been in its way.
            self._unheard = [event for event in self._unheard if event.index != index]
            self._outer.ledger.waste(index)
            await asyncio.wait([self._decided])  # which never cancels it
            async with self._slots:
                execution = await self._executor.run(sub_query, index, context)
        self._on_event(Reported(index, execution))
        return execution

    def _on_event(self, event: Event) -> None:
        if self._decided.done():
            self._outer.on_event(event)
        elif isinstance(event, SearchDone | Reported):
            self._unheard.append(event)


@asynccontextmanager
async def dispatching(
    executor: Executes, number: int, first: int, context: RunContext, width: int = 10**6
) -> AsyncIterator[Dispatching]:
    """The executors of round `number`, whose first sub-query has the number `first`. When the
    context is left, none is at work any more.
    """
    try:
        async with task_group() as group:
            work = Dispatching(executor, number, first, context, group, width=width)
            yield work
            await work.drop()
    finally:
        context.ledger.decide(0)
