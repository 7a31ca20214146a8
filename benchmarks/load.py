"""Generate load on a gateway: send requests with a fixed number in flight, at a fixed mean rate, or
with a deadline.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sized
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from typing import Any

import grpc
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1.table_service_pb2 import Table

from executor_sft import asking
from executor_sft.asking import Item, Result
from router.frozen import Frozen
from serving.terminal import progress_bar

ANSWERED = "answered"
_STREAMS = 500
"""Max concurrent questions per connection; gateways allow 1,000."""
_GRACE_S = 30.0
"""Seconds that a client waits beyond the deadline, to measure how late the gateway answers."""


def question(number: int) -> str:
    """Return the question with this number. Questions with different numbers have no sub-query in
    common.
    """
    return f"When was the director of film number {number} born?"


async def in_flight(
    ask: Callable[[Item], Awaitable[Result]],
    items: Iterable[Item],
    concurrency: int,
    title: str = "asking",
) -> list[Result]:
    """Call `ask` for each item, at most `concurrency` calls at a time, and show a progress bar with
    this title. Return the results in the order of the items.
    """
    with progress_bar() as bar:
        task = bar.add_task(title, total=len(items) if isinstance(items, Sized) else None)
        return await asking.in_flight(ask, items, concurrency, lambda: bar.advance(task))


async def at_rate(
    ask: Callable[[Item], Coroutine[Any, Any, Result]],
    items: Iterable[Item],
    per_s: float,
    seed: int = 0,
) -> list[Result]:
    """Call `ask` for each item, `per_s` calls per second on average. The gaps between calls are
    exponentially distributed, as if the callers were independent. Return the results in the order
    of the items.
    """
    chance = random.Random(seed)
    clock = asyncio.get_running_loop().time
    due = clock()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for item in items:
            due += chance.expovariate(per_s)
            await asyncio.sleep(due - clock())
            tasks.append(group.create_task(ask(item)))
    return [task.result() for task in tasks]


def timed(ask: Callable[[Item], Awaitable[object]]) -> Callable[[Item], Coroutine[Any, Any, float]]:
    """Return a function that calls `ask` and returns the duration of the call in seconds."""

    async def measured(item: Item) -> float:
        begun = time.perf_counter()
        await ask(item)
        return time.perf_counter() - begun

    return measured


def quantile(values: Iterable[float], share: float) -> float:
    """Return the quantile of `values` for this share, such as 0.99; 0 if there are no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@asynccontextmanager
async def clients(address: str, concurrency: int) -> AsyncIterator[Callable[[int], Awaitable[str]]]:
    """Connect to the gateway at `address`, with as many connections as `concurrency` needs. Yield a
    function: given a number, it asks the question with this number and returns the id of the run.
    """
    async with AsyncExitStack() as stack:
        count = -(-concurrency // _STREAMS)
        turns = cycle([await stack.enter_async_context(AsyncClient(address)) for _ in range(count)])

        async def ask(number: int) -> str:
            return (await next(turns).ask(question(number))).run_id

        yield ask


class Order(Frozen):
    """A load on a gateway: the questions to ask, and their rate or the number of them in flight."""

    first: int
    """Number of the first question."""
    questions: int
    """Number of questions to ask."""
    per_s: float = 0.0
    """Mean number of questions per second. If 0, `at_once` questions are kept in flight instead."""
    at_once: int = 1
    """Number of questions in flight; used only if `per_s` is 0."""


async def ordered(ask: Callable[[int], Awaitable[object]], order: Order) -> list[float]:
    """Ask the questions of a load. Return the duration of each request in seconds, in the order of
    the questions.
    """
    numbers = range(order.first, order.first + order.questions)
    if order.per_s:
        return await at_rate(
            timed(ask),
            numbers,
            order.per_s,
            seed=order.first,
        )
    return await asking.in_flight(timed(ask), numbers, order.at_once)


class LoadResult(Frozen):
    """Result of a request with a deadline, for an answer or a table."""

    outcome: str
    """`answered`, or the reason of the gateway's error, or the gRPC status if there is no reason.
    """
    typed: bool
    """True if the request ended in a defined way: with an answer, with an error of the gateway
    other than INTERNAL, or at the client's own deadline.
    """
    took_s: float
    deadline_s: float
    run_id: str = ""
    """Id of the run; empty if there was no answer."""
    attempts: int = 0
    """Number of model calls of the run, according to the answer's usage."""
    tokens: int = 0
    """Number of tokens of the run's model calls."""
    rows: str = ""
    """The table as text (`rows_of`); empty for an answer."""

    @property
    def late_s(self) -> float:
        """Seconds between the deadline and the end of the request; negative if it ended before the
        deadline.
        """
        return self.took_s - self.deadline_s


async def ask_until(
    client: AsyncClient,
    text: str,
    deadline_s: float,
    *,
    hurried: bool = False,
    columns: str = "",
) -> LoadResult:
    """Ask a question, or request a table if `columns` are given, and return the result.

    The text is also the request id, so that the gateway recognizes a repeated text as the same
    request. `deadline_s`: deadline of the request in the gateway's config, in seconds; the client
    waits longer, to measure delays. `hurried`: True to let the client give up after `deadline_s`.
    """
    begun = time.perf_counter()
    wait_s = deadline_s + (0.0 if hurried else _GRACE_S)
    rows = ""
    try:
        if columns:
            answer: Any = (
                await client.table(
                    text,
                    columns,
                    (),
                    wait_s,
                    request_id=text,
                )
            ).message
            rows = rows_of(answer)
        else:
            answer = await client.ask(text, wait_s, request_id=text)
    except GatewayError as error:
        took_s = time.perf_counter() - begun
        if error.reason:
            return LoadResult(error.reason, error.reason != "INTERNAL", took_s, deadline_s)
        typed = error.code is grpc.StatusCode.DEADLINE_EXCEEDED
        return LoadResult(f"{error.code.name}, by the client", typed, took_s, deadline_s)

    took_s = time.perf_counter() - begun
    tokens = sum(usage.prompt_tokens + usage.completion_tokens for usage in answer.usage)
    attempts = sum(usage.attempts for usage in answer.usage)
    return LoadResult(
        ANSWERED,
        True,
        took_s,
        deadline_s,
        answer.run_id,
        attempts,
        tokens,
        rows,
    )


def rows_of(table: Table) -> str:
    """Return a table as text, to compare tables: outcome, columns, and rows with their support.

    Tokens and costs are removed, also in `table` itself, because a resumed run does not report the
    tokens and costs of the interrupted run.
    """
    for row in table.rows:
        row.ClearField("tokens")
        row.ClearField("cost_nano_usd")
    return f"{table.outcome} {table.columns} {table.rows}"
