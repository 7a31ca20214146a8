"""The gateway's own costs in CPU, time and memory, before models that are played; variants of its config take turns.

cost     CPU and memory of a question, with models that answer at once, at each number of questions in flight
latency  time of an answer beyond that in which at least one of its model calls was being worked on, at a steady rate

Times depend on the machine and on what else it does, and latency also on how long its disk takes to keep a write; both
are in the figures. Compare ratios of one run.
"""

import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import tomlkit
from aiohttp import web
from msgspec import Meta

from benchmarks import harness
from benchmarks.gateway import at_once, canned_config, gateway, played
from benchmarks.harness import Child, work_folder
from benchmarks.load import at_rate, clients, in_flight, quantile
from router.models.openai_wire import REQUEST_ID
from router.testing.openai_server import Behaviour, ChatRequest, Reply, writes

Part = Literal["cost", "latency"]
_ROUNDS = 5
_FIRST_TOKEN_S, _TOKEN_S = 0.05, 0.01


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    parts: Annotated[tuple[Part, ...], Meta(description="of cost and latency")] = ("cost", "latency")
    questions: Annotated[int, Meta(ge=_ROUNDS, description="of each variant")] = 1000
    rate: Annotated[float, Meta(gt=0, description="questions a second, of latency")] = 20.0
    in_flight: Annotated[tuple[int, ...], Meta(description="questions at once, of cost")] = (1, 64, 1000)
    variants: Annotated[tuple[str, ...], Meta(description="settings to compare, as search.early_dispatch=false")] = ()
    folder: Annotated[Path, Meta(description="for the store, as its disk matters")] | None = None


class Load(msgspec.Struct, frozen=True):
    """Many questions, always so many at once; medians of the rounds."""

    variant: str
    in_flight: int
    cpu_ms: float
    """Of a question."""
    questions_per_s: float
    memory_kb: float
    """Of a question in flight, at most."""


class Latency(msgspec.Struct, frozen=True):
    """Times of answers, in milliseconds."""

    variant: str
    models_p50_ms: float
    """At least one model call was being worked on."""
    added_p50_ms: float
    """Beyond that."""
    added_p99_ms: float


class Figures(msgspec.Struct, frozen=True):
    """Figures of the parts that were asked for."""

    load_average: tuple[float, float]
    """Of the machine in the last minute, at the beginning and at the end."""
    write_ms: float
    """Time of the disk to keep a write (fsync), at the median."""
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


@dataclass(slots=True)
class _Variant:
    name: str
    process: Child
    rows: list[tuple[float, ...]] = field(default_factory=list)


async def measure(options: Options) -> Figures:
    """Measure the parts. Raises `RolegateError`."""
    before, parts = os.getloadavg()[0], options.parts
    with work_folder(options.folder) as folder:
        write_ms, levels = _write_ms(folder), options.in_flight if "cost" in parts else ()
        cost = [row for number in levels for row in await _cost(folder, options, number)]
        latency = await _latency(folder, options) if "latency" in parts else []
    return Figures((before, os.getloadavg()[0]), write_ms, cost, latency)


@asynccontextmanager
async def _variants(folder: Path, options: Options, play: Behaviour) -> AsyncIterator[list[_Variant]]:
    async with AsyncExitStack() as stack:
        models, retrieval = await stack.enter_async_context(played(play))
        running = []
        for name in ("", *options.variants):
            key, _, value = name.partition("=")
            section, _, key = key.rpartition(".")
            sections: Any = {section: {key: tomlkit.value(value)}} if name else {}
            home = folder / f"{time.time_ns()}"
            config = canned_config(home, [models.base_url], retrieval, **sections)
            running.append(_Variant(name or "as it is", await stack.enter_async_context(gateway(config))))
        yield running


async def _cost(folder: Path, options: Options, number: int) -> list[Load]:
    each = max(number, options.questions // _ROUNDS)
    async with _variants(folder, options, writes(at_once)) as variants:
        for turn in range(-1, _ROUNDS):
            for variant in variants:
                async with clients(variant.process.words[0], number) as ask:
                    begun = time.perf_counter()
                    async with variant.process.meter.watching() as used:
                        await in_flight(ask, range(each), number, f"{variant.name}, {number} in flight")
                    if turn >= 0:  # the first round warms up
                        rate = each / (time.perf_counter() - begun)
                        variant.rows.append((used.cpu_s / each * 1000, rate, used.grown_bytes / number / 1000))
    return [Load(one.name, number, *map(statistics.median, zip(*one.rows, strict=True))) for one in variants]


async def _latency(folder: Path, options: Options) -> list[Latency]:
    busy: dict[str, Busy] = {}
    paced = writes(lambda asked: Reply(at_once(asked).tokens, (), _FIRST_TOKEN_S, lambda: _TOKEN_S))

    async def play(request: web.Request) -> web.StreamResponse:
        run_id = ChatRequest("", [], request_id=request.headers.get(REQUEST_ID, "")).run_id
        with busy.setdefault(run_id, Busy()).working():
            return await paced(request)

    async with _variants(folder, options, play) as variants:
        for turn in range(-1, _ROUNDS):
            for variant in variants:
                async with clients(variant.process.words[0], 1) as ask:
                    await at_rate(_added(ask, busy, variant.rows if turn >= 0 else []), _numbers(options), options.rate)
    return [_times(variant) for variant in variants]


def _numbers(options: Options) -> range:
    return range(options.questions // _ROUNDS)


def _added(
    ask: Callable[[int], Awaitable[str]], busy: dict[str, Busy], rows: list[tuple[float, ...]]
) -> Callable[[int], Awaitable[None]]:
    async def measured(number: int) -> None:
        begun = time.perf_counter()
        run_id = await ask(number)
        rows.append((time.perf_counter() - begun, busy[run_id].seconds))

    return measured


def _times(variant: _Variant) -> Latency:
    added = [(took_s - busy_s) * 1000 for took_s, busy_s in variant.rows]
    models_ms = statistics.median(busy_s for _, busy_s in variant.rows) * 1000
    return Latency(variant.name, models_ms, statistics.median(added), quantile(added, 0.99))


def _write_ms(folder: Path) -> float:
    took = []
    with (folder / "write").open("wb", buffering=0) as file:
        for _ in range(50):
            begun = time.perf_counter()
            file.write(bytes(8192))
            os.fsync(file.fileno())
            took.append(time.perf_counter() - begun)
    return statistics.median(took) * 1000
