"""No text from outside holds the event loop: its cost is linear in its length, at every entry."""

import asyncio
import gzip
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf

import aiohttp
import grpc
import pytest
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import execution_service_pb2 as execution_pb
from rolegate.v1 import retrieval_service_pb2 as retrieval_pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import usage_pb2
from rolegate.v1 import usage_service_pb2 as usage_service_pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub

from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.models import Prompt
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.protocol import Passage
from tests.openai_behaviours import replies
from tests.openai_server import MODEL, OpenAIServer, serving
from tests.openai_server import streams as event_stream
from tests.router.accounts import open_access
from tests.router.deployment import STOP, Deployment, Kept, block, report
from tests.router.edge.wire import connected, info_of, served, whole_server
from tests.router.pathological import HOSTILE
from tests.scripted_model import ScriptedModel

_MAX_GROWTH = 2.6
"""Max growth of the time for twice the text; 2 if the time is linear, 4 if it is quadratic."""


class Outside:
    """All texts that reach a gateway from outside; a hostile text is put into one place at a
    time.
    """

    def __init__(self) -> None:
        self.text = {"decision": "", "turn": "", "report": "", "answer": "", "passage": ""}

    def delegates(self, prompt: Prompt) -> str:
        if self.text["decision"]:
            return self.text["decision"] if len(prompt.messages) == 2 else STOP
        return block("Who directed Heat?") if len(prompt.messages) == 2 else STOP

    def executes(self, prompt: Prompt) -> str:
        if len(prompt.messages) == 2:
            return self.text["turn"] or "<search>Heat</search>"
        return report("Michael Mann", self.text["report"] or "Heat is a film by Michael Mann.")

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        return [
            [Passage("p1", "Heat", f"Heat is a film by Michael Mann. {self.text['passage']}", 0.9)]
            for _ in queries
        ]


Door = Callable[[str], Awaitable[object]]


@asynccontextmanager
async def doors() -> AsyncIterator[dict[str, tuple[int, Door]]]:
    """Yield by name the length of a text and a call that sends such a text."""
    outside = Outside()
    deployment = Deployment(
        ScriptedModel(outside.delegates),
        ScriptedModel(outside.executes),
        ScriptedModel(
            lambda _prompt: f"<answer>{outside.text['answer'] or 'Michael Mann'}</answer>"
        ),
        retriever=outside,
    )
    store = Kept()
    server = whole_server(deployment, store, retriever=outside)
    http = HTTPServer(openai_app(deployment.gateway(store), open_access()), 0.0)
    async with AsyncExitStack() as stack:
        port = await server.start("127.0.0.1:0")
        http_address = await http.start("127.0.0.1:0", "http")
        stack.push_async_callback(server.drain, 0)
        stack.push_async_callback(http.drain)
        channel = await stack.enter_async_context(connected(port))
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def complete(text: str) -> None:
            messages = [completion_pb.ChatMessage(role="user", content=text)]
            request = completion_pb.CompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=messages)
            await CompletionServiceStub(channel).Complete(request)

        async def answer(text: str) -> None:
            await AnswerServiceStub(channel).Answer(answer_pb.AnswerRequest(question=text))

        async def execute(text: str) -> None:
            await ExecutionServiceStub(channel).Execute(execution_pb.ExecuteRequest(sub_query=text))

        async def search(text: str) -> None:
            await RetrievalServiceStub(channel).Search(retrieval_pb.SearchRequest(queries=[text]))

        async def list_runs(text: str) -> None:
            await RunServiceStub(channel).ListRuns(run_pb.ListRunsRequest(tenant=text))

        async def chat(text: str) -> None:
            headers = {"Content-Type": "application/json"}
            body = text.encode(errors="replace")
            async with session.post(
                f"http://{http_address}/v1/chat/completions", data=body, headers=headers
            ) as response:
                await response.read()

        def through(place: str) -> Door:
            async def ask(text: str) -> None:
                outside.text[place] = text
                await answer("Who directed Heat?")
                outside.text[place] = ""

            return ask

        yield {
            "Complete": (60_000, complete),
            "Answer": (2_000, answer),
            "Execute": (2_000, execute),
            "Search": (4_000, search),
            "ListRuns": (500, list_runs),
            "HTTP": (100_000, chat),
            "a decision": (30_000, through("decision")),
            "a turn": (30_000, through("turn")),
            # A multiple of 15: no size ends inside of a `<think></think>`
            "a report": (21_000, through("report")),
            "an answer": (20_000, through("answer")),
            "a passage": (4_000, through("passage")),
        }


async def cpu_s(door: Door, text: str) -> float:
    """Return the CPU seconds of a call in this thread, which runs client and gateway, regardless
    of its outcome.
    """
    start = time.thread_time()
    try:
        await door(text)
    except grpc.aio.AioRpcError as error:
        assert error.code() is not grpc.StatusCode.UNKNOWN
        assert info_of(error).reason != "INTERNAL"
    return time.thread_time() - start


async def growth(door: Door, text: str, doubled_text: str) -> float:
    """Return the ratio of CPU times, each the best of some attempts, since other processes use the
    machine too.
    """
    doubled_s = text_s = inf
    for _ in range(8):
        doubled_s = min(doubled_s, await cpu_s(door, doubled_text))
        text_s = min(text_s, await cpu_s(door, text))
        if doubled_s <= _MAX_GROWTH * text_s:
            break
    return doubled_s / text_s


@pytest.mark.timing
@pytest.mark.parametrize(
    "name",
    [
        *("Complete", "Answer", "Execute", "Search", "ListRuns", "HTTP"),
        *("a decision", "a turn", "a report", "an answer", "a passage"),
    ],
)
async def test_time_is_linear_in_the_text(name: str) -> None:
    """Holds for every hostile text."""
    async with doors() as all_doors:
        chars, door = all_doors[name]
        for kind, make in HOSTILE.items():
            assert await growth(door, make(chars), make(2 * chars)) <= _MAX_GROWTH, kind


@asynccontextmanager
async def asking(server: OpenAIServer, pool: ConnectionPool) -> AsyncIterator[grpc.aio.Channel]:
    """Open a gateway whose answerer is at `server`."""
    model = OpenAIHTTP(pool, server.base_url, MODEL)
    async with served(Deployment(answerer=model).gateway(timeout_s=20)) as channel:
        yield channel


async def reason(channel: grpc.aio.Channel) -> str:
    """Ask the answerer, and return the reason of the error."""
    request = completion_pb.CompleteRequest(
        role=usage_pb2.ROLE_ANSWER, messages=[completion_pb.ChatMessage(role="user", content="hi")]
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await CompletionServiceStub(channel).Complete(request)
    return str(info_of(caught.value).reason)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda runs, _usages, long: runs.GetRun(run_pb.GetRunRequest(run_id=long)), "run_id has"),
        (
            lambda runs, _usages, long: runs.CancelRun(run_pb.CancelRunRequest(run_id=long)),
            "run_id has",
        ),
        (
            lambda runs, _usages, long: runs.SubmitFeedback(
                run_pb.SubmitFeedbackRequest(run_id=long)
            ),
            "run_id has",
        ),
        (
            lambda runs, _usages, long: runs.WatchRun(run_pb.WatchRunRequest(run_id=long)).read(),
            "run_id has",
        ),
        (
            lambda runs, _usages, long: runs.ListRuns(run_pb.ListRunsRequest(tenant=long)),
            "tenant has",
        ),
        (
            lambda _runs, usages, long: usages.GetUsage(
                usage_service_pb.GetUsageRequest(
                    group_by=[usage_service_pb.USAGE_DIMENSION_ROLE] * len(long)
                )
            ),
            "group_by has",
        ),
    ],
)
async def test_names_and_lists_that_are_too_long_are_refused(
    call: Callable[..., Awaitable[object]], message: str
) -> None:
    """The error does not repeat them."""
    async with served(whole_server(Deployment())) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match=f"{message} 500000 .* 1024") as caught:
            await call(RunServiceStub(channel), UsageServiceStub(channel), "\u200d" * 500_000)
    assert info_of(caught.value).reason == "BAD_REQUEST"


@pytest.mark.timing
async def test_a_compressed_request_is_refused_before_it_is_inflated() -> None:
    """Holds with and without a key, on any path."""
    bomb = gzip.compress(b"a" * (64 << 20))
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    http = HTTPServer(openai_app(Deployment().gateway(), open_access()), 0.0)
    async with aiohttp.ClientSession(
        f"http://{await http.start('127.0.0.1:0', 'http')}"
    ) as session:
        start = time.thread_time()
        for path in ("/v1/chat/completions", "/nowhere"):
            async with session.post(path, data=bomb, headers=headers) as response:
                assert response.status == 415
        async with session.get("/health") as response:
            assert response.status == 200
        assert time.thread_time() - start < 0.5 * _inflating_s(bomb)
    await http.drain()


def _inflating_s(bomb: bytes) -> float:
    """Return the CPU seconds of inflating the bomb."""
    start = time.thread_time()
    gzip.decompress(bomb)
    return time.thread_time() - start


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "behaviour",
    [
        replies(b'{"choices":' + DEEP),
        replies(b'{"choices": [{"message": {"content": "a", "other":' + DEEP),
        event_stream(b'data: {"choices":' + DEEP + b"\n\n"),
        event_stream(b'data: {"usage":' + DEEP + b"]" * len(DEEP) + b"}\n\n"),
    ],
)
async def test_a_deeply_nested_reply_is_a_protocol_error(
    behaviour: object, pool: ConnectionPool
) -> None:
    async with serving() as server, asking(server, pool) as channel:
        server.plays(behaviour)  # type: ignore[arg-type]
        assert await reason(channel) == "UPSTREAM_PROTOCOL_ERROR"


@pytest.mark.parametrize(
    ("status", "expected", "limit_mb"), [(500, "UNAVAILABLE", 2), (200, "PROTOCOL_ERROR", 20)]
)
async def test_a_compressed_reply_is_inflated_up_to_a_maximum(
    status: int, expected: str, limit_mb: int, pool: ConnectionPool
) -> None:
    """Little of an error is read, and of a reply no more than a model writes."""
    bomb = gzip.compress(b"x" * (32 << 20))
    async with serving() as server, asking(server, pool) as channel:
        server.plays(replies(bomb, status=status, headers={"Content-Encoding": "gzip"}))
        tracemalloc.start()
        reasons = await asyncio.gather(*(reason(channel) for _ in range(4)))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert set(reasons) == {f"UPSTREAM_{expected}"}
    assert peak < 4 * limit_mb << 20
