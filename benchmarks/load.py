"""Ways to ask many times: always so many at once, or at a rate; and questions with a deadline,
and how they ended.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence, Sized
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
"""Questions of one connection; a server allows no more than 1,000."""
_BEYOND_S = 30.0
"""How much longer than a question's deadline a client waits, to see how late the gateway is."""


def question(number: int) -> str:
    """A question; no two numbers have one in common."""
    return f"When was the director of film number {number} born?"


async def in_flight(
    ask: Callable[[Item], Awaitable[Result]],
    items: Iterable[Item],
    at_once: int,
    title: str = "asking",
) -> list[Result]:
    """Ask of each item, `at_once` at a time, with a bar; the results in the items' order."""
    with progress_bar() as bar:
        task = bar.add_task(title, total=len(items) if isinstance(items, Sized) else None)
        return await asking.in_flight(ask, items, at_once, lambda: bar.advance(task))


async def at_rate(
    ask: Callable[[Item], Coroutine[Any, Any, Result]],
    items: Iterable[Item],
    per_s: float,
    seed: int = 0,
) -> list[Result]:
    """Ask of each item, so many a second on average, as independent callers do."""
    chance = random.Random(seed)
    clock = asyncio.get_running_loop().time
    due = clock()
    tasks = []
    async with asyncio.TaskGroup() as group:
        for item in items:
            due += chance.expovariate(per_s)
            await asyncio.sleep(due - clock())
            tasks.append(group.create_task(ask(item)))
    return [task.result() for task in tasks]


def timed(ask: Callable[[Item], Awaitable[object]]) -> Callable[[Item], Coroutine[Any, Any, float]]:
    """The same, which results in seconds."""

    async def measured(item: Item) -> float:
        begun = time.perf_counter()
        await ask(item)
        return time.perf_counter() - begun

    return measured


def quantile(values: Iterable[float], share: float) -> float:
    """The value that `share` of all are at most; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@asynccontextmanager
async def clients(address: str, at_once: int) -> AsyncIterator[Callable[[int], Awaitable[str]]]:
    """Ask the question of a number, over as many connections as so many at once need; its run."""
    async with AsyncExitStack() as stack:
        count = -(-at_once // _STREAMS)
        turns = cycle([await stack.enter_async_context(AsyncClient(address)) for _ in range(count)])

        async def ask(number: int) -> str:
            return (await next(turns).ask(question(number))).run_id

        yield ask


class Order(msgspec.Struct, frozen=True):
    """Questions to be asked: at a rate, or always so many at once."""

    first: int
    questions: int
    per_s: float = 0.0
    """0: as fast as `at_once` allows."""
    at_once: int = 1


async def ordered(ask: Callable[[int], Awaitable[object]], order: Order) -> list[float]:
    """Ask as ordered; the seconds of each question."""
    numbers = range(order.first, order.first + order.questions)
    if order.per_s:
        return await at_rate(timed(ask), numbers, order.per_s, seed=order.first)
    return await asking.in_flight(timed(ask), numbers, order.at_once, lambda: None)


class Ended(msgspec.Struct, frozen=True):
    """One question with a deadline, when it has ended."""

    outcome: str
    """`answered`, or the reason of a typed error, or what was not one."""
    typed: bool
    took_s: float
    deadline_s: float
    run_id: str = ""
    """Of an answer; empty otherwise."""
    attempts: int = 0
    """Upstream calls that the answer was told to have taken."""
    tokens: int = 0
    rows: str = ""
    """Those of a table, as `rows_of` writes them."""

    @property
    def late_s(self) -> float:
        """Seconds after its deadline; negative before."""
        return self.took_s - self.deadline_s


async def ask_until(
    client: AsyncClient, text: str, deadline_s: float, *, hurried: bool = False, columns: str = ""
) -> Ended:
    """Ask a question under a name that it has again when it is asked again. `hurried`: the deadline
    is the client's own, not the gateway's. `columns`: of the table that is wanted; empty for an
    answer.
    """
    begun = time.perf_counter()
    wait_s = deadline_s + (0.0 if hurried else _BEYOND_S)
    rows = ""
    try:
        if columns:
            answer: Any = (await client.table(text, columns, (), wait_s, request_id=text)).message
            rows = rows_of(answer)
        else:
            answer = await client.ask(text, wait_s, request_id=text)
    except GatewayError as error:
        took_s = time.perf_counter() - begun
        if error.reason:
            return Ended(error.reason, error.reason != "INTERNAL", took_s, deadline_s)
        typed = error.code is grpc.StatusCode.DEADLINE_EXCEEDED
        return Ended(f"{error.code.name}, by the client", typed, took_s, deadline_s)
    took_s = time.perf_counter() - begun
    tokens = sum(usage.prompt_tokens + usage.completion_tokens for usage in answer.usage)
    attempts = sum(usage.attempts for usage in answer.usage)
    return Ended(ANSWERED, True, took_s, deadline_s, answer.run_id, attempts, tokens, rows)


def rows_of(table: Table) -> str:
    """All that a table says, and what it rests on; its costs, which a run that went on has in
    part, are left out.
    """
    for row in table.rows:
        for part in (row, *row.cells):
            part.ClearField("tokens")
            part.ClearField("cost_nano_usd")
    return f"{table.outcome} {table.columns} {table.rows}"


class Outcomes(msgspec.Struct, frozen=True):
    """Many questions, summed up."""

    questions: int
    outcomes: dict[str, int]
    p50_s: float
    p99_s: float
    latest_ms: float
    """After the deadline, of the question that was closest to it, or furthest beyond."""

    @classmethod
    def of(cls, ended: Sequence[Ended]) -> "Outcomes":
        """Sum them up."""
        took = [one.took_s for one in ended]
        counts = Counter(one.outcome for one in ended)
        latest_ms = max((one.late_s for one in ended), default=0.0) * 1000
        return cls(
            len(ended),
            dict(counts.most_common()),
            quantile(took, 0.5),
            quantile(took, 0.99),
            latest_ms,
        )
