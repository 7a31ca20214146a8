"""Load generators: a fixed number of requests in flight, or a fixed rate; and questions with a
deadline, with how they ended.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sized
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from typing import Any

import grpc
import msgspec
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1.table_service_pb2 import Table

from executor_sft import asking
from executor_sft.asking import Item, Result
from serving.terminal import progress_bar

ANSWERED = "answered"
_STREAMS = 500
"""Concurrent questions per connection; servers allow 1,000."""
_GRACE_S = 30.0
"""Time that a client waits after the gateway's deadline, to measure how late the gateway is."""


def question(number: int) -> str:
    """Return the question with this number; questions of different numbers share no sub-query."""
    return f"When was the director of film number {number} born?"


async def in_flight(
    ask: Callable[[Item], Awaitable[Result]],
    items: Iterable[Item],
    concurrency: int,
    title: str = "asking",
) -> list[Result]:
    """Call `ask` for each item, `concurrency` at a time, with a progress bar. Return the results in
    the order of the items.
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
    """Call `ask` for each item at a mean rate per second, with exponential gaps, as independent
    callers do.
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
    """Wrap `ask` so that it returns the seconds that it took."""

    async def measured(item: Item) -> float:
        begun = time.perf_counter()
        await ask(item)
        return time.perf_counter() - begun

    return measured


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value below which `share` of the values lie; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@asynccontextmanager
async def clients(address: str, concurrency: int) -> AsyncIterator[Callable[[int], Awaitable[str]]]:
    """Open as many connections as `concurrency` needs. Yield a function that asks the question of
    a number and returns its run id.
    """
    async with AsyncExitStack() as stack:
        count = -(-concurrency // _STREAMS)
        turns = cycle([await stack.enter_async_context(AsyncClient(address)) for _ in range(count)])

        async def ask(number: int) -> str:
            return (await next(turns).ask(question(number))).run_id

        yield ask


class Order(msgspec.Struct, frozen=True):
    """Questions to ask, at a rate or with a fixed number in flight."""

    first: int
    questions: int
    per_s: float = 0.0
    """Mean rate; 0 asks as fast as `at_once` allows."""
    at_once: int = 1


async def ordered(ask: Callable[[int], Awaitable[object]], order: Order) -> list[float]:
    """Ask the questions of an order and return the seconds of each."""
    numbers = range(order.first, order.first + order.questions)
    if order.per_s:
        return await at_rate(
            timed(ask),
            numbers,
            order.per_s,
            seed=order.first,
        )
    return await asking.in_flight(timed(ask), numbers, order.at_once, lambda: None)


class LoadResult(msgspec.Struct, frozen=True):
    """Result of one question with a deadline."""

    outcome: str
    """`answered`, the reason of a gateway error, or else the gRPC status."""
    typed: bool
    """True for an answer, an error of the gateway other than INTERNAL, and the client's own
    deadline.
    """
    took_s: float
    deadline_s: float
    run_id: str = ""
    """Run of an answer; empty otherwise."""
    attempts: int = 0
    """Upstream calls of the answer, as its usage reports them."""
    tokens: int = 0
    rows: str = ""
    """Rows of a table, as `rows_of` writes them."""

    @property
    def late_s(self) -> float:
        """Seconds after the deadline; negative before it."""
        return self.took_s - self.deadline_s


async def ask_until(
    client: AsyncClient,
    text: str,
    deadline_s: float,
    *,
    hurried: bool = False,
    columns: str = "",
) -> LoadResult:
    """Ask a question, or for a table if `columns` are given. The text is also the request id, so
    that the same question asked again is the same request. `hurried`: `deadline_s` is the client's
    own deadline instead of the gateway's.
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
    """Return all that a table says and its support as text, without its costs: a resumed run
    reports only its own costs. Clears the costs in `table`.
    """
    for row in table.rows:
        row.ClearField("tokens")
        row.ClearField("cost_nano_usd")
    return f"{table.outcome} {table.columns} {table.rows}"
