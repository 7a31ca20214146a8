"""What the gateway itself costs, its store on disk (SQLite, synchronous=FULL): models and retrieval that answer a
two-hop question (8 model calls, 2 searches) with next to no work, the gateway, and whoever asks are processes of their
own.

cost     milliseconds of CPU of the gateway for a question, while the models answer at once
latency  models as slow as real ones, questions at a steady rate: what an answer takes beyond the time in which at least
         one of its model calls was being worked on
scale    memory and CPU of a question, with few and with many in flight
litellm  the same calls through LiteLLM's SDK, and one `Complete` against one call through LiteLLM's proxy server, each
         with one worker

Times depend on the machine and on what else it does, and latency also on how long its disk takes to keep a write; both
are told. Compare ratios of one run.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.asking import at_rate, in_flight
from benchmarks.canned_gateway import canned_gateway
from benchmarks.overhead_litellm import Figures as BesideLiteLLM
from benchmarks.overhead_litellm import beside_litellm
from serving.files import write_atomically

_PARTS = ("cost", "latency", "scale", "litellm")
_WARM = 64
_PACE = ("--first-token", "0.05", "--tokens-a-second", "100")
_LEVELS = (1, 10, 100, 1000, 3000)
_MEMORY_FROM = 100
"""Questions in flight from which on their memory stands out from everything else."""


class Load(msgspec.Struct, frozen=True):
    """Many questions, always so many at once."""

    in_flight: int
    questions: int
    cpu_ms: float
    """Of a question."""
    questions_a_second: float
    memory_kb: float
    """Of a question in flight, at most."""

    @property
    def questions_a_core_second(self) -> float:
        """What one core is enough for."""
        return 1000 / self.cpu_ms


class Latency(msgspec.Struct, frozen=True):
    """What answers take, in milliseconds."""

    questions: int
    questions_a_second: float
    models_p50_ms: float
    """At least one model call was being worked on."""
    added_p50_ms: float
    """Beyond that."""
    added_p99_ms: float


class Figures(msgspec.Struct, frozen=True):
    """What was seen; None for what was not asked for."""

    load_average: tuple[float, float]
    """Of the machine in the last minute, at the beginning and at the end."""
    write_ms: float
    """What the disk takes at the median to keep a write (fsync)."""
    cost: Load | None = None
    latency: Latency | None = None
    scale: list[Load] | None = None
    litellm: BesideLiteLLM | None = None


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench overhead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(_PARTS)} (default: all)")
    parser.add_argument("--questions", type=int, default=1000, metavar="N", help="of a part (default: 1000)")
    parser.add_argument("--rate", type=float, default=20, metavar="N", help="questions a second (default: 20)")
    parser.add_argument("--levels", type=int, nargs="+", default=_LEVELS, metavar="N", help="questions in flight")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where the store is put, as its disk matters")
    parser.add_argument("--litellm-proxy", type=Path, metavar="PYTHON", help="of an environment with litellm[proxy]")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(_PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        figures = asyncio.run(_measured(given, Path(folder)))
    if given.json:
        write_atomically(given.json, msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    _show(figures, Console())
    return 0


async def _measured(given: argparse.Namespace, folder: Path) -> Figures:
    parts, before, write_ms = given.parts or _PARTS, os.getloadavg()[0], _write_ms(folder)
    with Console(stderr=True).status("measuring"):
        cost = await _load(folder / "cost", 64, given.questions) if "cost" in parts else None
        latency = await _latency(folder / "latency", given) if "latency" in parts else None
        scale = None
        if "scale" in parts:
            scale = [await _load(folder / f"at-{level}", level, max(300, 2 * level)) for level in given.levels]
        litellm = None
        if "litellm" in parts:
            async with canned_gateway(folder / "litellm") as gateway:
                litellm = await beside_litellm(gateway, given.litellm_proxy, given.questions)
    return Figures((before, os.getloadavg()[0]), write_ms, cost, latency, scale, litellm)


async def _load(folder: Path, at_once: int, questions: int) -> Load:
    async with canned_gateway(folder) as gateway, gateway.asking(at_once) as ask:
        await in_flight(ask, _WARM, at_once)
        begun = time.perf_counter()
        async with gateway.meter.watching() as used:
            await in_flight(ask, questions, at_once)
        rate = questions / (time.perf_counter() - begun)
    return Load(at_once, questions, used.cpu_s / questions * 1000, rate, used.grown_bytes / at_once / 1000)


async def _latency(folder: Path, given: argparse.Namespace) -> Latency:
    async with canned_gateway(folder, *_PACE) as gateway, gateway.asking(1) as ask:
        took: dict[str, float] = {}

        async def note(number: int) -> None:
            begun = time.perf_counter()
            run_id = str(await ask(number))
            took[run_id] = time.perf_counter() - begun

        await in_flight(note, _WARM, _WARM)
        took.clear()
        await at_rate(note, given.questions, given.rate)
        busy = await gateway.busy_s()
    added = [(seconds - busy[run_id]) * 1000 for run_id, seconds in took.items()]
    models = statistics.median(busy[run_id] for run_id in took) * 1000
    return Latency(
        given.questions, given.rate, models, statistics.median(added), statistics.quantiles(added, n=100)[-1]
    )


def _write_ms(folder: Path) -> float:
    took = []
    with (folder / "write").open("wb", buffering=0) as file:
        for _ in range(50):
            begun = time.perf_counter()
            file.write(bytes(8192))
            os.fsync(file.fileno())
            took.append(time.perf_counter() - begun)
    return statistics.median(took) * 1000


def _show(figures: Figures, console: Console) -> None:
    low, high = figures.load_average
    console.print(f"load average {low:.1f} to {high:.1f}; the disk keeps a write in {figures.write_ms:.2f} ms")
    if loads := [*([figures.cost] if figures.cost else ()), *(figures.scale or ())]:
        table = Table(title="models that answer at once", title_justify="left")
        for column in ("in flight", "CPU ms a question", "a second of one core", "a second", "kB a question"):
            table.add_column(column, justify="right")
        for row in loads:
            rates = f"{row.questions_a_core_second:.0f}", f"{row.questions_a_second:.0f}"
            table.add_row(f"{row.in_flight:,}", f"{row.cpu_ms:.2f}", *rates, f"{row.memory_kb:.0f}")
        console.print(table)
    if figures.scale:
        memory = [row.memory_kb for row in figures.scale if row.in_flight >= _MEMORY_FROM]
        console.print(f"largest to smallest: CPU {_spread([row.cpu_ms for row in figures.scale]):.2f}", end="")
        console.print(f", memory from {_MEMORY_FROM} in flight on {_spread(memory):.2f}" if memory else "")
    if told := figures.latency:
        console.print(
            f"{told.questions} questions, {told.questions_a_second:g} a second, models {told.models_p50_ms:.0f} ms: "
            f"added p50 {told.added_p50_ms:.2f} ms, p99 {told.added_p99_ms:.2f} ms"
        )
    if figures.litellm:
        _show_litellm(figures.litellm, console)


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values)


def _show_litellm(figures: BesideLiteLLM, console: Console) -> None:
    table = Table(title="one call of a model", title_justify="left")
    for column in ("", "CPU ms", "added p50 ms", "a second", "MB"):
        table.add_column(column, justify="right" if column else "left")
    for name, way in (("Complete", figures.complete), ("LiteLLM's proxy", figures.proxy)):
        if way:
            values = f"{way.cpu_ms:.2f}", f"{way.added_p50_ms:.2f}", f"{way.calls_a_second:.0f}", f"{way.own_mb:.0f}"
            table.add_row(name, *values)
    console.print(table)
    console.print(
        f"CPU of a question: {figures.question_cpu_ms:.2f} ms; its model calls alone through LiteLLM's SDK: "
        f"{figures.sdk_cpu_ms:.2f} ms"
    )
    for name, ratio in figures.ratios.items():
        console.print(f"{name}: {ratio:.1f}")
