"""The gateway's own costs before models that are played.

cost     CPU and memory of a question, with models that answer at once, at each number of questions in flight
latency  time of an answer beyond that in which at least one of its model calls was being worked on, at a steady rate

Times depend on the machine, on what else it does, and on how long its disk takes to keep a write. Compare ratios.
"""

import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from benchmarks import harness
from benchmarks.gateway import at_once, canned_config, gateway, played
from benchmarks.harness import Child, watching, work_folder
from benchmarks.load import at_rate, clients, in_flight, quantile
from router.models.openai_wire import REQUEST_ID
from router.testing.openai_server import Behaviour, ChatRequest, Reply, writes

Part = Literal["cost", "latency"]
_ROUNDS = 5
_FIRST_TOKEN_S, _TOKEN_S = 0.05, 0.01


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    parts: Annotated[tuple[Part, ...], Meta(description="of cost and latency")] = ("cost", "latency")
    questions: Annotated[int, Meta(ge=_ROUNDS, description="of each part and level")] = 1000
    rate: Annotated[float, Meta(gt=0, description="questions a second, of latency")] = 20.0
    in_flight: Annotated[tuple[int, ...], Meta(description="questions at once, of cost")] = (1, 64, 1000)
    folder: Annotated[Path, Meta(description="for the store, as its disk matters")] | None = None


class Load(msgspec.Struct, frozen=True):
    """Many questions, always so many at once; medians of the rounds."""

    in_flight: int
    cpu_ms: float
    """Of a question."""
    questions_per_s: float
    memory_kb: float
    """Of a question in flight, at most."""


class Latency(msgspec.Struct, frozen=True):
    """Times of answers, in milliseconds."""

    models_p50_ms: float
    """At least one model call was being worked on."""
    added_p50_ms: float
    """Beyond that."""
    added_p99_ms: float


class Figures(msgspec.Struct, frozen=True):
    """Figures of the parts that were asked for."""

    cost: list[Load]
    latency: list[Latency]


@dataclass(slots=True)
class Busy:
    """Time in which at least one of some calls was being worked on."""

    seconds: float = 0.0
    _open: int = 0
    _since: float = 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """A call, while this is open."""
        if not self._open:
            self._since = time.perf_counter()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self.seconds += time.perf_counter() - self._since


async def measure(options: Options) -> Figures:
    """Measure the parts. Raises `RolegateError`."""
    with work_folder(options.folder) as folder:
        levels = options.in_flight if "cost" in options.parts else ()
        cost = [await _cost(folder, options.questions, number) for number in levels]
        latency = [await _latency(folder, options)] if "latency" in options.parts else []
    return Figures(cost, latency)


@asynccontextmanager
async def _gateway(folder: Path, play: Behaviour) -> AsyncIterator[Child]:
    async with played(play) as (models, retrieval):
        config = canned_config(folder / f"{time.time_ns()}", [models.base_url], retrieval)
        async with gateway(config) as process:
            yield process


async def _cost(folder: Path, questions: int, number: int) -> Load:
    each, rows = max(number, questions // _ROUNDS), list[tuple[float, ...]]()
    async with _gateway(folder, writes(at_once)) as process, clients(process.words[0], number) as ask:
        for _ in range(1 + _ROUNDS):
            begun = time.perf_counter()
            async with watching(process.watched) as used:
                await in_flight(ask, range(each), number, f"{number} in flight")
            rate = each / (time.perf_counter() - begun)
            rows.append((used.cpu_s / each * 1000, rate, used.grown_bytes / number / 1000))
    return Load(number, *map(statistics.median, zip(*rows[1:], strict=True)))  # the first round warms up


async def _latency(folder: Path, options: Options) -> Latency:
    busy, rows = dict[str, Busy](), list[tuple[float, float]]()
    paced = writes(lambda asked: Reply(at_once(asked).tokens, (), _FIRST_TOKEN_S, lambda: _TOKEN_S))

    async def play(request: web.Request) -> web.StreamResponse:
        run_id = ChatRequest("", [], request_id=request.headers.get(REQUEST_ID, "")).run_id
        with busy.setdefault(run_id, Busy()).working():
            return await paced(request)

    async with _gateway(folder, play) as process, clients(process.words[0], 1) as ask:

        async def measured(number: int) -> None:
            begun = time.perf_counter()
            run_id = await ask(number)
            rows.append((time.perf_counter() - begun, busy[run_id].seconds))

        await at_rate(measured, range(options.questions // _ROUNDS), options.rate)
        rows.clear()  # that was to warm up
        await at_rate(measured, range(options.questions), options.rate)
    added = [(took_s - busy_s) * 1000 for took_s, busy_s in rows]
    models_ms = statistics.median(busy_s for _, busy_s in rows) * 1000
    return Latency(models_ms, statistics.median(added), quantile(added, 0.99))
