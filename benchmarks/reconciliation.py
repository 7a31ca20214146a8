"""Whether the ledger is right: questions through real vLLM engines, some of whose calls are refused, whose streams
break off, and whose clients leave. Completed calls must be booked exactly as the engine counted them, request by
request, and each engine's own totals must lie between what the ledger has for certain and the most that cut calls can
have spent.
"""

import argparse
import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.progress import Progress
from rolegate.client import AsyncClient, GatewayError
from sqlalchemy import select

from benchmarks.faulty_proxy import Counted, FaultyProxy, faulty_proxy
from benchmarks.mini_deployment import demo_questions, mini_deployment
from router.store.database import Database
from router.store.schema import CALLS
from serving.composition import running_gateway
from serving.files import write_atomically
from serving.logs import errors_only


class Figures(msgspec.Struct, frozen=True):
    """What the two sides say."""

    questions: int
    refused: int
    """Requests that were answered with 503."""
    broken: int
    """Streams that were broken off."""
    left: int
    """Questions whose client left."""
    calls: dict[str, int]
    """Rows of the ledger by outcome and by how their tokens are known."""
    completed: int
    mismatched: list[str]
    """Completed calls that the engine counted otherwise, or did not count at all."""
    reconciliations: list[dict[str, object]]
    """The ledger against each engine's counters."""


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; 1 where the sides differ."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench reconciliation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=500, metavar="N", help="how many (default: 500)")
    parser.add_argument("--in-flight", type=int, default=8, metavar="N", help="questions at once (default: 8)")
    parser.add_argument("--refuse", type=float, default=0.05, metavar="SHARE", help="of calls (default: 0.05)")
    parser.add_argument("--cut", type=float, default=0.05, metavar="SHARE", help="of streams (default: 0.05)")
    parser.add_argument("--leave", type=float, default=0.1, metavar="SHARE", help="of clients (default: 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    given = parser.parse_args(arguments)
    errors_only()
    figures = asyncio.run(_measured(given))
    encoded = msgspec.json.format(msgspec.json.encode(figures), indent=2)
    if given.json:
        write_atomically(given.json, encoded + b"\n")
    print(encoded.decode())
    verdicts = {str(row.get("verdict")) for row in figures.reconciliations}
    allowed = {"RECONCILIATION_VERDICT_EQUAL", "RECONCILIATION_VERDICT_WITHIN_BOUNDS"}
    return int(bool(figures.mismatched) or not figures.completed or not verdicts <= allowed)


async def _measured(given: argparse.Namespace) -> Figures:
    console, chance = Console(stderr=True), random.Random(given.seed)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        mini = await stack.enter_async_context(mini_deployment(lambda step: console.print(step, style="dim")))
        proxies: dict[str, FaultyProxy] = {}
        urls: dict[str, str] = {}
        for name, url in mini.engines.items():
            urls[name], proxies[name] = await stack.enter_async_context(faulty_proxy(url, chance))
            proxies[name].refuse, proxies[name].cut = given.refuse, given.cut
        store = f"sqlite:///{folder}/runs.db"
        config = mini.config(folder / "rolegate.toml", store, urls)
        address = await stack.enter_async_context(running_gateway(config, "127.0.0.1:0", lambda _step: None))
        client = await stack.enter_async_context(AsyncClient(address))
        left = await _ask(client, demo_questions(folder / "world", given.questions), given, chance, console)
        reconciled = [MessageToDict(row) for row in await client.reconcile()]
        database = await Database.open(store)
        stack.push_async_callback(database.close)
        rows = await database.read(lambda at: at.execute(select(CALLS)).mappings().all())
        counted = {name: usage for proxy in proxies.values() for name, usage in proxy.counted.items()}
        completed = [row for row in rows if row["outcome"] == "completed"]
        return Figures(
            questions=given.questions,
            refused=sum(proxy.refused for proxy in proxies.values()),
            broken=sum(proxy.broken for proxy in proxies.values()),
            left=left,
            calls=dict(Counter(f"{row['outcome']}, {row['counted'] or 'unknown'}" for row in rows)),
            completed=len(completed),
            mismatched=[
                name
                for row in completed
                if counted.get(name := f"chatcmpl-{row['run_id']}-{row['number']}")
                != Counted(row["prompt_tokens"], row["completion_tokens"])
            ],
            reconciliations=reconciled,
        )


async def _ask(
    client: AsyncClient, questions: Sequence[str], given: argparse.Namespace, chance: random.Random, console: Console
) -> int:
    """Ask them all, some only for a while; how many clients left."""
    gate, left = asyncio.Semaphore(given.in_flight), 0

    async def ask(question: str) -> None:
        nonlocal left
        leaves = chance.random() < given.leave
        async with gate:
            try:
                async with asyncio.timeout(chance.uniform(0.1, 2.0) if leaves else None):
                    with suppress(GatewayError):
                        await client.ask(question)
            except TimeoutError:
                left += 1
        progress.advance(bar)

    with Progress(console=console) as progress:
        bar = progress.add_task("asking", total=len(questions))
        async with asyncio.TaskGroup() as group:
            for question in questions:
                group.create_task(ask(question))
    return left
