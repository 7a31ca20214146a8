"""Limits on what a single client may do to a server, by gRPC and by HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import completion_service_pb2 as pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import usage_pb2
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from structlog.testing import capture_logs

from router.edge.grpc.server import Server
from router.edge.grpc.services import RunServicer
from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.edge.limits import Limits
from router.edge.running import Running
from router.models import Completion, Delta, OnDelta, Prompt, Usage
from router.runs import Admission, Gateway, Runs
from router.runs.admission import AdmissionLimits
from router.runs.live import LiveRuns
from tests.router.accounts import open_access
from tests.router.clock import ended
from tests.router.deployment import STOP, Deployment, HeldModel, Kept
from tests.router.edge.wire import connected, info_of, next_of, served
from tests.scripted_model import ScriptedModel

HI = [pb.ChatMessage(role="user", content="hi")]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
"""The beginning of an HTTP/2 connection: its first line, and empty settings."""


@asynccontextmanager
async def http(gateway: Gateway, limits: Limits) -> AsyncIterator[str]:
    """Serve a gateway over OpenAI's protocol, and return the address."""
    server = HTTPServer(openai_app(gateway, open_access(), limits=limits), 0.0, limits=limits)
    try:
        yield await server.start("127.0.0.1:0", "http")
    finally:
        await server.drain()


@asynccontextmanager
async def raw(
    address: str, source: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a raw connection."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(
        host, int(port), limit=1024, local_addr=(source, 0)
    )
    try:
        yield reader, writer
    finally:
        writer.close()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Wait until the other side closes; return whether it sent nothing before."""
    try:
        return await ended(reader.read()) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_a_refused_client_gets_a_retry_delay(kind: str) -> None:
    """Holds for gRPC and HTTP. Operators' requests and health are answered meanwhile."""
    store = Kept()
    live = LiveRuns()
    model = HeldModel(ScriptedModel([STOP]))
    admission = Admission(AdmissionLimits(max_runs=1, queue=0, queue_s=7.0))
    gateway = Deployment(model).gateway(store, live=live, admission=admission)
    server = Server(gateway, None, RunServicer(Runs(store, live)))
    async with served(server) as channel, http(gateway, Limits()) as address:
        running_call = AnswerServiceStub(channel).Answer(answer_pb.AnswerRequest(question="why?"))
        await ended(model.called.wait())
        if kind == "grpc":
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await AnswerServiceStub(channel).Answer(
                    answer_pb.AnswerRequest(question="and this?")
                )
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert info_of(caught.value).reason == "OVERLOADED"
            assert info_of(caught.value).metadata["retry_after_s"] == "7.000"
        else:
            body = {"model": "rolegate", "messages": [{"role": "user", "content": "and this?"}]}
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"http://{address}/v1/chat/completions", json=body) as response,
            ):
                assert (response.status, response.headers["Retry-After"]) == (429, "7")
                assert (await response.json())["error"]["code"] == "OVERLOADED"
        (run_id,) = store.starts
        assert (
            await RunServiceStub(channel).GetRun(run_pb.GetRunRequest(run_id=run_id))
        ).run.run_id == run_id
        health: Any = HealthStub(channel)
        assert (
            await health.Check(health_pb2.HealthCheckRequest())
        ).status == health_pb2.HealthCheckResponse.SERVING
        model.let.set()
        await ended(running_call)


class Pouring:
    """A model that writes large pieces without end."""

    name = "pouring"
    endpoint = "pouring://"

    async def complete(self, prompt: Prompt) -> Completion:
        raise NotImplementedError

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        return None

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        while True:
            await asyncio.sleep(0.001)
            on_delta(Delta("x" * 100_000))


async def test_a_grpc_client_that_does_not_read_ends_its_run() -> None:
    """If it reads at last, it gets the reason."""
    store = Kept()
    server = Server(
        Deployment(answerer=Pouring(), max_tokens=10**6).gateway(store),
        None,
        limits=Limits(reading_s=0.2),
    )
    async with connected(await server.start("127.0.0.1:0")) as channel:
        request = pb.StreamCompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=HI)
        call = CompletionServiceStub(channel).StreamComplete(request)
        assert (await store.next()).status == "cancelled"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await next_of(call):
                pass
    assert (caught.value.code(), info_of(caught.value).reason) == (
        grpc.StatusCode.ABORTED,
        "SLOW_READER",
    )
    await ended(server.drain(30))


async def test_an_http_client_that_does_not_read_loses_its_connection() -> None:
    """The answer is stored."""
    store = Kept()
    long_text = "x" * 16_000_000  # more than sockets hold
    model = ScriptedModel(lambda _prompt: f"<answer>{long_text}</answer>")
    # Longer than it takes to check and store the answer on a busy machine, after its text was sent
    limits = Limits(reading_s=2.0)
    server = HTTPServer(
        openai_app(
            Deployment(answerer=model, max_tokens=10**6).gateway(store),
            open_access(),
            limits=limits,
        ),
        30.0,
    )
    async with raw(await server.start("127.0.0.1:0", "http")) as (reader, writer):
        body = (
            b'{"model": "rolegate", "stream": true, "messages": [{"role": "user", "content": '
            b'"why?"}]}'
        )
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            f"{len(body)}\r\n"
        )
        writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        assert (await store.next()).status == "finished"
        await ended(server.drain())
        with suppress(ConnectionError):
            assert len(await ended(reader.read())) < len(long_text)


async def test_a_slow_reader_gets_everything() -> None:
    """Missed items come together, and none is lost."""

    async def work(tell: Callable[[int], None]) -> int:
        for number in range(1000):
            tell(number)
        return 7

    async with Running[int, int](work) as running:
        assert await running.result() == 7
        assert [number async for numbers in running for number in numbers] == list(range(1000))


@pytest.mark.parametrize(
    "beginning",
    [b"", b"GET /health HTTP/1.1\r\nHo", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /"],
)
async def test_a_connection_without_a_whole_request_is_closed(beginning: bytes) -> None:
    """Holds for the first request and for later ones."""
    async with (
        http(Deployment().gateway(), Limits(opening_s=0.3)) as address,
        raw(address) as (reader, writer),
    ):
        writer.write(beginning)
        assert (await is_closed(reader)) is not beginning.endswith(b"GET /")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nA\x1b[31m: b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        b"\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"G\x1bT / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    ],
    ids=["long header", "header name", "two lengths", "chunk", "method", "TLS"],
)
async def test_a_malformed_request_is_refused_without_a_line_in_the_log(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Anyone could fill the log with them."""
    async with http(Deployment().gateway(), Limits()) as address, raw(address) as (reader, writer):
        with capture_logs() as logged:
            writer.write(request_bytes)
            assert b" 400 " in await ended(reader.readline())
    assert (caplog.records, logged) == ([], [])


async def test_a_body_that_does_not_come_is_a_timeout() -> None:
    """The client gets 408."""
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 100\r\n"
        b"Content-Type: application/json"
    )
    async with (
        http(Deployment().gateway(), Limits(opening_s=0.3)) as address,
        raw(address) as (reader, writer),
    ):
        writer.write(head + b"\r\n\r\n{")
        assert (await ended(reader.readline())).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_a_connection_beyond_the_limit_is_closed(kind: str) -> None:
    """The next is served once another has gone."""
    limits = Limits(connections=2)
    async with AsyncExitStack() as stack:
        if kind == "http":
            address = await stack.enter_async_context(http(Deployment().gateway(), limits))
            hello = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
            answer = b"HTTP/1.1 200"
        else:
            server = Server(Deployment().gateway(), None, limits=limits)
            address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
            stack.push_async_callback(server.drain, 0)
            hello = PREFACE
            answer = b"\0\0"
        async with (
            raw(address) as (first_reader, first_writer),
            raw(address) as (second_reader, second_writer),
        ):
            for reader, writer in ((first_reader, first_writer), (second_reader, second_writer)):
                writer.write(hello)
                assert (await ended(reader.readexactly(len(answer)))).startswith(answer)
            async with raw(address) as (third_reader, _):
                assert await is_closed(third_reader)
        while True:  # until the server notices that the others have gone
            async with raw(address) as (reader, writer):
                writer.write(hello)
                with suppress(ConnectionError, asyncio.IncompleteReadError):
                    assert (await ended(reader.readexactly(len(answer)))).startswith(answer)
                    break


async def test_an_address_cannot_take_all_connections() -> None:
    """It gets 429. Other addresses are served meanwhile, and a closed connection makes room."""
    limits = Limits(connections_per_address=2)
    hello = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with http(Deployment().gateway(), limits) as address, AsyncExitStack() as stack:
        for source, status in (
            ("127.0.0.1", 200),
            ("127.0.0.1", 200),
            ("127.0.0.1", 429),
            ("127.0.0.2", 200),
        ):
            reader, writer = await stack.enter_async_context(raw(address, source))
            writer.write(hello)
            assert (await ended(reader.readline())).startswith(b"HTTP/1.1 %d " % status)
            if status == 429:
                assert b"server.http_connections_per_address" in await ended(reader.read())
        while True:  # until the server notices that this client has gone
            writer.close()
            reader, writer = await stack.enter_async_context(raw(address, "127.0.0.2"))
            writer.write(hello)
            if b" 200 " in await ended(reader.readline()):
                break


async def test_a_silent_grpc_connection_is_closed() -> None:
    server = Server(Deployment().gateway(), None, limits=Limits(opening_s=0.3))
    async with raw(f"127.0.0.1:{await server.start('127.0.0.1:0')}") as (reader, _):
        await is_closed(reader)
    await server.drain(0)


async def test_a_client_that_pings_too_often_is_disconnected() -> None:
    """The error is HTTP/2's own."""
    server = Server(Deployment().gateway(), None)
    async with raw(f"127.0.0.1:{await server.start('127.0.0.1:0')}") as (reader, writer):
        writer.write(PREFACE + 20 * (b"\0\0\x08\x06\0\0\0\0\0" + b"12345678"))
        assert b"too_many_pings" in await ended(reader.read())
    await server.drain(0)


async def test_a_message_that_is_too_large_is_refused() -> None:
    async with served(Deployment().gateway()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await AnswerServiceStub(channel).Answer(
                answer_pb.AnswerRequest(question="x" * (5 << 20))
            )
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_calls_that_come_faster_than_the_loop_are_all_answered() -> None:
    server = Server(Deployment().gateway(), None)
    address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with (
        grpc.aio.insecure_channel(address, options) as first_channel,
        # A single connection may not have so many calls in progress
        grpc.aio.insecure_channel(address, options) as second_channel,
    ):
        stubs = AnswerServiceStub(first_channel), AnswerServiceStub(second_channel)
        calls = [
            stub.Answer(answer_pb.AnswerRequest(), timeout=60) for stub in stubs for _ in range(900)
        ]
        assert {await call.code() for call in calls} == {grpc.StatusCode.INVALID_ARGUMENT}
    await server.drain(0)
