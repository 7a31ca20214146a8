"""Measure the time, CPU and memory that the gateway itself needs, with simulated models, and
compare them with LiteLLM and with bare pipelines (programs that make the same calls, and do nothing
else).

paced  questions at a steady rate, with models that write one token at a time, for three gateways
       (by_address: retrieval over gRPC; in_process: retrieval inside the gateway's process;
       no_store: as in_process, but without a store) and two bare pipelines, P1 and P2
cpu    64 questions in flight, with models that answer immediately, for the same variants except
       no_store, and a third pipeline, SDK, which makes its model calls with LiteLLM's SDK
proxy  single model calls through the gateway's RPC Complete and through LiteLLM's proxy server
       (the latter needs --litellm)
load   CPU time and memory per question, with few and with many questions in flight

P1 uses aiohttp and plain asyncio, with retrieval over gRPC. P2 uses uvloop, parses bytes as they
arrive, and has retrieval inside its process.

Added time is the time of an answer minus the time during which at least one of its model calls was
in progress. Variants are measured in alternating order. Each variant has its own process, and so
have the models. The client and the retrieval service run in the benchmark's process. Compare
ratios, not absolute times.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
import psutil
from msgspec import Meta
from msgspec.structs import replace

from benchmarks import harness
from benchmarks.gateway import Double, OnePassage, canned_config, gateway, retrieval
from benchmarks.harness import Child, child, cpu_s, own_bytes, watching, work_folder
from benchmarks.litellm_proxy import Ask, completing, litellm_proxy, posting
from benchmarks.load import Order, clients, ordered
from benchmarks.rounds import Figure, Round, Wanted, cpu, figure, in_turns, p50, p99
from router.frozen import Frozen

Part = Literal["paced", "cpu", "proxy", "load"]
_DOUBLES: dict[str, tuple[Double, ...]] = {
    "by_address": (),
    "in_process": ("retriever",),
    "no_store": ("retriever", "no-store"),
}
_FIGURES: dict[Part, list[Wanted]] = {
    "paced": [
        Wanted(
            "added p50 to P1's, retrieval in the process",
            p50,
            "in_process",
            "P1",
            at_most=0.8,
        ),
        Wanted(
            "added p50 to P1's, by address",
            p50,
            "by_address",
            "P1",
            at_most=1.0,
        ),
        Wanted(
            "added p99 to P1's, retrieval in the process",
            p99,
            "in_process",
            "P1",
            at_most=1.0,
        ),
        Wanted(
            "added p99 to P1's, by address",
            p99,
            "by_address",
            "P1",
            at_most=1.0,
        ),
        Wanted(
            "CPU to P1's, retrieval in the process",
            cpu,
            "in_process",
            "P1",
            at_most=0.85,
        ),
        Wanted(
            "CPU to P1's, by address",
            cpu,
            "by_address",
            "P1",
            at_most=0.85,
        ),
        Wanted(
            "added p50 to P2's, retrieval in the process",
            p50,
            "in_process",
            "P2",
            at_most=1.5,
        ),
        Wanted(
            "CPU to P2's, retrieval in the process",
            cpu,
            "in_process",
            "P2",
            at_most=2.4,
        ),
        Wanted("the store adds, p50, ms", p50, "store", at_most=2.0),
    ],
    "cpu": [
        Wanted(
            "SDK's CPU to ours, retrieval in the process",
            cpu,
            "SDK",
            "in_process",
            at_least=8.0,
        ),
        Wanted(
            "SDK's CPU to ours, by address",
            cpu,
            "SDK",
            "by_address",
            at_least=8.0,
        ),
    ],
    "proxy": [
        Wanted(
            "CPU of LiteLLM's proxy to Complete's",
            cpu,
            "LiteLLM",
            "Complete",
            at_least=11.0,
        ),
        Wanted(
            "added p50 of LiteLLM's proxy to Complete's",
            p50,
            "LiteLLM",
            "Complete",
            at_least=7.0,
        ),
    ],
    "load": [
        Wanted(
            "CPU of a question, largest to smallest",
            cpu,
            "largest",
            "smallest",
            at_most=1.3,
        ),
        Wanted("memory of a question, most in flight, kB", p50, "memory", at_most=40.0),
    ],
}
_NUMBERS_PER_ROUND = 1_000_000
"""Each round numbers its questions from a multiple of this number. It exceeds the number of
questions in a round, so that no question is asked in two rounds.
"""
_PER_S = 20.0
_CONCURRENCY = 64
_CALLS = 256
_SINGLE_CALLS = 64


class Options(harness.Options):
    """Options of the benchmark."""

    parts: tuple[Part, ...] = ()
    """parts to measure: paced, cpu, proxy, load (default: all)"""
    rounds: Annotated[int, Meta(ge=2)] = 10
    """number of measured rounds of each part; one warm-up round runs first"""
    questions: Annotated[int, Meta(ge=2)] = 200
    """number of questions for each variant in each round"""
    in_flight: tuple[int, ...] = (
        10,
        100,
        1000,
        3000,
    )
    """part `load`: numbers of questions in flight to measure"""
    token_s: Annotated[float, Meta(gt=0)] = 0.01
    """part `paced`: seconds that the simulated model takes for each token; the first token
    takes five times as long
    """
    folder: Path | None = None
    """folder for stores and logs; the speed of its disk affects the results (default: a temporary
    folder)
    """
    litellm: Path | None = None
    """path of the Python interpreter of an environment with litellm[proxy], such as
    ~/litellm/bin/python; needed to measure LiteLLM's proxy server
    """


class Variant(Frozen):
    """Measurements of one variant over all rounds. Values are per question; in the part proxy, per
    model call.
    """

    variant: str
    p50: float
    """Median of the added time, in milliseconds. For the variant `memory`: median of the memory per
    question in flight, in kB.
    """
    p99: float
    """99th percentile of the same values."""
    cpu: float
    """Mean CPU time, in milliseconds."""


class Figures(Frozen):
    """Comparisons of variants, and the measurements of each variant."""

    figures: list[Figure]
    variants: list[Variant]


Measure = Callable[[Order], Awaitable[Round]]
Rounds = dict[str, list[Round]]
_seconds = msgspec.json.Decoder(dict[int, float]).decode


class Bench(Frozen):
    """Starts gateways and bare pipelines as processes, and measures them. All use the same
    simulated models and retrieval service.
    """

    stack: AsyncExitStack
    folder: Path
    models: Child
    retrieval: str
    """Address of the retrieval service, as host:port."""

    @property
    def base_url(self) -> str:
        """Base URL of the simulated models."""
        return self.models.words[0]

    async def start(self, *names: str) -> list[Child]:
        """Start the gateways and bare pipelines of the variants `names` concurrently, and return
        the processes.
        """
        return await asyncio.gather(
            *(self.stack.enter_async_context(self._process(name)) for name in names)
        )

    def _process(self, name: str) -> AbstractAsyncContextManager[Child]:
        if name in _DOUBLES:
            folder = self.folder / f"{name}-{time.time_ns()}"
            config = canned_config(folder, [self.base_url], self.retrieval)
            return gateway(config, *_DOUBLES[name])
        return child(
            "benchmarks.pipelines.process",
            name,
            self.base_url,
            self.retrieval,
            str(self.folder),
        )

    async def compared(self, names: tuple[str, ...], order: Order, rounds: int) -> Rounds:
        """Start the variants `names`, and measure each variant in all rounds under the load
        `order`. Return the results by variant. Each round has different questions.
        """

        def measured(measure: Measure) -> Callable[[int], Awaitable[Round]]:
            return lambda number: measure(replace(order, first=number * _NUMBERS_PER_ROUND))

        processes = await self.start(*names)
        measures = [await self.measure(process, order.at_once) for process in processes]
        return await in_turns(dict(zip(names, map(measured, measures), strict=True)), rounds)

    async def measure(self, process: Child, concurrency: int) -> Measure:
        """Return a function that measures the process under a load. At most `concurrency` questions
        may be in flight.
        """
        ask = await self.stack.enter_async_context(clients(process.words[0], concurrency))
        return partial(self.measured, process.watched, ask)

    async def measured(self, process: psutil.Process, ask: Ask, order: Order) -> Round:
        """Ask the questions of a load. Return the added time of each question, and the CPU time of
        the process per question.
        """
        await self.models.answer(b"")  # discards the times of earlier model calls
        before_s = cpu_s(process)
        took_s = await ordered(ask, order)
        used_s = cpu_s(process) - before_s

        busy_s = _seconds(await self.models.answer(b""))
        added_ms = [
            (took - busy_s.get(number, 0.0)) * 1000
            for number, took in enumerate(took_s, order.first)
        ]
        return Round(added_ms, used_s / order.questions * 1000)


async def measure(options: Options) -> Figures:
    """Measure the chosen parts. Raises `RolegateError` if a process cannot be started or ends."""
    figures = list[Figure]()
    variants = list[Variant]()
    for part in options.parts or get_args(Part):
        token_s = options.token_s if part == "paced" else 0.0
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(work_folder(options.folder))
            models = await stack.enter_async_context(
                child("benchmarks.pipelines.models", str(token_s))
            )
            address = await stack.enter_async_context(retrieval(OnePassage()))
            measured = await _PARTS[part](Bench(stack, folder, models, address), options)
        figures += [figure(wanted, measured) for wanted in _FIGURES[part] if wanted.of in measured]
        variants += [
            Variant(f"{part}: {name}", p50(rounds), p99(rounds), cpu(rounds))
            for name, rounds in measured.items()
        ]
    return Figures(figures, variants)


async def _paced(bench: Bench, options: Options) -> Rounds:
    order = Order(0, options.questions, per_s=_PER_S)
    measured = await bench.compared((*_DOUBLES, "P1", "P2"), order, options.rounds)
    pairs = zip(measured["in_process"], measured["no_store"], strict=True)
    store = [Round([p50([kept]) - p50([none])]) for kept, none in pairs]
    return {**measured, "store": store}


async def _cpu(bench: Bench, options: Options) -> Rounds:
    order = Order(0, options.questions, at_once=_CONCURRENCY)
    names = ("by_address", "in_process", "P1", "P2", "SDK")
    return await bench.compared(names, order, options.rounds)


async def _proxy(bench: Bench, options: Options) -> Rounds:
    """Measure the added time with sequential calls, and then the CPU time with concurrent calls."""
    enter = bench.stack.enter_async_context
    (complete,) = await bench.start("in_process")
    ways = {"Complete": (complete.watched, await enter(completing(complete.words[0])))}
    if options.litellm:
        process, base_url = await enter(
            litellm_proxy(options.litellm, bench.folder, bench.base_url)
        )
        ways["LiteLLM"] = (process, await enter(posting(base_url)))

    async def measured(process: psutil.Process, ask: Ask, number: int) -> Round:
        first = number * _NUMBERS_PER_ROUND
        added = await bench.measured(process, ask, Order(first, _SINGLE_CALLS))
        order = Order(first, _CALLS, at_once=_CONCURRENCY)
        return replace(added, cpu_ms=(await bench.measured(process, ask, order)).cpu_ms)

    return await in_turns(
        {name: partial(measured, *way) for name, way in ways.items()}, options.rounds
    )


async def _load(bench: Bench, options: Options) -> Rounds:
    (process,) = await bench.start("by_address")
    levels = options.in_flight
    measure = await bench.measure(process, max(levels))
    memory = list[Round]()
    await measure(Order(0, options.questions, at_once=min(levels)))
    idle_bytes = own_bytes(process.watched)

    async def loaded(level: int, number: int) -> Round:
        questions = max(level, options.questions)
        async with watching(process.watched) as samples:
            measured = await measure(Order(number * _NUMBERS_PER_ROUND, questions, at_once=level))
        if level == max(levels) and number:
            grown_bytes = max(0, *(memory_bytes - idle_bytes for memory_bytes, _ in samples))
            memory.append(Round([grown_bytes / level / 1000]))
        return measured

    measured = await in_turns(
        {f"{level} in flight": partial(loaded, level) for level in levels}, options.rounds
    )
    by_cpu = sorted(measured.values(), key=cpu)
    return {**measured, "memory": memory, "largest": by_cpu[-1], "smallest": by_cpu[0]}


_PARTS: dict[Part, Callable[[Bench, Options], Awaitable[Rounds]]] = {
    "paced": _paced,
    "cpu": _cpu,
    "proxy": _proxy,
    "load": _load,
}
