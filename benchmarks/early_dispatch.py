"""What it brings that a sub-query begins once its closing quote is written, and not once its block is: wall time of a
question with one block, through two gateways in processes of their own, one with and one without early dispatch, in
front of the same paced models. Both are asked the same at the same time, so that what else the machine does hits both.

Sub-queries have some 25 tokens. The delegator writes and then stops; executors search once or twice and report; the
answerer writes one sentence. With early dispatch the first sub-queries are done sooner; the last one begins no earlier,
but finds the engine free. So the gain depends on where executors work: those of one question either have an engine that
writes at full speed for two of them (`shared`), as a small or busy one does, or one each (`alone`).
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.table import Table
from rolegate.client import AsyncClient

from benchmarks.canned_config import canned_config
from benchmarks.child import child
from serving.files import write_atomically

Executors = Literal["fast", "usual", "slow"]
Engine = Literal["shared", "alone"]
_WANTED = 0.15
_EXECUTORS: dict[Executors, float] = {"fast": 150.0, "usual": 75.0, "slow": 30.0}
"""Tokens a second."""
_ENGINES: dict[Engine, int] = {"shared": 2, "alone": 1000}
"""Calls of a question that are written at full speed."""
_THINKS_S = 10.0


class Setting(msgspec.Struct, frozen=True):
    """How a question is worked on."""

    block: int
    """Sub-queries."""
    delegator: float
    """Tokens a second."""
    thinks_s: float = 0.0
    executors: Executors = "usual"
    engine: Engine = "shared"

    def question(self, number: int) -> str:
        """A question that is worked on so; no two numbers share a sub-query."""
        pace = f"executor={_EXECUTORS[self.executors]:g} engine={_ENGINES[self.engine]}"
        return f"number={number} block={self.block} delegator={self.delegator} thinks={self.thinks_s} {pace}"


class Row(msgspec.Struct, frozen=True):
    """Wall time of a question, in seconds at the median."""

    setting: Setting
    without_s: float
    with_s: float
    gain: float
    """Share of the time without that is saved, at the median over questions."""


class Figures(msgspec.Struct, frozen=True):
    """What was measured."""

    questions: int
    """Of each setting, with and without."""
    rows: list[Row]

    @property
    def headline(self) -> Row | None:
        """Four sub-queries at 50 tokens a second."""
        return next((row for row in self.rows if row.setting == Setting(4, 50.0)), None)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench early-dispatch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=6, metavar="N", help="of each setting (default: 6)")
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N", help="(default: 1 2 4 8)")
    parser.add_argument(
        "--speeds",
        type=float,
        nargs="+",
        default=[25, 50, 100],
        metavar="N",
        help="tokens a second (default: 25 50 100)",
    )
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="pairs of questions (default: 2)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    given = parser.parse_args(arguments)
    settings = [Setting(block, float(speed)) for block, speed in product(given.blocks, given.speeds)]
    settings += [Setting(4, 50.0, 0.0, executors, engine) for engine in _ENGINES for executors in _EXECUTORS]
    settings += [Setting(4, 50.0, _THINKS_S, executors) for executors in _EXECUTORS]
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(_measured(list(dict.fromkeys(settings)), given.questions, given.at_once, Path(folder)))
    figures = Figures(given.questions, rows)
    if given.json:
        write_atomically(given.json, msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    _show(figures, Console())
    return 0


async def _measured(settings: Sequence[Setting], questions: int, at_once: int, folder: Path) -> list[Row]:
    async with AsyncExitStack() as stack:
        base_url, retrieval = (await stack.enter_async_context(child("benchmarks.paced_upstream"))).told
        clients: list[AsyncClient] = []
        for early in ("false", "true"):
            (home := folder / early).mkdir()
            config = canned_config(home, base_url, retrieval, f"sqlite:///{home}/runs.db")
            config.write_text(f"{config.read_text('utf-8')}\n[search]\nearly_dispatch = {early}\n", "utf-8")
            gateway = await stack.enter_async_context(child("benchmarks.gateway_child", str(config), "--quiet"))
            clients.append(await stack.enter_async_context(AsyncClient(gateway.told[0])))
        await asyncio.gather(*(client.ask(Setting(1, 100.0).question(10**6)) for client in clients))
        limit = asyncio.Semaphore(at_once)

        async def pair(setting: Setting, number: int) -> tuple[float, float]:
            async with limit:
                question = setting.question(number)
                without, early = await asyncio.gather(*(_seconds(client, question) for client in clients))
                return without, early

        asked = [
            asyncio.gather(*(pair(setting, questions * place + one) for one in range(questions)))
            for place, setting in enumerate(settings)
        ]
        return [_row(setting, pairs) for setting, pairs in zip(settings, await asyncio.gather(*asked), strict=True)]


async def _seconds(client: AsyncClient, question: str) -> float:
    begun = time.perf_counter()
    await client.ask(question)
    return time.perf_counter() - begun


def _row(setting: Setting, pairs: Sequence[tuple[float, float]]) -> Row:
    without, early = zip(*pairs, strict=True)
    gain = statistics.median(1 - one / other for other, one in pairs)
    return Row(setting, statistics.median(without), statistics.median(early), gain)


def _show(figures: Figures, console: Console) -> None:
    table = Table(title="seconds of a question, at the median", title_justify="left")
    for column in ("block", "tokens/s", "thinks", "executors", "engine", "without", "with", "gain"):
        table.add_column(column, justify="left" if column in ("executors", "engine") else "right")
    for row in figures.rows:
        setting = row.setting
        about = f"{setting.block}", f"{setting.delegator:g}", f"{setting.thinks_s:g}", setting.executors, setting.engine
        table.add_row(*about, f"{row.without_s:.2f}", f"{row.with_s:.2f}", f"{row.gain:.1%}")
    console.print(table)
    if told := figures.headline:
        verdict = "enough" if told.gain >= _WANTED else "too little"
        console.print(f"4 sub-queries at 50 tokens a second gain {told.gain:.1%}: {verdict} (wanted: {_WANTED:.0%})")
