"""How late the gateway's event loop comes to what is due, while it gets hostile texts at every door: questions,
conversations, sub-queries, queries, feedback and filters from clients, replies and errors from models, passages from
retrieval. Harmless texts of the same sizes take turns with them in one run. Whoever comes while the loop is held waits
for the rest of it, so a hold counts for as long as it lasts.
"""

import argparse
import asyncio
import gzip
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rolegate.v1 import (
    answer_service_pb2,
    completion_service_pb2,
    execution_service_pb2,
    retrieval_service_pb2,
    run_service_pb2,
    usage_pb2,
    usage_service_pb2,
)
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub

from benchmarks.canned_config import canned_config
from benchmarks.child import child
from benchmarks.gateway_child import EVERY_S
from benchmarks.process_meter import ProcessMeter
from router.testing.pathological import any_hostile, harmless
from serving.files import write_atomically
from serving.logs import errors_only

_ROUNDS = 10
_LONGEST_S = 60.0


class Lag(msgspec.Struct, frozen=True):
    """Milliseconds that the event loop was late, over all time of the rounds of a kind."""

    p50: float
    p99: float
    p99_9: float
    most: float


class Figures(msgspec.Struct, frozen=True):
    """Figures of one run of the benchmark."""

    texts: int
    """Of each kind, at the doors; those of models and retrieval come on top."""
    outcomes: dict[str, int]
    """Of the hostile ones, by status."""
    hostile: Lag
    harmless: Lag
    own_mb: list[float]
    """Memory of the gateway's own after each pair of rounds."""
    descriptors: list[int]
    """Open files, after each pair of rounds."""


Call = Callable[[Callable[[int], str]], Awaitable[object]]
"""Calls with the texts that it makes, of so many characters at most."""


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench lag", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=10_000, metavar="N", help="of each kind (default: 10,000)")
    parser.add_argument("--in-flight", type=int, default=4, metavar="N", help="at once (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the texts")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    given = parser.parse_args(arguments)
    errors_only()
    figures = asyncio.run(_measured(given.texts, given.in_flight, given.seed))
    if given.json:
        write_atomically(given.json, msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    _show(figures, Console())
    return 0


async def _measured(texts: int, at_once: int, seed: int) -> Figures:
    outcomes, spans = Counter[str](), dict[bool, list[tuple[float, float]]]({True: [], False: []})
    own_mb, descriptors = list[float](), list[int]()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = await stack.enter_async_context(child("benchmarks.hostile_upstream", str(seed)))
        base_url, retrieval = upstream.told
        config, seen = canned_config(folder, base_url, retrieval, f"sqlite:///{folder}/runs.db"), folder / "lag.json"
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with child("benchmarks.gateway_child", str(config), "--quiet", "--lag", str(seen)) as gateway:
            address, http = gateway.told
            meter, chance = ProcessMeter(gateway.pid), random.Random(seed)
            with Progress(console=Console(stderr=True)) as progress:
                task = progress.add_task("texts", total=2 * texts)
                async with grpc.aio.insecure_channel(address) as channel:
                    calls = _calls(channel, session, http)
                    for number in range(2 * _ROUNDS):
                        hostile = number % 2 == 1
                        await session.get(f"{base_url.removesuffix('/v1')}/{'hostile' if hostile else 'harmless'}")
                        begun, turns = time.time(), iter(range(texts // _ROUNDS))

                        async def work(turns: Any = turns, hostile: bool = hostile) -> None:
                            for _ in turns:
                                outcome = await _called(chance.choice(calls), chance, hostile)
                                outcomes[outcome] += hostile
                                progress.advance(task)

                        async with asyncio.TaskGroup() as group:
                            for _ in range(at_once):
                                group.create_task(work())
                        spans[hostile].append((begun, time.time()))
                        if hostile:
                            own_mb.append(meter.own_bytes / 1e6)
                            descriptors.append(meter.descriptors)
        late = msgspec.json.decode(seen.read_bytes(), type=list[tuple[float, float]])
    lags = _lag(late, spans[True]), _lag(late, spans[False])
    return Figures(texts // _ROUNDS * _ROUNDS, dict(outcomes.most_common()), *lags, own_mb, descriptors)


async def _called(call: Call, chance: random.Random, hostile: bool) -> str:
    def text(most: int) -> str:
        made = any_hostile(chance, most)
        return made if hostile else harmless(len(made))

    try:
        async with asyncio.timeout(_LONGEST_S):
            await call(text)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    except aiohttp.ClientResponseError as error:
        return f"HTTP {error.status}"
    return "OK"


def _calls(channel: grpc.aio.Channel, session: aiohttp.ClientSession, http: str) -> list[Call]:
    """Every door, each with a text that is a little longer than it takes at most."""
    answers, completions, executions = (
        AnswerServiceStub(channel),
        CompletionServiceStub(channel),
        ExecutionServiceStub(channel),
    )
    runs, searches, usages = RunServiceStub(channel), RetrievalServiceStub(channel), UsageServiceStub(channel)
    role, user = usage_pb2.ROLE_ANSWER, completion_service_pb2.ChatMessage

    async def drained(stream: Any) -> None:
        async for _ in stream:
            pass

    async def chat(content: str, *, stream: bool) -> None:
        body = {"model": "rolegate", "stream": stream, "messages": [{"role": "user", "content": content}]}
        async with session.post(f"{http}/chat/completions", json=body, raise_for_status=True) as response:
            await response.read()

    async def raw(body: bytes, encoding: str = "identity") -> None:
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        async with session.post(f"{http}/chat/completions", data=body, headers=headers) as response:
            response.raise_for_status()

    def messages(text: Callable[[int], str]) -> list[completion_service_pb2.ChatMessage]:
        return [user(role="user", content=text(500_000)) for _ in range(2)]

    bomb = gzip.compress(b"a" * (256 << 20))
    feedback = run_service_pb2.SubmitFeedbackRequest
    return [
        lambda text: answers.Answer(answer_service_pb2.AnswerRequest(question=text(4100))),
        lambda text: drained(answers.StreamAnswer(answer_service_pb2.StreamAnswerRequest(question=text(4100)))),
        lambda text: executions.Execute(execution_service_pb2.ExecuteRequest(sub_query=text(4100))),
        lambda text: completions.Complete(
            completion_service_pb2.CompleteRequest(
                role=role, messages=messages(text), stop=[text(260) for _ in range(4)]
            )
        ),
        lambda text: drained(
            completions.StreamComplete(
                completion_service_pb2.StreamCompleteRequest(
                    role=role, messages=messages(text), stop=[text(260) for _ in range(17)]
                )
            )
        ),
        lambda text: searches.Search(
            retrieval_service_pb2.SearchRequest(queries=[text(8200) for _ in range(8)], top_k=10)
        ),
        lambda text: runs.ListRuns(run_service_pb2.ListRunsRequest(tenant=text(200_000), page_token=text(200_000))),
        lambda text: runs.GetRun(run_service_pb2.GetRunRequest(run_id=text(200_000))),
        lambda text: runs.SubmitFeedback(feedback(run_id=text(200), comment=text(500_000), gold_answer=text(500_000))),
        lambda text: usages.GetUsage(usage_service_pb2.GetUsageRequest(tenant=text(200_000))),
        lambda text: chat(text(4100), stream=False),
        lambda text: chat(text(4100), stream=True),
        lambda text: raw(text(1_000_000).encode(errors="replace")),
        lambda _text: raw(bomb, "gzip"),
    ]


def _lag(late: Sequence[tuple[float, float]], spans: Sequence[tuple[float, float]]) -> Lag:
    seen: list[float] = []
    for due, lag_s in late:
        if any(begun <= due < ended for begun, ended in spans):
            seen += [lag_s - waited * EVERY_S for waited in range(1 + int(max(0.0, lag_s) / EVERY_S))]
    seen.sort()
    p50, p99, p99_9 = (1000 * seen[int(share * (len(seen) - 1))] for share in (0.5, 0.99, 0.999))
    return Lag(p50, p99, p99_9, 1000 * seen[-1])


def _show(figures: Figures, console: Console) -> None:
    table = Table("ms late", "p50", "p99", "p99.9", "most")
    for name, lag in (("hostile", figures.hostile), ("harmless", figures.harmless)):
        table.add_row(name, *(f"{value:.1f}" for value in msgspec.structs.astuple(lag)))
    console.print(table)
    console.print(f"{figures.texts:,} hostile texts: {figures.outcomes}", markup=False)
    console.print(f"memory of its own, MB: {', '.join(f'{mb:.0f}' for mb in figures.own_mb)}")
    console.print(f"open files: {', '.join(map(str, figures.descriptors))}")
