"""What it costs that an answer is on disk before it is acknowledged: answers per second of a gateway with its store
(SQLite, synchronous=FULL) against the same gateway without any, over models that answer at once.

Gateways, models and asking are processes of their own; the two gateways take turns, so that what else the machine does
meets both.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rolegate.client import AsyncClient

from benchmarks.canned_config import canned_config
from benchmarks.child import child
from serving.files import write_atomically


class Figures(msgspec.Struct, frozen=True):
    """Answers per second, round by round."""

    in_flight: int
    questions_a_round: int
    with_store: list[float]
    without_store: list[float]
    ratio: float
    """The median of the rounds' ratios, with the store to without."""


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench durability", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=300, metavar="N", help="a round (default: 300)")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="of each gateway (default: 7)")
    parser.add_argument("--in-flight", type=int, default=64, metavar="N", help="questions at once (default: 64)")
    parser.add_argument("--store", metavar="URL", help="another store than a new SQLite file")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    given = parser.parse_args(arguments)
    figures = asyncio.run(_measured(given))
    if given.json:
        write_atomically(given.json, msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    _show(figures, Console())
    return 0


async def _measured(given: argparse.Namespace) -> Figures:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = await stack.enter_async_context(child("benchmarks.canned_upstream"))
        base_url, retrieval = upstream.told
        config = str(canned_config(folder, base_url, retrieval, given.store or f"sqlite:///{folder}/runs.db"))
        clients = []
        for arguments in ((config,), (config, "--no-store")):
            gateway = await stack.enter_async_context(child("benchmarks.gateway_child", *arguments))
            clients.append(await stack.enter_async_context(AsyncClient(gateway.told[0])))
            await _answers_a_second(clients[-1], given.in_flight, given.in_flight)  # warm
        rates: tuple[list[float], list[float]] = ([], [])
        with Progress(console=Console(stderr=True)) as progress:
            for _ in progress.track(range(given.rounds), description="asking"):
                for client, measured in zip(clients, rates, strict=True):
                    measured.append(await _answers_a_second(client, given.questions, given.in_flight))
    ratio = statistics.median(stored / bare for stored, bare in zip(*rates, strict=True))
    return Figures(given.in_flight, given.questions, *rates, ratio)


async def _answers_a_second(client: AsyncClient, questions: int, in_flight: int) -> float:
    left = iter(range(questions))

    async def ask() -> None:
        for number in left:
            await client.ask(f"When was the director of film number {number} born?")

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(ask())
    return questions / (time.perf_counter() - begun)


def _show(figures: Figures, console: Console) -> None:
    table = Table("round", title=f"answers per second, {figures.in_flight} in flight", title_justify="left")
    for column in ("with the store", "without", "ratio"):
        table.add_column(column, justify="right")
    for number, (stored, bare) in enumerate(zip(figures.with_store, figures.without_store, strict=True), 1):
        table.add_row(str(number), f"{stored:.1f}", f"{bare:.1f}", f"{stored / bare:.3f}")
    table.add_section()
    median = statistics.median
    table.add_row(
        "median", f"{median(figures.with_store):.1f}", f"{median(figures.without_store):.1f}", f"{figures.ratio:.3f}"
    )
    console.print(table)
