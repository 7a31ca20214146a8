"""Lateness of the gateway's event loop while it gets hostile texts at every door: questions, conversations,
sub-queries, queries, feedback and filters from clients, replies and errors from models, passages from retrieval.
Harmless texts of the same sizes take turns with them in one run. Whoever comes while the loop is held waits for the
rest of it, so a hold counts for as long as it lasts.
"""

import asyncio
import gzip
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Annotated, Any

import aiohttp
import grpc.aio
import msgspec
from aiohttp import web
from msgspec import Meta
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import usage_pb2
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.execution_service_pb2 import ExecuteRequest
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub
from rolegate.v1.retrieval_service_pb2 import SearchRequest
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.usage_service_pb2 import GetUsageRequest
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub

from benchmarks import harness
from benchmarks.gateway import EVERY_S, canned_config, gateway, played
from benchmarks.harness import work_folder
from benchmarks.load import in_flight, quantile
from router.protocol import Passage
from router.testing.openai_server import Behaviour, ChatRequest, Reply, replies, writes
from router.testing.pathological import any_hostile, harmless

_ROUNDS = 10
_LONGEST_S = 60.0
_NO_REPLY = 0.1
"""The share of replies that are none."""
_DEEP = b"[" * 100_000
_BOMB, _LINES, _EVENTS = (
    gzip.compress(piece * ((64 << 20) // len(piece)), 9) for piece in (b"x", b"\n", b"data: {}\n\n")
)
_INFLATES, _STREAM = {"Content-Encoding": "gzip"}, "text/event-stream"
NO_REPLIES: tuple[Behaviour, ...] = (
    replies(b'{"choices":' + _DEEP),
    replies(b"data: " + _DEEP + b"\n\n", _STREAM),
    replies(_DEEP, status=500),
    replies(_BOMB, status=500, headers=_INFLATES),
    replies(_BOMB, headers=_INFLATES),
    replies(_LINES, _STREAM, headers=_INFLATES),
    replies(_EVENTS, _STREAM, headers=_INFLATES),
    replies(b"x" * (1 << 20), "text/plain", 400),
    replies(b"x" * (1 << 21), _STREAM),
)
"""Bodies that inflate, JSON that is nested too deeply, lines and errors without an end."""

Text = Callable[[int], str]
"""A text of so many characters at most."""
Call = Callable[[Text], Awaitable[object]]


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    texts: Annotated[int, Meta(ge=_ROUNDS, description="of each kind")] = 10_000
    in_flight: Annotated[int, Meta(ge=1, description="calls at once")] = 4
    seed: Annotated[int, Meta(description="of the texts")] = 0


class Lag(msgspec.Struct, frozen=True):
    """Milliseconds that the event loop was late, over all time of the rounds of a kind."""

    texts: str
    p50_ms: float
    p99_ms: float
    p99_9_ms: float
    most_ms: float


class Figures(msgspec.Struct, frozen=True):
    """Lag of both kinds, and what hostile texts left behind."""

    outcomes: dict[str, int]
    """Of the hostile ones, by status."""
    lag: list[Lag]
    own_mb: list[float]
    """Memory of the gateway's own after each pair of rounds."""
    descriptors: list[int]
    """Open files, after each pair of rounds."""


class _Hostile:
    """Models and a retriever that write whatever is hardest to read, most of it within the protocol."""

    def __init__(self, seed: int) -> None:
        self._chance, self.hostile = random.Random(seed), False

    def text(self, most: int) -> str:
        """A text of the kind of now."""
        made = any_hostile(self._chance, most)
        return made if self.hostile else harmless(len(made))

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """A completion, or something that is none."""
        if self.hostile and self._chance.random() < _NO_REPLY:
            return await self._chance.choice(NO_REPLIES)(request)
        return await writes(lambda asked: Reply([self._written(asked)]))(request)

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Passages that are longer than what is shown of them."""
        return [
            [Passage(f"p{at}", self.text(400), self.text(20_000), 0.5, self.text(100)) for at in range(top_k)]
            for _ in queries
        ]

    def _written(self, asked: ChatRequest) -> str:
        if self.hostile and self._chance.random() < _NO_REPLY:
            return self.text(200_000)
        match asked.model, len(asked.texts):
            case "delegator", 2:
                return f"<search>{msgspec.json.encode([self.text(1500) for _ in range(4)]).decode()}</search>"
            case "delegator", _:
                return "<stop/>Enough evidence<stop>"
            case "executor", 2:
                return f"<search>{self.text(1500)}</search>"
            case "executor", _:
                points = "\n".join(f"- {self.text(2500)}" for _ in range(3))
                return f"<answer>{self.text(2500)}</answer>\n<evidence>{points}</evidence>"
        return f"<answer>{self.text(20_000)}</answer>"


async def measure(options: Options) -> Figures:
    """Send texts of both kinds in turns."""
    outcomes, spans = Counter[str](), list[tuple[bool, float, float]]()
    own_mb, descriptors = list[float](), list[int]()
    outside, chance, each = _Hostile(options.seed), random.Random(options.seed), options.texts // _ROUNDS
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(work_folder(None))
        models, retrieval = await stack.enter_async_context(played(outside, retriever=outside))
        config, seen = canned_config(folder, [models.base_url], retrieval), folder / "lag.json"
        async with (
            gateway(config, str(seen)) as process,
            aiohttp.ClientSession() as session,
            grpc.aio.insecure_channel(process.words[0]) as channel,
        ):
            calls = _calls(channel, session, process.words[1])

            async def send(_number: int) -> str:
                return await _called(chance.choice(calls), outside.text)

            for number in range(2 * _ROUNDS):
                outside.hostile, begun = number % 2 == 1, time.time()
                found = await in_flight(send, range(each), options.in_flight, f"round {number + 1}")
                spans.append((outside.hostile, begun, time.time()))
                if outside.hostile:
                    outcomes.update(found)
                    own_mb.append(process.meter.own_bytes / 1e6)
                    descriptors.append(process.meter.descriptors)
        late = msgspec.json.decode(seen.read_bytes(), type=list[tuple[float, float]])
    lags = [
        _lag(name, late, [(begun, ended) for kind, begun, ended in spans if kind == hostile])
        for name, hostile in (("hostile", True), ("harmless", False))
    ]
    return Figures(dict(outcomes.most_common()), lags, own_mb, descriptors)


async def _called(call: Call, text: Text) -> str:
    """The status of a call."""
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
    answers, completions, runs = AnswerServiceStub(channel), CompletionServiceStub(channel), RunServiceStub(channel)
    execute, search = ExecutionServiceStub(channel).Execute, RetrievalServiceStub(channel).Search
    usage = UsageServiceStub(channel).GetUsage

    async def drained(stream: Any) -> None:
        async for _ in stream:
            pass

    async def chat(content: str, *, stream: bool) -> None:
        body = {"model": "rolegate", "stream": stream, "messages": [{"role": "user", "content": content}]}
        await raw(msgspec.json.encode(body))

    async def raw(body: bytes, encoding: str = "identity") -> None:
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        async with session.post(f"{http}/chat/completions", data=body, headers=headers) as response:
            response.raise_for_status()
            await response.read()

    def conversation(text: Text, stops: int) -> dict[str, Any]:
        messages = [completion_pb.ChatMessage(role="user", content=text(500_000)) for _ in range(2)]
        return {"role": usage_pb2.ROLE_ANSWER, "messages": messages, "stop": [text(260) for _ in range(stops)]}

    bomb = gzip.compress(b"a" * (256 << 20))
    return [
        lambda text: answers.Answer(answer_pb.AnswerRequest(question=text(4100))),
        lambda text: drained(answers.StreamAnswer(answer_pb.StreamAnswerRequest(question=text(4100)))),
        lambda text: execute(ExecuteRequest(sub_query=text(4100))),
        lambda text: completions.Complete(completion_pb.CompleteRequest(**conversation(text, 4))),
        lambda text: drained(completions.StreamComplete(completion_pb.StreamCompleteRequest(**conversation(text, 17)))),
        lambda text: search(SearchRequest(queries=[text(8200) for _ in range(8)], top_k=10)),
        lambda text: runs.ListRuns(run_pb.ListRunsRequest(tenant=text(200_000), page_token=text(200_000))),
        lambda text: runs.GetRun(run_pb.GetRunRequest(run_id=text(200_000))),
        lambda text: runs.SubmitFeedback(
            run_pb.SubmitFeedbackRequest(run_id=text(200), comment=text(500_000), gold_answer=text(500_000))
        ),
        lambda text: usage(GetUsageRequest(tenant=text(200_000))),
        lambda text: chat(text(4100), stream=False),
        lambda text: chat(text(4100), stream=True),
        lambda text: raw(text(1_000_000).encode(errors="replace")),
        lambda _text: raw(bomb, "gzip"),
    ]


def _lag(name: str, late: Sequence[tuple[float, float]], spans: Sequence[tuple[float, float]]) -> Lag:
    seen: list[float] = []
    for due, lag_s in late:
        if any(begun <= due < ended for begun, ended in spans):
            seen += [1000 * (lag_s - waited * EVERY_S) for waited in range(1 + int(max(0.0, lag_s) / EVERY_S))]
    return Lag(name, *(quantile(seen, share) for share in (0.5, 0.99, 0.999, 1.0)))
