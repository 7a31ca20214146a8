"""The gateway's own costs before models that are played, beside bare pipelines and LiteLLM; variants in turns.

paced   questions at a steady rate, models that write a token at a time: the gateway (retrieval by address, retrieval in
        the process, the latter without a store), P1, P2 (`benchmarks.pipelines.server`), and no gateway at all
cpu     the same with models that answer at once, always so many in flight; LiteLLM's SDK for the same calls
proxy   one call of a model by the gateway's `Complete` and by LiteLLM's proxy server (needs --litellm)
tokens  streams as a role of the gateway reads them, and as aiohttp alone does on plain asyncio
load    CPU and memory of a question, with few and with many in flight

Added is the time of an answer beyond that in which at least one of its model calls was being worked on. Each variant is
a process of its own, and so are the models; who asks and the retrieval at an address are in the benchmark's. Compare
ratios.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
import psutil
from msgspec import Meta
from msgspec.structs import replace

from benchmarks import harness
from benchmarks.gateway import Double, OnePassage, canned_config, gateway, on_record_s, retrieval
from benchmarks.harness import Child, child, cpu_s, own_bytes, watching, work_folder
from benchmarks.litellm_proxy import Ask, completing, litellm_proxy, posting
from benchmarks.load import Order, clients, ordered
from benchmarks.pipelines.driven import DRIVEN, Kind, told
from benchmarks.pipelines.models import Pace
from benchmarks.spread import (
    Line,
    Round,
    cpu_ms,
    difference,
    extremes,
    in_turns,
    line,
    memory_kb,
    ratio,
    time_ms,
)

Part = Literal["paced", "cpu", "proxy", "tokens", "load"]
_EACH = 1_000_000
"""Question numbers that a round may use."""
_STREAMS, _CALLS, _ONE_BY_ONE = 16, 256, 64
_SYNCS, _RECORD = 20, b"x" * 200


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    parts: Annotated[tuple[Part, ...], Meta(description="of paced, cpu, proxy, tokens and load (default: all)")] = ()
    rounds: Annotated[int, Meta(ge=2, description="of each part, after one to warm up")] = 10
    questions: Annotated[int, Meta(ge=2, description="of each variant and round")] = 200
    rate: Annotated[float, Meta(gt=0, description="questions a second, of paced")] = 20.0
    at_once: Annotated[int, Meta(ge=1, description="questions or calls in flight, of cpu and proxy")] = 64
    in_flight: Annotated[tuple[int, ...], Meta(description="questions in flight, of load")] = (10, 100, 1000, 3000)
    token_s: Annotated[
        float, Meta(gt=0, description="seconds from one token to the next; to the first, five times")
    ] = 0.01
    tokens: Annotated[int, Meta(ge=1, description="of each stream, of tokens")] = 400
    folder: Annotated[Path, Meta(description="for stores and logs, as its disk matters")] | None = None
    litellm: Annotated[Path, Meta(description="the Python of an environment with litellm[proxy]")] | None = None
    quick: Annotated[bool, Meta(description="two rounds of a few questions, to see that all parts work")] = False


class Variant(msgspec.Struct, frozen=True):
    """A variant of a part, in milliseconds a question, call or token."""

    variant: str
    p50_ms: float
    """Added; of a sync and of a record, the whole."""
    p99_ms: float
    cpu_ms: float


class Figures(msgspec.Struct, frozen=True):
    """Figures of the parts that were asked for, and of their variants."""

    figures: list[Line]
    variants: list[Variant]


Measure = Callable[[Order], Awaitable[Round]]
_seconds = msgspec.json.Decoder(dict[str, float]).decode


class Bench:
    """Processes that are measured, before models and a retrieval that are played."""

    def __init__(self, stack: AsyncExitStack, folder: Path, models: Child, retrieval: str, tokens: int) -> None:
        """`tokens`: of a long stream."""
        self._stack, self._folder, self._models = stack, folder, models
        self._retrieval, self._tokens = retrieval, tokens
        self.base_url = models.words[0]

    def gateway(self, *doubles: Double) -> AbstractAsyncContextManager[Child]:
        """A gateway, with a new store."""
        config = canned_config(self._folder / f"{time.time_ns()}", [self.base_url], self._retrieval)
        return gateway(config, *doubles)

    def pipeline(self, name: str) -> AbstractAsyncContextManager[Child]:
        """P1 or P2."""
        return child("benchmarks.pipelines.server", name, self.base_url, self._retrieval, str(self._folder))

    def driven(self, kind: Kind) -> AbstractAsyncContextManager[Child]:
        """A process that makes the calls itself."""
        return child("benchmarks.pipelines.driven", kind, self.base_url, str(self._tokens))

    async def start(self, **opened: AbstractAsyncContextManager[Child]) -> dict[str, Child]:
        """Begin all of them, which takes a while."""
        begun = await asyncio.gather(*map(self._stack.enter_async_context, opened.values()))
        return dict(zip(opened, begun, strict=True))

    async def busy_s(self) -> dict[str, float]:
        """Seconds in which each run was being worked on since the last look."""
        return _seconds(await self._models.answer(b""))

    async def measure(self, process: Child, most: int = 1) -> Measure:
        """Questions, at most so many at once: their added times, and the process's CPU for one."""
        if process.words[0] == DRIVEN:
            asking = partial(told, process)
        else:
            asking = partial(ordered, await self._stack.enter_async_context(clients(process.words[0], most)))

        async def measure(order: Order) -> Round:
            await self.busy_s()
            before = cpu_s(process.watched)
            rows = await asking(order)
            used_s, busy_s = cpu_s(process.watched) - before, await self.busy_s()
            added = [(took_s - busy_s.get(run, 0.0)) * 1000 for run, took_s in rows]
            return Round(added, used_s / order.questions * 1000)

        return measure

    async def calls(
        self, opened: AbstractAsyncContextManager[Ask], process: psutil.Process | None, most: int
    ) -> Callable[[int], Awaitable[Round]]:
        """Single calls: one after the other, for what each adds; then so many at once, for their CPU."""
        ask = await self._stack.enter_async_context(opened)

        async def measure(_number: int) -> Round:
            added = list[float]()
            await self.busy_s()
            for number in range(_ONE_BY_ONE):
                begun = time.perf_counter()
                await ask(number)
                took_s = time.perf_counter() - begun
                added.append((took_s - sum((await self.busy_s()).values())) * 1000)
            before = cpu_s(process) if process else 0.0
            await ordered(ask, Order(0, _CALLS, at_once=most))
            used_s = cpu_s(process) - before if process else 0.0
            return Round(added, used_s / _CALLS * 1000)

        return measure

    async def litellm(self, python: Path) -> tuple[psutil.Process, str]:
        """LiteLLM's proxy server before the models; its process and base URL."""
        return await self._stack.enter_async_context(litellm_proxy(python, self._folder, self.base_url))

    async def syncs(self, _number: int) -> Round:
        """Syncs of a small append to a file beside the stores."""
        with (self._folder / "syncs.log").open("ab", buffering=0) as file:
            took_ms = list[float]()
            for _ in range(_SYNCS):
                file.write(_RECORD)
                begun = time.perf_counter()
                os.fdatasync(file.fileno())
                took_ms.append((time.perf_counter() - begun) * 1000)
        return Round(took_ms)


Found = tuple[list[Line], dict[str, list[Round]]]
"""Figures of a part, and the rounds of its variants."""


async def measure(options: Options) -> Figures:
    """Measure the parts. Raises `RolegateError`."""
    if options.quick:
        options = replace(
            options, rounds=2, questions=10, rate=40.0, at_once=4, in_flight=(2, 8), token_s=0.001, tokens=40
        )
    figures, variants, every = list[Line](), list[Variant](), range(options.rounds)
    for part in options.parts or get_args(Part):
        with work_folder(options.folder) as folder:
            lines, found = await _measured(part, folder, options)
        figures += lines
        for name, rounds in found.items():
            p50, p99 = (time_ms(rounds, share)(every) for share in (0.5, 0.99))
            variants.append(Variant(f"{part}: {name}", p50, p99, cpu_ms(rounds)(every)))
    return Figures(figures, variants)


async def _measured(part: Part, folder: Path, options: Options) -> Found:
    measures: dict[Part, tuple[Pace, Callable[[Bench, Options], Awaitable[Found]]]] = {
        "paced": ("paced", _paced),
        "cpu": ("at-once", _cpu),
        "proxy": ("at-once", _proxy),
        "tokens": ("tokens", _tokens),
        "load": ("at-once", _load),
    }
    pace, measured = measures[part]
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(child("benchmarks.pipelines.models", pace, str(options.token_s)))
        address = await stack.enter_async_context(retrieval(OnePassage()))
        return await measured(Bench(stack, folder, models, address, options.tokens), options)


def _orders(measures: Mapping[str, Measure], order: Order) -> dict[str, Callable[[int], Awaitable[Round]]]:
    """The same order for all, with questions that no other round has."""

    async def ordered(measure: Measure, number: int) -> Round:
        return await measure(replace(order, first=number * _EACH))

    return {name: partial(ordered, measure) for name, measure in measures.items()}


async def _paced(bench: Bench, options: Options) -> Found:
    begun = await bench.start(
        by_address=bench.gateway(),
        in_process=bench.gateway("retriever", "timed"),
        no_store=bench.gateway("retriever", "no-store"),
        P1=bench.pipeline("P1"),
        P2=bench.pipeline("P2"),
        no_gateway=bench.driven("direct"),
    )

    async def records(_number: int) -> Round:
        return Round([took_s * 1000 for took_s in await on_record_s(begun["in_process"])])

    measures = {name: await bench.measure(process) for name, process in begun.items()}
    variants = _orders(measures, Order(0, options.questions, per_s=options.rate))
    found = await in_turns({**variants, "on_record": records, "fdatasync": bench.syncs}, options.rounds)
    p50, p99 = ({name: time_ms(rounds, share) for name, rounds in found.items()} for share in (0.5, 0.99))
    cpu = {name: cpu_ms(rounds) for name, rounds in found.items()}
    store = difference(p50["in_process"], p50["no_store"])
    make = partial(line, rounds=options.rounds)
    lines = [
        make("added p50 to P1's, retrieval in the process", ratio(p50["in_process"], p50["P1"]), wanted=("≤", 0.8)),
        make("added p50 to P1's, by address", ratio(p50["by_address"], p50["P1"]), wanted=("≤", 1.0)),
        make("added p99 to P1's, retrieval in the process", ratio(p99["in_process"], p99["P1"]), wanted=("≤", 1.0)),
        make("added p99 to P1's, by address", ratio(p99["by_address"], p99["P1"]), wanted=("≤", 1.0)),
        make(
            "CPU of a question to P1's, retrieval in the process",
            ratio(cpu["in_process"], cpu["P1"]),
            wanted=("≤", 0.85),
        ),
        make("CPU of a question to P1's, by address", ratio(cpu["by_address"], cpu["P1"]), wanted=("≤", 0.85)),
        make("added p50 to P2's", ratio(p50["in_process"], p50["P2"]), wanted=("≤", 1.5)),
        make("CPU of a question to P2's", ratio(cpu["in_process"], cpu["P2"]), wanted=("≤", 2.4)),
        make("the store adds, p50, ms", store, wanted=("≤", 2.0)),
        make("the store adds, fdatasyncs' worth", ratio(store, p50["fdatasync"]), wanted=("≤", 8.0)),
        make("on record before a call, p99, ms", p99["on_record"], wanted=("≤", 1.0)),
    ]
    return lines, found


async def _cpu(bench: Bench, options: Options) -> Found:
    begun = await bench.start(
        by_address=bench.gateway(),
        in_process=bench.gateway("retriever"),
        no_store=bench.gateway("retriever", "no-store"),
        P1=bench.pipeline("P1"),
        P2=bench.pipeline("P2"),
        no_gateway=bench.driven("direct"),
        SDK=bench.driven("litellm"),
        SDK_streamed=bench.driven("litellm-streamed"),
    )
    most = options.at_once
    measures = {name: await bench.measure(process, most) for name, process in begun.items()}
    found = await in_turns(_orders(measures, Order(0, options.questions, at_once=most)), options.rounds)
    cpu = {name: cpu_ms(rounds) for name, rounds in found.items()}
    make, sdk = partial(line, rounds=options.rounds), f"LiteLLM SDK's CPU to a question's, {most} in flight"
    lines = [
        make(f"{sdk}, retrieval in the process", ratio(cpu["SDK"], cpu["in_process"]), wanted=("≥", 8.0)),
        make(f"{sdk}, by address", ratio(cpu["SDK"], cpu["by_address"]), wanted=("≥", 8.0)),
        make(f"{sdk}, streamed, by address", ratio(cpu["SDK_streamed"], cpu["by_address"])),
        make(f"CPU of a question to P1's, {most} in flight, by address", ratio(cpu["by_address"], cpu["P1"])),
        make(f"CPU of a question to P2's, {most} in flight", ratio(cpu["in_process"], cpu["P2"])),
    ]
    return lines, found


async def _proxy(bench: Bench, options: Options) -> Found:
    complete = (await bench.start(complete=bench.gateway("retriever")))["complete"]
    variants = {
        "straight": await bench.calls(posting(bench.base_url), None, options.at_once),
        "Complete": await bench.calls(completing(complete.words[0]), complete.watched, options.at_once),
    }
    if options.litellm:
        process, base_url = await bench.litellm(options.litellm)
        variants["LiteLLM"] = await bench.calls(posting(base_url), process, options.at_once)
    found = await in_turns(variants, options.rounds)
    if not options.litellm:
        return [], found
    proxy, own = found["LiteLLM"], found["Complete"]
    name, make = "LiteLLM proxy's to Complete's", partial(line, rounds=options.rounds)
    cpu, p50 = ratio(cpu_ms(proxy), cpu_ms(own)), ratio(time_ms(proxy, 0.5), time_ms(own, 0.5))
    return [make(f"CPU, {name}", cpu, wanted=("≥", 11.0)), make(f"added p50, {name}", p50, wanted=("≥", 7.0))], found


async def _tokens(bench: Bench, options: Options) -> Found:
    begun = await bench.start(role=bench.driven("tokens-gateway"), aiohttp=bench.driven("tokens-aiohttp"))

    async def of_token(measure: Measure, number: int) -> Round:
        measured = await measure(Order(number * _EACH, _STREAMS, at_once=_STREAMS))
        return replace(measured, cpu_ms=measured.cpu_ms / options.tokens)

    variants = {name: partial(of_token, await bench.measure(process)) for name, process in begun.items()}
    found = await in_turns(variants, options.rounds)
    figure = ratio(*(cpu_ms(rounds) for rounds in found.values()))
    name = f"CPU of a streamed token to an aiohttp reader's, {_STREAMS} streams"
    return [line(name, figure, options.rounds, ("≤", 0.4))], found


async def _load(bench: Bench, options: Options) -> Found:
    process, levels = (await bench.start(gateway=bench.gateway()))["gateway"], options.in_flight
    measure = await bench.measure(process, max(levels))
    await measure(Order(0, options.questions, at_once=min(levels)))
    idle = own_bytes(process.watched)

    async def loaded(level: int, number: int) -> Round:
        async with watching(process.watched, idle) as used:
            measured = await measure(Order(number * _EACH, max(level, options.questions), at_once=level))
        return replace(measured, memory_kb=used.grown_bytes / level / 1000)

    found = await in_turns({f"{level} in flight": partial(loaded, level) for level in levels}, options.rounds)
    most = found[f"{max(levels)} in flight"]
    name = f"CPU of a question, largest to smallest, {min(levels)} to {max(levels)} in flight"
    lines = [
        line(name, extremes([cpu_ms(rounds) for rounds in found.values()]), options.rounds, ("≤", 1.3)),
        line(f"memory of a question, {max(levels)} in flight, kB", memory_kb(most), options.rounds, ("≤", 40.0)),
    ]
    return lines, found
