"""Keys over real channels: who is let in, with which scope, and where no key is needed."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import Default
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import document_service_pb2 as document_pb
from rolegate.v1 import usage_pb2
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.execution_service_pb2 import ExecuteRequest
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub
from rolegate.v1.run_service_pb2 import ExportRunsRequest, WatchRunRequest
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from structlog.testing import capture_logs

from router.access import Access, new_key
from router.edge.grpc.interceptor import needed_scope
from router.edge.grpc.server import Server
from router.edge.grpc.services import RunServicer
from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.errors import BadConfig, UpstreamUnavailable
from router.ledger import RunStart
from router.ledger.journal import Admitted, EarlierRun
from router.runs import RunFilter, Runs
from router.runs.archive import ExportedRun
from router.runs.live import LiveRuns
from router.trace.identity import SCOPES
from tests.router.accounts import KeptAccounts
from tests.router.clock import ended
from tests.router.deployment import STOP, Deployment, HeldModel, Kept
from tests.router.edge.wire import connected, info_of, next_of
from tests.scripted_model import ScriptedModel

SERVICES = (
    "Admin",
    "Answer",
    "Completion",
    "Document",
    "Execution",
    "ExecutorVersion",
    "Retrieval",
    "Run",
    "Usage",
)
ASK = pb.AnswerRequest(question="Who directed Heat?")
ADDRESSES = ["127.0.0.1:0", "0.0.0.0:0"]


def methods() -> Iterator[MethodDescriptor]:
    """Yield every method of every service."""
    for name in SERVICES:
        yield from Default().FindServiceByName(f"rolegate.v1.{name}Service").methods


def bearer(text: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata in which a key is sent."""
    return (("authorization", f"Bearer {text}"),)


@asynccontextmanager
async def guarded(
    accounts: KeptAccounts, deployment: Deployment | None = None, store: Kept | None = None
) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel to a gateway with keys."""
    store = store or Kept()
    gateway = (deployment or Deployment()).gateway(store)
    server = Server(gateway, None, RunServicer(Runs(store, LiveRuns())), access=Access(accounts))
    async with connected(await server.start("127.0.0.1:0")) as channel:
        yield channel
    await server.drain(0)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    """Await a call that fails, and return its error."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ended(call)
    return caught.value


_ASK = (
    "Answer StreamAnswer Complete StreamComplete Execute Search "
    "GetRun ListRuns WatchRun CancelRun SubmitFeedback GetUsage"
).split()
"""Methods that every tenant's key opens. A new method is refused here until it is added."""


def test_every_method_has_its_scope() -> None:
    """Methods of operators and trainers are theirs alone. No method streams in both directions,
    since the interceptor does not check such calls.
    """
    scopes = {
        method.name: needed_scope(f"/{method.containing_service.full_name}/{method.name}")
        for method in methods()
    }
    operators = [
        method.name
        for service in ("Admin", "ExecutorVersion")
        for method in Default().FindServiceByName(f"rolegate.v1.{service}Service").methods
    ]
    expected = dict.fromkeys(_ASK, "ask") | dict.fromkeys(operators, "operate")
    documents = document_pb.DESCRIPTOR.services_by_name["DocumentService"].methods
    expected |= dict.fromkeys([*(method.name for method in documents)], "documents")
    assert scopes == {**expected, "ExportRuns": "train", "ReconcileUsage": "operate"}
    assert not any(method.client_streaming and method.server_streaming for method in methods())


@pytest.mark.parametrize("stream", [False, True])
async def test_callers_at_the_same_time_do_not_mix(stream: bool) -> None:
    """Each run is booked to its caller, even if all calls are in progress together."""
    keys = {name: new_key(name, ["ask"]) for name in map(str, range(20))}
    store = Kept()
    model = HeldModel(ScriptedModel(lambda _prompt: STOP))

    async def ask(channel: grpc.aio.Channel, name: str) -> None:
        stub = AnswerServiceStub(channel)
        metadata = bearer(keys[name][0])
        if not stream:
            await stub.Answer(pb.AnswerRequest(question=f"question of {name}"), metadata=metadata)
            return
        async for _ in stub.StreamAnswer(
            pb.StreamAnswerRequest(question=f"question of {name}"), metadata=metadata
        ):
            pass

    async with guarded(
        KeptAccounts(*(key for _, key in keys.values())), Deployment(model), store
    ) as channel:
        calls = asyncio.gather(*(ask(channel, name) for name in keys))
        await ended(model.called.wait())
        model.let.set()
        await ended(calls)
    assert {run.request: run.tenant for run in store.runs} == {
        f"question of {name}": name for name in keys
    }


async def test_a_call_without_a_valid_key_is_unauthenticated() -> None:
    """The message does not repeat the key that was sent, and nothing is started."""
    text, key = new_key("acme", ["ask"])
    store = Kept()
    async with guarded(KeptAccounts(key), store=store) as channel:
        stub = AnswerServiceStub(channel)
        for metadata in (
            (),
            bearer("rg_0badf00d_open-sesame"),
            bearer(f"{text}0"),
            (("authorization", text),),
        ):
            error = await refused(stub.Answer(ASK, metadata=metadata))
            assert (error.code(), info_of(error).reason) == (
                grpc.StatusCode.UNAUTHENTICATED,
                "NO_KEY",
            )
            assert not any(word in str(error) for word in ("sesame", "0badf00d", text[12:]))
            assert (
                await refused(stub.StreamAnswer(pb.StreamAnswerRequest(), metadata=metadata).read())
            ).code() == (grpc.StatusCode.UNAUTHENTICATED)
    assert store.starts == {}


async def test_health_needs_no_key() -> None:
    """A watch of it needs none either."""
    async with guarded(KeptAccounts(new_key("acme", ["ask"])[1])) as channel:
        stub: Any = HealthStub(channel)
        response = await stub.Check(health_pb2.HealthCheckRequest())
        assert response.status == health_pb2.HealthCheckResponse.SERVING
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await next_of(watch)).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()


async def test_a_missing_scope_is_named() -> None:
    """PERMISSION_DENIED holds for whole replies and streams; with the scope the call works."""
    ask_text, ask_key = new_key("acme", ["ask"])
    train_text, train_key = new_key("acme", ["train"])
    async with guarded(KeptAccounts(ask_key, train_key)) as channel:
        error = await refused(
            RunServiceStub(channel)
            .ExportRuns(ExportRunsRequest(), metadata=bearer(ask_text))
            .read()
        )
        assert (error.code(), info_of(error).reason) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "ACCESS_DENIED",
        )
        assert "`train`" in str(error.details())
        export = RunServiceStub(channel).ExportRuns(
            ExportRunsRequest(), metadata=bearer(train_text)
        )
        assert await next_of(export) == grpc.aio.EOF
        error = await refused(AnswerServiceStub(channel).Answer(ASK, metadata=bearer(train_text)))
        assert (error.code(), "`ask`" in str(error.details())) == (
            grpc.StatusCode.PERMISSION_DENIED,
            True,
        )


async def test_only_the_operator_sees_the_address_of_a_model() -> None:
    """A tenant sees the failed role and what to do. The operator and the log get the whole
    message.
    """
    tenant_text, tenant_key = new_key("acme", ["ask"])
    operator_text, operator_key = new_key(None, SCOPES)
    failing = UpstreamUnavailable("the engine said: cache full", endpoint="http://10.1.2.3:8000/v1")
    deployment = Deployment(ScriptedModel(lambda _prompt: failing))
    async with guarded(KeptAccounts(tenant_key, operator_key), deployment) as channel:
        stub = AnswerServiceStub(channel)
        with capture_logs() as logs:
            tenant_error = await refused(stub.Answer(ASK, metadata=bearer(tenant_text)))
        operator_error = await refused(stub.Answer(ASK, metadata=bearer(operator_text)))
    assert (
        tenant_error.details()
        == "The model for delegation is not available at present; try again later."
    )
    assert (tenant_error.code(), info_of(tenant_error).metadata["role"]) == (
        grpc.StatusCode.UNAVAILABLE,
        "delegation",
    )
    assert (
        operator_error.details()
        == "delegation at http://10.1.2.3:8000/v1: the engine said: cache full"
    )
    assert [log["error"] for log in logs if log["event"] == "edge.refused"] == [
        operator_error.details()
    ]


class Endless(Kept):
    """An archive whose export does not end, with an event for when a number of runs have begun."""

    def __init__(self, runs: int) -> None:
        super().__init__()
        self.exporting = asyncio.Event()
        self.begun = asyncio.Event()
        self._expected = runs

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        admitted = await super().begin(start)
        if len(self.starts) == self._expected:
            self.begun.set()
        return admitted

    async def export(self, wanted: RunFilter) -> AsyncIterator[ExportedRun]:
        self.exporting.set()
        await asyncio.Event().wait()
        yield ExportedRun(self.runs[0], ())


def asked_over_http(
    session: aiohttp.ClientSession, key: str, *, stream: bool
) -> Coroutine[Any, Any, str]:
    """Ask a question over HTTP and return the reply."""

    async def ask() -> str:
        body = {
            "model": "rolegate",
            "messages": [{"role": "user", "content": "Who?"}],
            "stream": stream,
        }
        headers = {"Authorization": f"Bearer {key}"}
        async with session.post("/v1/chat/completions", json=body, headers=headers) as response:
            return await response.text()

    return ask()


async def read_to_its_end(call: Any) -> str:
    """Read a failing call to its end and return the reason of its error."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if isinstance(call, grpc.aio.UnaryUnaryCall):
            await call
        async for _ in call:
            pass
    return str(info_of(caught.value).reason)


async def test_revoking_a_key_ends_all_its_calls() -> None:
    """Each call ends in the error that the next call gets, and its work is cancelled. Calls of
    other keys continue.
    """
    text, key = new_key("acme", ["ask", "train"])
    other_text, other_key = new_key("acme", ["ask"])
    accounts = KeptAccounts(key, other_key)
    store = Endless(8)
    live = LiveRuns()
    model = HeldModel(ScriptedModel(lambda _prompt: STOP))
    gateway = Deployment(model, model, model).gateway(store, live=live)
    access = Access(accounts)
    server = Server(gateway, None, RunServicer(Runs(store, live)), access=access)
    http = HTTPServer(openai_app(gateway, access), 0.0, access=access)
    http_address = await http.start("127.0.0.1:0", "server.http")
    async with (
        connected(await server.start("127.0.0.1:0")) as channel,
        aiohttp.ClientSession(f"http://{http_address}") as session,
    ):
        answers = AnswerServiceStub(channel)
        completions = CompletionServiceStub(channel)
        runs = RunServiceStub(channel)
        other_call = answers.StreamAnswer(
            pb.StreamAnswerRequest(question="Who?"), metadata=bearer(other_text)
        )
        watch_request = WatchRunRequest(run_id=(await next_of(other_call)).run_started.run_id)
        complete: dict[str, Any] = {
            "role": usage_pb2.ROLE_ANSWER,
            "messages": [completion_pb.ChatMessage(role="user", content="hi")],
        }
        calls = [
            answers.Answer(ASK, metadata=bearer(text)),
            answers.StreamAnswer(pb.StreamAnswerRequest(question="Who?"), metadata=bearer(text)),
            completions.Complete(completion_pb.CompleteRequest(**complete), metadata=bearer(text)),
            completions.StreamComplete(
                completion_pb.StreamCompleteRequest(**complete), metadata=bearer(text)
            ),
            ExecutionServiceStub(channel).Execute(
                ExecuteRequest(sub_query="Who?"), metadata=bearer(text)
            ),
            runs.WatchRun(watch_request, metadata=bearer(text)),
            runs.ExportRuns(ExportRunsRequest(), metadata=bearer(text)),
        ]
        outcomes = asyncio.gather(
            *map(read_to_its_end, calls),
            *(asked_over_http(session, text, stream=stream) for stream in (False, True)),
        )
        async with asyncio.timeout(10):
            await store.exporting.wait()
            await store.begun.wait()
        await accounts.revoke_key(key.key_id)
        *reasons, http_reply, http_stream = await ended(outcomes)
        assert reasons == ["NO_KEY"] * len(calls)
        assert '"code":"NO_KEY"' in http_reply
        assert '"code":"NO_KEY"' in http_stream.split("data: ")[-1]
        assert {run.status for run in store.runs} == {"cancelled"}
        model.let.set()
        while (event := await next_of(other_call)).WhichOneof("event") != "done":
            assert event
    await server.drain(0)
    await http.drain()
    assert sorted(run.status for run in store.runs) == ["cancelled"] * 7 + ["finished"]


@asynccontextmanager
async def http(
    accounts: KeptAccounts, store: Kept | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """A session with an OpenAI-compatible server that knows keys."""
    access = Access(accounts)
    server = HTTPServer(
        openai_app(Deployment().gateway(store or Kept()), access), 0.0, access=access
    )
    async with aiohttp.ClientSession(
        f"http://{await server.start('127.0.0.1:0', 'server.http')}"
    ) as session:
        yield session
    await server.drain()


async def posted(session: aiohttp.ClientSession, key: str | None) -> tuple[int, Any, Any]:
    """Post a question and return status, headers and reply."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"model": "rolegate", "messages": [{"role": "user", "content": "Who directed Heat?"}]}
    async with session.post("/v1/chat/completions", json=body, headers=headers) as response:
        return response.status, response.headers, await response.json()


async def test_the_openai_server_accepts_the_same_keys() -> None:
    """Errors are 401 and 403 in OpenAI's shape. Only its health needs no key."""
    ask_text, ask_key = new_key("acme", ["ask"])
    train_text, train_key = new_key("acme", ["train"])
    store = Kept()
    async with http(KeptAccounts(ask_key, train_key), store) as session:
        for key in (None, "rg_0badf00d_open-sesame"):
            status, headers, reply = await posted(session, key)
            assert (status, reply["error"]["code"]) == (401, "NO_KEY")
            assert (headers["WWW-Authenticate"], "sesame" in str(reply)) == ("Bearer", False)
        status, _, reply = await posted(session, train_text)
        assert (status, reply["error"]["code"]) == (403, "ACCESS_DENIED")
        assert (await session.get("/v1/models")).status == 401
        for probe in ("/health", "/healthz", "/readyz"):
            assert (await session.get(probe)).status == 200
        assert store.starts == {}
        assert (await posted(session, ask_text))[0] == 200
    assert [(start.tenant, start.key_id) for start in store.starts.values()] == [
        ("acme", ask_key.key_id)
    ]


async def test_without_keys_only_loopback_addresses_are_allowed() -> None:
    """Any other address is refused with the command that makes a key. With keys it is allowed,
    with a warning that it is unencrypted.
    """
    for accounts, opens in (
        (KeptAccounts(), False),
        (KeptAccounts(new_key("acme", ["ask"])[1]), True),
    ):
        for address in ADDRESSES:
            access = Access(accounts)
            server = Server(None, None, access=access)
            http = HTTPServer(openai_app(Deployment().gateway(), access), 0.0, access=access)
            for setting, start in (
                ("address", server.start(address)),
                ("http", http.start(address, "server.http")),
            ):
                if opens or address.startswith("127."):
                    with capture_logs() as logs:
                        await start
                    warned = [log["address"] for log in logs if log["event"] == "serve.unencrypted"]
                    assert warned == ([] if address.startswith("127.") else [address])
                else:
                    with pytest.raises(
                        BadConfig,
                        match=rf"^server\.{setting}: 0\.0\.0\.0:0 .*`rolegate keys create`",
                    ):
                        await start
            await server.drain(0)
            await http.drain()
