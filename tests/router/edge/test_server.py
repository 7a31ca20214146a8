"""The server: health, reflection, and a drain that loses nothing."""

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from aiohttp import web
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import retrieval_service_pb2 as retrieval_pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.retrieval_service_pb2_grpc import (
    RetrievalServiceServicer,
    RetrievalServiceStub,
)
from structlog.testing import capture_logs

from router.edge.grpc.server import Server
from router.edge.http.server import HTTPServer
from router.errors import BadConfig
from router.trace.values import NOT_SEARCHED
from tests.router.clock import ended
from tests.router.deployment import STOP, Deployment, HeldModel, Kept
from tests.router.edge.wire import connected, next_of, served, whole_server
from tests.scripted_model import ScriptedModel

if TYPE_CHECKING:
    from rolegate.v1.answer_service_pb2_grpc import AnswerServiceAsyncStub

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
GATEWAY = [
    f"rolegate.v1.{name}Service"
    for name in ("Answer", "Completion", "Document", "Execution", "Run", "Table", "Usage")
]
RETRIEVAL = "rolegate.v1.RetrievalService"


class NoRetrieval(RetrievalServiceServicer):
    """A retrieval service that is never called."""

    async def Search(
        self, request: retrieval_pb.SearchRequest, context: Any
    ) -> retrieval_pb.SearchResponse:
        raise NotImplementedError


def health_of(channel: grpc.aio.Channel) -> Any:
    """Return the stub, whose package has no types."""
    return HealthStub(channel)


def answers_of(channel: grpc.aio.Channel) -> "AnswerServiceAsyncStub":
    return AnswerServiceStub(channel)


async def reflected(channel: grpc.aio.Channel) -> set[str]:
    """Return the services that reflection lists."""
    stub: Any = ServerReflectionStub(channel)  # type: ignore[arg-type]
    call = stub.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    )
    response = await next_of(call)
    call.cancel()
    return {service.name for service in response.list_services_response.service}


class SlowToEnd(RetrievalServiceServicer):
    """A retrieval service whose calls last until they are cancelled, and end many steps later."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = False

    async def Search(
        self, request: retrieval_pb.SearchRequest, context: Any
    ) -> retrieval_pb.SearchResponse:
        self.begun.set()
        try:
            return await asyncio.Future()
        finally:
            for _ in range(1000):
                await asyncio.sleep(0)
            self.ended = True


async def test_a_drain_waits_until_cancelled_calls_have_ended() -> None:
    """Otherwise, gRPC prints a traceback for each of them when the event loop ends."""
    servicer = SlowToEnd()
    server = Server(None, servicer)
    before = asyncio.all_tasks()
    async with connected(await server.start("127.0.0.1:0")) as channel:
        stub: Any = RetrievalServiceStub(channel)
        call = stub.Search(retrieval_pb.SearchRequest())
        await ended(servicer.begun.wait())
        await server.drain(0)
        assert servicer.ended
        with pytest.raises(grpc.aio.AioRpcError, match="Cancelling all calls"):
            await call
    assert asyncio.all_tasks() <= before


async def test_a_service_that_is_not_served_has_no_health() -> None:
    """A check fails with NOT_FOUND, and a watch gets SERVICE_UNKNOWN."""
    async with served(whole_server(Deployment())) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_of(channel).Check(health_pb2.HealthCheckRequest(service=RETRIEVAL))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        watch = health_of(channel).Watch(health_pb2.HealthCheckRequest(service=RETRIEVAL))
        response = await next_of(watch)
        assert response.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


async def test_reflection_lists_the_services_that_are_served() -> None:
    infrastructure = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    async with served(whole_server(Deployment())) as channel:
        assert await reflected(channel) == {*GATEWAY, *infrastructure}
    server = Server(None, NoRetrieval())
    async with connected(await server.start("127.0.0.1:0")) as channel:
        assert await reflected(channel) == {RETRIEVAL, *infrastructure}
        response = await health_of(channel).Check(health_pb2.HealthCheckRequest(service=RETRIEVAL))
        assert response.status == SERVING
    await server.drain(0)


async def test_a_method_that_is_not_served_is_unimplemented() -> None:
    async with served(None) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answers_of(channel).Answer(pb.AnswerRequest(question="why?"))
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_server_waits_for_a_port_that_is_busy() -> None:
    """A new gateway waits for the old one to leave, over gRPC and HTTP."""
    with (
        socket.create_server(("127.0.0.1", 0)) as busy_grpc,
        socket.create_server(("127.0.0.1", 0)) as busy_http,
    ):
        server = Server(None, None)
        http = HTTPServer(web.Application(), 0)
        ports = [listener.getsockname()[1] for listener in (busy_grpc, busy_http)]
        with capture_logs() as log:
            start_both = asyncio.gather(
                server.start(f"127.0.0.1:{ports[0]}"),
                http.start(f"127.0.0.1:{ports[1]}", "server.http"),
            )
            async with asyncio.timeout(30):
                waiting_addresses = set[str]()
                while len(waiting_addresses) < 2:
                    await asyncio.sleep(0)
                    waiting_addresses = {
                        entry["address"] for entry in log if entry["event"] == "serve.port_busy"
                    }
    async with asyncio.timeout(30):
        assert [*await start_both] == [ports[0], f"127.0.0.1:{ports[1]}"]
    await server.drain(0)
    await http.drain()


async def test_a_port_in_use_is_a_config_error() -> None:
    """The error names the setting."""
    running_server = Server(None, None)
    late_server = Server(None, None)
    port = await running_server.start("127.0.0.1:0")
    with pytest.raises(BadConfig, match=rf"^server\.address: cannot listen on 127\.0\.0\.1:{port}"):
        await late_server.start(f"127.0.0.1:{port}")
    await running_server.drain(0)


async def test_watchers_are_notified_of_a_drain() -> None:
    """Holds also after another watcher of the service has left."""
    server = whole_server(Deployment())
    async with connected(await server.start("127.0.0.1:0")) as channel:
        stub = health_of(channel)
        watches = [
            stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", "", *GATEWAY)
        ]
        for watch in watches:
            assert (await next_of(watch)).status == SERVING
        watches.pop(0).cancel()
        drain = asyncio.create_task(server.drain(10))
        for watch in watches:
            assert (await next_of(watch)).status == NOT_SERVING
            watch.cancel()
        await ended(drain)


async def test_a_drain_lets_a_running_call_finish() -> None:
    """The running call ends normally, and new calls are refused."""
    store = Kept()
    model = HeldModel(ScriptedModel([STOP]))
    server = whole_server(Deployment(model), store)
    async with (
        connected(port := await server.start("127.0.0.1:0")) as channel,
        connected(port) as late_channel,
    ):
        call = answers_of(channel).Answer(pb.AnswerRequest(question="why?"))
        await ended(model.called.wait())
        watch = health_of(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await next_of(watch)).status == SERVING
        drain = asyncio.create_task(server.drain(30))
        assert (await next_of(watch)).status == NOT_SERVING
        watch.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ended(answers_of(late_channel).Answer(pb.AnswerRequest(question="too late?")))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        model.let.set()
        assert (await ended(call)).answer == NOT_SEARCHED
        await ended(drain)
    assert [run.status for run in store.runs] == ["finished"]


async def test_a_client_s_cancellation_during_a_drain_cancels_its_run() -> None:
    """The run is not stored as interrupted."""
    store = Kept()
    model = HeldModel(ScriptedModel([]))
    server = whole_server(Deployment(model), store)
    async with connected(await server.start("127.0.0.1:0")) as channel:
        call = answers_of(channel).Answer(pb.AnswerRequest(question="why?"))
        await ended(model.called.wait())
        drain = asyncio.create_task(server.drain(30))
        call.cancel()
        await ended(drain)
    assert [run.status for run in store.runs] == ["cancelled"]


async def test_a_drain_interrupts_a_run_that_does_not_end_in_time() -> None:
    """The run is stored before the drain ends."""
    store = Kept()
    model = HeldModel(ScriptedModel([]))
    server = whole_server(Deployment(model), store)
    async with connected(await server.start("127.0.0.1:0")) as channel:
        running_call = answers_of(channel).Answer(pb.AnswerRequest(question="why?"))
        await ended(model.called.wait())
        store.let.clear()
        drain = asyncio.create_task(server.drain(0))
        await ended(store.asked.wait())
        asyncio.get_running_loop().call_later(0.1, store.let.set)  # a slow disk
        await ended(drain)
        assert [(run.status, len(run.calls)) for run in store.runs] == [("interrupted", 1)]
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await ended(running_call)
