"""Whether a quota holds: many requests at once against a day's tokens that suffice for about half of them, with one
gateway on SQLite, and with four gateways on one PostgreSQL. The models count what they really read and wrote.
"""

import argparse
import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console
from rich.table import Table
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1.answer_service_pb2 import AnswerOutcome
from sqlalchemy import func, select

from benchmarks.canned_config import canned_config
from benchmarks.child import child
from benchmarks.postgres import running_postgres
from router.access import Tenant
from router.ledger.reconciliation import VLLMCounts
from router.store.accounts import SQLAccounts
from router.store.database import Database
from router.store.schema import CALLS
from serving.files import write_atomically


class Figures(msgspec.Struct, frozen=True):
    """What came of the requests of one set-up."""

    store: str
    gateways: int
    requests: int
    quota_tokens: int
    spent_tokens: int
    """By the models' own count."""
    booked_tokens: int
    """By the ledger."""
    overshoot_tokens: int
    """Spent beyond the quota."""
    outcomes: dict[str, int]
    """How the requests ended: outcomes of answers in small letters, reasons of errors in capitals."""


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; 1 where a quota did not hold, or was not put to the test."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench budgets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200, metavar="N", help="all at once (default: 200)")
    parser.add_argument("--gateways", type=int, default=4, metavar="N", help="on PostgreSQL (default: 4)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    given = parser.parse_args(arguments)
    with running_postgres() as url:
        figures = [
            asyncio.run(_measured("SQLite", None, 1, given.requests)),
            asyncio.run(_measured("PostgreSQL", url, given.gateways, given.requests)),
        ]
    if given.json:
        write_atomically(given.json, msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    _show(figures, Console())
    return int(not all(map(_held, figures)))


def _held(row: Figures) -> bool:
    """Whether some requests were answered, others were not, and what was spent is the ledger's and within the quota."""
    answered = row.outcomes.get("answered", 0)
    return 0 < answered < row.requests and not row.overshoot_tokens and row.spent_tokens == row.booked_tokens


async def _measured(store: str, url: str | None, gateways: int, requests: int) -> Figures:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = url or f"sqlite:///{folder}/runs.db"
        upstream = await stack.enter_async_context(child("benchmarks.canned_upstream"))
        base_url, retrieval = upstream.told
        config = str(canned_config(folder, base_url, retrieval, url))
        database = await Database.open(url)
        stack.push_async_callback(database.close)
        running = [await stack.enter_async_context(child("benchmarks.gateway_child", config)) for _ in range(gateways)]
        clients = [await stack.enter_async_context(AsyncClient(each.told[0])) for each in running]
        await clients[0].ask("When was the director of film number 0 born?")
        a_question = await _counted(base_url)
        quota = a_question * (1 + requests // 2)
        await SQLAccounts(database).set_tenant(Tenant("default", tokens_per_day=quota))
        asking = (_outcome(clients[number % gateways], number) for number in range(1, requests + 1))
        outcomes = Counter(await asyncio.gather(*asking))
        spent = await _counted(base_url)
        tokens = func.coalesce(CALLS.c.prompt_tokens + CALLS.c.completion_tokens, 0)
        booked = await database.read(lambda connection: connection.scalar(select(func.sum(tokens))))
        return Figures(store, gateways, requests, quota, spent, booked or 0, max(0, spent - quota), dict(outcomes))


async def _outcome(client: AsyncClient, number: int) -> str:
    try:
        answer = await client.ask(f"When was the director of film number {number} born?")
    except GatewayError as error:
        return error.reason
    return AnswerOutcome.Name(answer.outcome).removeprefix("ANSWER_OUTCOME_").lower()


async def _counted(base_url: str) -> int:
    async with aiohttp.ClientSession() as session:
        tokens = (await VLLMCounts(session).read(base_url)).tokens
    return tokens.prompt + tokens.completion


def _show(figures: Sequence[Figures], console: Console) -> None:
    table = Table(title=f"{figures[0].requests} requests at once", title_justify="left")
    for column in ("store", "gateways", "quota", "spent", "booked", "overshoot", "outcomes"):
        table.add_column(column)
    for row in figures:
        counts = (row.gateways, row.quota_tokens, row.spent_tokens, row.booked_tokens, row.overshoot_tokens)
        ended = ", ".join(f"{count} {name}" for name, count in sorted(row.outcomes.items()))
        table.add_row(row.store, *map(str, counts), ended)
    console.print(table)
