"""The gateway's own cost in front of simulated models, compared with bare pipelines and LiteLLM.

paced   questions at a steady rate, with models that write one token at a time: the gateway
        (retrieval over gRPC; in-process retrieval; in-process retrieval without a store), P1, P2
        (see `benchmarks.pipelines.process`) and no gateway
cpu     the same with 64 questions in flight and models that answer immediately, plus LiteLLM's SDK
        making the same calls
proxy   single model calls through the gateway's `Complete` and through LiteLLM's proxy server
        (needs --litellm)
tokens  16 concurrent streams, read by a role of the gateway and by aiohttp on plain asyncio
load    CPU and memory of a question, with few and with many in flight

Added time is the time of an answer minus the time in which at least one of its model calls was in
progress. Variants are measured in alternating order. Each variant runs in its own process, and so
do the models; the client and the retrieval service run in the benchmark's process. Compare ratios,
not absolute times.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
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
from benchmarks.litellm_proxy import completing, litellm_proxy, posting
from benchmarks.load import Order, clients, ordered
from benchmarks.pipelines.models import Pace
from benchmarks.pipelines.process import DRIVEN, TOKENS
from benchmarks.rounds import Figure, Round, Wanted, cpu, figure, in_turns, p50, p99

Part = Literal["paced", "cpu", "proxy", "tokens", "load"]
_DOUBLES: dict[str, tuple[Double, ...]] = {
    "by_address": (),
    "in_process": ("retriever", "timed"),
    "no_store": ("retriever", "no-store"),
}
_FIGURES: dict[Part, list[Wanted]] = {
    "paced": [
        Wanted("added p50 to P1's, retrieval in the process", p50, "in_process", "P1", most=0.8),
        Wanted("added p50 to P1's, by address", p50, "by_address", "P1", most=1.0),
        Wanted("added p99 to P1's, retrieval in the process", p99, "in_process", "P1", most=1.0),
        Wanted("added p99 to P1's, by address", p99, "by_address", "P1", most=1.0),
        Wanted(
            "CPU of a question to P1's, retrieval in the process",
            cpu,
            "in_process",
            "P1",
            most=0.85,
        ),
        Wanted("CPU of a question to P1's, by address", cpu, "by_address", "P1", most=0.85),
        Wanted("added p50 to P2's, retrieval in the process", p50, "in_process", "P2", most=1.5),
        Wanted(
            "CPU of a question to P2's, retrieval in the process", cpu, "in_process", "P2", most=2.4
        ),
        Wanted("the store adds, p50, ms", p50, "store", most=2.0),
        Wanted("the store adds, p50, fdatasyncs' worth", p50, "store", "fdatasync", most=8.0),
        Wanted("on record before a call, p99, ms", p99, "on_record", most=1.0),
    ],
    "cpu": [
        Wanted(
            "LiteLLM SDK's CPU to a question's, retrieval in the process",
            cpu,
            "SDK",
            "in_process",
            least=8.0,
        ),
        Wanted(
            "LiteLLM SDK's CPU to a question's, by address", cpu, "SDK", "by_address", least=8.0
        ),
        Wanted("the same, streamed, retrieval in the process", cpu, "SDK_streamed", "in_process"),
        Wanted("the same, streamed, by address", cpu, "SDK_streamed", "by_address"),
        Wanted("CPU of a question to P1's, 64 in flight, by address", cpu, "by_address", "P1"),
        Wanted(
            "CPU of a question to P2's, 64 in flight, retrieval in the process",
            cpu,
            "in_process",
            "P2",
        ),
    ],
    "proxy": [
        Wanted(
            "CPU of a call, LiteLLM proxy's to Complete's", cpu, "LiteLLM", "Complete", least=11.0
        ),
        Wanted(
            "added p50 of a call, LiteLLM proxy's to Complete's",
            p50,
            "LiteLLM",
            "Complete",
            least=7.0,
        ),
    ],
    "tokens": [
        Wanted(
            "CPU of a streamed token to an aiohttp reader's, 16 streams",
            cpu,
            "role",
            "aiohttp",
            most=0.4,
        )
    ],
    "load": [
        Wanted("CPU of a question, largest to smallest", cpu, "largest", "smallest", most=1.3),
        Wanted("memory of a question, most in flight, kB", p50, "memory", most=40.0),
    ],
}
_PACES: dict[Part, Pace] = {"paced": "paced", "tokens": "tokens"}
_EACH = 1_000_000
"""Question numbers that a round may use."""
_AT_ONCE = 64
_STREAMS = 16
_CALLS = 256
_ONE_BY_ONE = 64
_SYNCS = 20
_RECORD = b"x" * 200


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    parts: Annotated[
        tuple[Part, ...],
        Meta(description="of paced, cpu, proxy, tokens, load (default: all)"),
    ] = ()
    rounds: Annotated[int, Meta(ge=2, description="of each part, after one to warm up")] = 10
    questions: Annotated[int, Meta(ge=2, description="of each variant and round")] = 200
    rate: Annotated[float, Meta(gt=0, description="questions a second, of paced")] = 20.0
    in_flight: Annotated[tuple[int, ...], Meta(description="questions in flight, of load")] = (
        10,
        100,
        1000,
        3000,
    )
    token_s: Annotated[
        float, Meta(gt=0, description="seconds for a token; for the first, five times")
    ] = 0.01
    folder: Annotated[Path, Meta(description="for stores and logs, as its disk matters")] | None = (
        None
    )
    litellm: (
        Annotated[Path, Meta(description="the Python of an environment with litellm[proxy]")] | None
    ) = None
    quick: Annotated[
        bool, Meta(description="two rounds of a few quick questions, to see that all parts work")
    ] = False


class Variant(msgspec.Struct, frozen=True):
    """A variant of a part; milliseconds of a question, call or token, but for memory."""

    variant: str
    p50: float
    """Added, where there is something to add to."""
    p99: float
    cpu: float


class Figures(msgspec.Struct, frozen=True):
    """Figures of the parts that were asked for, and of their variants."""

    figures: list[Figure]
    variants: list[Variant]


Measure = Callable[[Order], Awaitable[Round]]
Rounds = dict[str, list[Round]]
_seconds = msgspec.json.Decoder(dict[int, float]).decode
_times = msgspec.json.Decoder(list[float]).decode


@dataclass(frozen=True, slots=True)
class Bench:
    """Processes that are measured, before models and a retrieval that are played."""

    stack: AsyncExitStack
    folder: Path
    models: Child
    retrieval: str

    @property
    def base_url(self) -> str:
        """Of the models."""
        return self.models.words[0]

    async def start(self, *names: str) -> dict[str, Child]:
        """Begin gateways and bare means, all at once, as that takes a while."""
        begun = await asyncio.gather(
            *(self.stack.enter_async_context(self._process(name)) for name in names)
        )
        return dict(zip(names, begun, strict=True))

    def _process(self, name: str) -> AbstractAsyncContextManager[Child]:
        if name in _DOUBLES:
            return gateway(
                canned_config(
                    self.folder / f"{name}-{time.time_ns()}", [self.base_url], self.retrieval
                ),
                *_DOUBLES[name],
            )
        return child(
            "benchmarks.pipelines.process", name, self.base_url, self.retrieval, str(self.folder)
        )

    async def measure(self, process: Child, most: int = 1) -> Measure:
        """Measure a process that was begun, with at most so many questions at once."""
        if process.words[0] != DRIVEN:
            ask = await self.stack.enter_async_context(clients(process.words[0], most))
            return self.measured(process.watched, partial(ordered, ask))

        async def told(order: Order) -> list[float]:
            return _times(await process.answer(msgspec.json.encode(order)))

        return self.measured(process.watched, told)

    def measured(
        self, process: psutil.Process | None, asking: Callable[[Order], Awaitable[list[float]]]
    ) -> Measure:
        """Measure added times, and the process's CPU for a question."""

        async def measure(order: Order) -> Round:
            await self.models.answer(b"")  # what was before
            before = cpu_s(process) if process else 0.0
            took_s = await asking(order)
            used_s = cpu_s(process) - before if process else 0.0
            busy_s = _seconds(await self.models.answer(b""))
            added = [
                (took - busy_s.get(number, 0.0)) * 1000
                for number, took in enumerate(took_s, order.first)
            ]
            return Round(added, used_s / order.questions * 1000)

        return measure

    async def syncs(self, _number: int) -> Round:
        """Sync small appends to a file beside the stores."""
        took_ms = list[float]()
        with (self.folder / "syncs.log").open("ab", buffering=0) as file:
            for _ in range(_SYNCS):
                file.write(_RECORD)
                begun = time.perf_counter()
                os.fdatasync(file.fileno())
                took_ms.append((time.perf_counter() - begun) * 1000)
        return Round(took_ms)


async def measure(options: Options) -> Figures:
    """Measure the parts. Raises `RolegateError`."""
    if options.quick:
        options = replace(
            options, rounds=2, questions=5, rate=40.0, in_flight=(2, 8), token_s=0.001
        )
    figures = list[Figure]()
    variants = list[Variant]()
    parts = {
        "paced": _paced,
        "cpu": _cpu,
        "proxy": _proxy,
        "tokens": _tokens,
        "load": _load,
    }
    for part in options.parts or get_args(Part):
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(work_folder(options.folder))
            played = child(
                "benchmarks.pipelines.models", _PACES.get(part, "at-once"), str(options.token_s)
            )
            models = await stack.enter_async_context(played)
            bench = Bench(
                stack, folder, models, await stack.enter_async_context(retrieval(OnePassage()))
            )
            found = await parts[part](bench, options)
        figures += [figure(wanted, found) for wanted in _FIGURES[part] if wanted.of in found]
        variants += [
            Variant(f"{part}: {name}", p50(each), p99(each), cpu(each))
            for name, each in found.items()
        ]
    return Figures(figures, variants)


def _rounds(measure: Measure, order: Order) -> Callable[[int], Awaitable[Round]]:
    """The same order in each round, with questions that no other round has."""
    return lambda number: measure(replace(order, first=number * _EACH))


async def _paced(bench: Bench, options: Options) -> Rounds:
    begun = await bench.start(*_DOUBLES, "P1", "P2", "no_gateway")
    order = Order(0, options.questions, per_s=options.rate)
    variants = {
        name: _rounds(await bench.measure(process), order) for name, process in begun.items()
    }

    async def on_record(_number: int) -> Round:
        return Round([took_s * 1000 for took_s in await on_record_s(begun["in_process"])])

    found = await in_turns(
        {**variants, "on_record": on_record, "fdatasync": bench.syncs}, options.rounds
    )
    both = zip(found["in_process"], found["no_store"], strict=True)
    return {**found, "store": [Round([p50([kept]) - p50([none])]) for kept, none in both]}


async def _cpu(bench: Bench, options: Options) -> Rounds:
    begun = await bench.start(*_DOUBLES, "P1", "P2", "no_gateway", "SDK", "SDK_streamed")
    order = Order(0, options.questions, at_once=_AT_ONCE)
    variants = {
        name: _rounds(await bench.measure(process, _AT_ONCE), order)
        for name, process in begun.items()
    }
    return await in_turns(variants, options.rounds)


async def _proxy(bench: Bench, options: Options) -> Rounds:
    """Calls one after the other, for what each adds; then many at once, for their CPU."""
    enter = bench.stack.enter_async_context
    complete = (await bench.start("in_process"))["in_process"]
    ways = {
        "straight": (await enter(posting(bench.base_url)), None),
        "Complete": (await enter(completing(complete.words[0])), complete.watched),
    }
    if options.litellm:
        process, base_url = await enter(
            litellm_proxy(options.litellm, bench.folder, bench.base_url)
        )
        ways["LiteLLM"] = await enter(posting(base_url)), process

    async def measured(measure: Measure, number: int) -> Round:
        added = await measure(Order(number * _EACH, _ONE_BY_ONE))
        return replace(
            added, cpu_ms=(await measure(Order(number * _EACH, _CALLS, at_once=_AT_ONCE))).cpu_ms
        )

    variants = {
        name: partial(measured, bench.measured(process, partial(ordered, ask)))
        for name, (ask, process) in ways.items()
    }
    return await in_turns(variants, options.rounds)


async def _tokens(bench: Bench, options: Options) -> Rounds:
    begun = await bench.start("role", "aiohttp")
    order = Order(0, _STREAMS, at_once=_STREAMS)
    variants = {
        name: _rounds(await bench.measure(process), order) for name, process in begun.items()
    }
    found = await in_turns(variants, options.rounds)
    return {
        name: [replace(each, cpu_ms=each.cpu_ms / TOKENS) for each in rounds]
        for name, rounds in found.items()
    }


async def _load(bench: Bench, options: Options) -> Rounds:
    process = (await bench.start("by_address"))["by_address"]
    levels = options.in_flight
    measure = await bench.measure(process, max(levels))
    memory = list[Round]()
    await measure(Order(0, options.questions, at_once=min(levels)))
    idle = own_bytes(process.watched)

    async def loaded(level: int, number: int) -> Round:
        async with watching(process.watched, idle) as used:
            found = await measure(
                Order(number * _EACH, max(level, options.questions), at_once=level)
            )
        if level == max(levels) and number:
            memory.append(Round([used.grown_bytes / level / 1000]))
        return found

    found = await in_turns(
        {f"{level} in flight": partial(loaded, level) for level in levels}, options.rounds
    )
    by_cpu = sorted(found.values(), key=cpu)
    return {**found, "memory": memory, "largest": by_cpu[-1], "smallest": by_cpu[0]}
