"""The Python client, with no packages but grpcio and Google's messages."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice

import grpc
import pytest
from rolegate.client import AsyncClient, Client, GatewayError
from rolegate.v1.run_service_pb2 import RUN_STATUS_RUNNING

from router.edge.grpc.server import Server
from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.ledger import RunStart
from router.trace import Run
from router.trace.run import Feedback
from tests.router.accounts import open_access
from tests.router.clock import ended
from tests.router.deployment import Deployment, HeldModel, Kept
from tests.router.edge.wire import whole_server
from tests.scripted_gateway import BORN, DEAD_QUESTION, DIRECTOR, QUESTION, ROOT, environment
from tests.scripted_model import ScriptedModel

ONE_ROUND = ["round_started", "sub_query_dispatched", "search_done", "reported"]
KINDS = [
    "run_started",
    *ONE_ROUND,
    *ONE_ROUND,
    "round_started",
    "answer_written",
    "usage_counted",
    "done",
]
STREAMED = [*KINDS[:-3], "answer_delta", *KINDS[-3:]]
"""Kinds of events if the answer is streamed."""
ALONE = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        # grpcio itself needs typing_extensions.
        allowed = {*sys.stdlib_module_names, "rolegate", "grpc", "typing_extensions"}
        google = name == "google" or name.startswith(("google.protobuf", "google.rpc"))
        if not (google or name.split(".")[0] in allowed) and path is None:
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refused())
from rolegate.client import AsyncClient, Client, GatewayError

with Client(sys.argv[1]) as client:
    print(client.ask(sys.argv[2]).answer)
    try:
        client.ask(" ")
    except GatewayError as error:
        print(error.reason)
"""


@asynccontextmanager
async def held() -> AsyncIterator[tuple[str, HeldModel, Kept]]:
    """Address of a gateway whose delegator never answers."""
    store = Kept()
    model = HeldModel(ScriptedModel([]))
    server = whole_server(Deployment(model), store)
    yield f"127.0.0.1:{await server.start('127.0.0.1:0')}", model, store
    await server.drain(0)


def test_the_client_imports_few_packages(gateway: str) -> None:
    """It gets an answer and a typed error while all other third-party imports are refused."""
    command = [sys.executable, "-c", ALONE, gateway, QUESTION]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(), timeout=60
    )

    assert (run.stdout, run.stderr) == ("in 1943\nBAD_REQUEST\n", "")


def test_ask_returns_the_protocol_s_message(gateway: str) -> None:
    with Client(gateway) as client:
        answer = client.ask(QUESTION)
    assert (answer.answer, [result.sub_query for result in answer.results]) == (
        "in 1943",
        [DIRECTOR, BORN],
    )
    assert [citation.title for citation in answer.citations] == ["Heat", "Michael Mann"]


def test_stream_yields_every_event(gateway: str) -> None:
    """The last event has the answer. The stream also works without its context."""
    with Client(gateway) as client:
        with client.stream(QUESTION) as events:
            kinds = [event.WhichOneof("event") for event in events]
        assert kinds == STREAMED
        assert [event.event_number for event in client.stream(QUESTION)] == list(
            range(1, len(STREAMED) + 1)
        )


async def test_feedback_is_sent_as_given() -> None:
    """Omitted fields stay unset."""
    store = Kept()
    server = whole_server(Deployment(), store)
    async with AsyncClient(f"127.0.0.1:{await server.start('127.0.0.1:0')}") as client:
        run_id = (await client.ask(DIRECTOR)).run_id
        await client.feedback(run_id, accepted=False, right_answer="Mann")
        await client.feedback(run_id, score=0.0, comment="poor")
    await server.drain(0)
    assert store.given == [
        Feedback(run_id, accepted=False, right_answer="Mann"),
        Feedback(run_id, score=0.0, comment="poor"),
    ]


UNKNOWN: list[tuple[str, tuple[str, ...], str, str]] = [
    ("ask", ("Who?",), "max_total_token", "max_total_tokens"),
    ("ask", ("Who?",), "timeout", "timeout_s"),
    ("stream", ("Who?",), "max_cost_dollars", "max_cost_usd"),
    ("stream", ("Who?",), "nocache", "no_cache"),
    ("table", ("Who?", "a*"), "max_row", "max_rows"),
    ("stream_table", ("Who?", "a*"), "closd", "closed"),
    ("begin_table", ("Who?", "a*"), "max_row", "max_rows"),
    ("search", ("Who?",), "topk", "top_k"),
    ("run", ("run-1",), "tracing", "trace"),
    ("runs", (), "knd", "kind"),
    ("watch", ("run-1",), "aftr", "after"),
    ("cancel", (), "runid", "run_id"),
    ("feedback", ("run-1",), "gold_answer", "right_answer"),
    ("feedback", ("run-1",), "acepted", "accepted"),
    ("export", (), "for_trainings", "for_training"),
    ("usage", (), "buckets", "bucket"),
    ("set_version_traffic", ("v", "canary"), "shares", "share"),
    ("promote_version", (), "versions", "version"),
    ("version_decisions", (), "aftr", "after"),
]


@pytest.mark.parametrize(("method", "options", "unknown", "known"), UNKNOWN)
async def test_an_unknown_option_is_refused_with_the_nearest_one(
    method: str, options: tuple[str, ...], unknown: str, known: str
) -> None:
    """Both clients refuse it before anything is sent."""
    with (
        Client("127.0.0.1:9") as client,
        pytest.raises(TypeError, match=rf"{unknown}; did you mean {known}\?"),
    ):
        getattr(client, method)(*options, **{unknown: 10})
    async with AsyncClient("127.0.0.1:9") as asking:
        with pytest.raises(TypeError, match=rf"{unknown}; did you mean {known}\?"):
            await getattr(asking, method)(*options, **{unknown: 10})


def test_all_options_are_listed_if_none_is_similar() -> None:
    with (
        Client("127.0.0.1:9") as client,
        pytest.raises(TypeError, match=r"bogus; the options are: .*filter, .*no_cache, .*\.$"),
    ):
        client.ask("Who?", bogus=1)  # type: ignore[call-arg]


def test_options_in_a_dictionary_are_refused() -> None:
    """They would be ignored under the name of the signature's keyword arguments."""
    with Client("127.0.0.1:9") as client, pytest.raises(TypeError, match="unknown option options"):
        client.ask("Who?", options={"max_total_tokens": 10})  # type: ignore[call-arg]
    for kind in (Client, AsyncClient):
        with pytest.raises(TypeError, match=r"apikey; did you mean api_key\?"):
            kind("127.0.0.1:9", apikey="rg_secret")  # type: ignore[call-arg]


def test_usage_takes_spans_in_any_zone(gateway: str) -> None:
    """Bounds may be absent, in any zone, or in local time."""
    with Client(gateway) as client:
        client.ask(QUESTION)
        everything = client.usage()
        soon = datetime.now() + timedelta(minutes=1)
        assert everything.runs > 0
        assert (
            client.usage(end=soon).runs
            == client.usage(end=soon.astimezone(UTC)).runs
            == everything.runs
        )
        assert client.usage(start=soon).runs == 0


def test_runs_are_read_one_by_one_and_by_page(gateway: str) -> None:
    """A run is got, watched again and exported; lists are read by page."""
    begun = datetime.now(UTC)
    with Client(gateway) as client:
        answers = [client.ask(QUESTION) for _ in range(2)]
        named = [answer.run_id for answer in answers]
        whole = client.run(named[0], trace=True)
        assert (whole.run.request, len(whole.calls)) == (QUESTION, 8)
        assert json.loads(whole.trace_json)["id"] == named[0]
        assert client.run(named[0]).trace_json == ""
        listed = client.runs(start=begun, kind="answer", status="finished")
        assert [run.run_id for run in islice(listed, 2)] == named[::-1]
        assert list(client.runs(kind="execute")) == list(client.runs(tenant="nobody")) == []
        with client.watch(named[0]) as events:
            assert [event.WhichOneof("event") for event in events] == KINDS
        assert [event.event_number for event in client.watch(named[0], after=len(KINDS) - 1)] == [
            len(KINDS)
        ]
        exported = [item for item in client.export() if item.run.run_id in named]
        assert [item.run.run_id for item in exported] == named
        assert {item.output for item in exported} == {"in 1943"}


async def test_pages_are_requested_as_they_are_read() -> None:
    """The list of runs is complete at any length."""
    store = Kept()
    for number in range(250):
        run = Run(f"run-{number}", "answer", "", "finished", "", None, {}, (), float(number), 1.0)
        await store.begin(RunStart(run.id, run.kind, run.tenant, "", "", "", "", run.started_at))
        await store.finish(run)
    server = whole_server(Deployment(), store)
    async with AsyncClient(f"127.0.0.1:{await server.start('127.0.0.1:0')}") as client:
        listed = [run.run_id async for run in client.runs()]
    await server.drain(0)
    assert listed == [f"run-{number}" for number in range(249, -1, -1)]


async def test_a_cancelled_run_ends() -> None:
    """Its watchers get the reason."""
    async with held() as (address, model, _), AsyncClient(address) as client:
        events = aiter(client.stream(QUESTION))
        run_id = (await ended(anext(events))).run_started.run_id
        await ended(model.called.wait())
        assert (await client.run(run_id)).run.status == RUN_STATUS_RUNNING
        await client.cancel(run_id)
        with pytest.raises(GatewayError, match="was cancelled") as caught:
            while True:
                await ended(anext(events))
        assert (caught.value.code, caught.value.reason) == (
            grpc.StatusCode.CANCELLED,
            "RUN_CANCELLED",
        )


def test_usage_refuses_unknown_groups_and_filters(gateway: str) -> None:
    """They are refused before anything is sent."""
    with Client(gateway) as client:
        assert client.usage(by=["role"], bucket="day", tenant="default").rows
        assert [reconciliation.deployment for reconciliation in client.reconcile()] == [
            "a provider"
        ]
        for call in (
            lambda: client.usage(by=["colour"]),  # type: ignore[list-item]
            lambda: client.usage(bucket="week"),  # type: ignore[arg-type]
            lambda: next(client.runs(kind="none")),  # type: ignore[arg-type]
        ):
            with pytest.raises(ValueError, match=r"got '(?:colour|week|none)'"):
                call()


ERRORS: list[tuple[Callable[[Client], object], tuple[str, str, str | None], str]] = [
    (
        lambda client: client.ask(" "),
        ("INVALID_ARGUMENT", "BAD_REQUEST", None),
        "question is empty",
    ),
    (
        lambda client: list(client.stream(DEAD_QUESTION)),
        ("UNAVAILABLE", "UPSTREAM_UNAVAILABLE", "delegation"),
        "delegation at http://127.0.0.1:9/v1: connection refused",
    ),
    (
        lambda client: client.feedback("run-0", accepted=True),
        ("NOT_FOUND", "RUN_NOT_FOUND", None),
        "run_id 'run-0'",
    ),
]


@pytest.mark.parametrize(("call", "parts", "message"), ERRORS)
def test_errors_have_code_reason_and_role(
    gateway: str, call: Callable[[Client], object], parts: tuple[str, str, str | None], message: str
) -> None:
    """They have one class. The message is for people."""
    with Client(gateway) as client, pytest.raises(GatewayError, match=message) as caught:
        call(client)
    assert (caught.value.code.name, caught.value.reason, caught.value.role) == parts


async def test_an_unreachable_address_is_named(dead: str) -> None:
    """The error says what to do. It has no reason, as it does not come from a gateway."""
    message = (
        f"no gateway answers at {dead}; start one with `rolegate serve`, or give another address. "
        "If the gateway is still starting, wait until it prints serve.ready."
    )
    async with AsyncClient(dead) as client:
        with pytest.raises(GatewayError) as caught:
            await client.ask(QUESTION)
    assert (caught.value.code, caught.value.reason, str(caught.value)) == (
        grpc.StatusCode.UNAVAILABLE,
        "",
        message,
    )


async def test_a_port_that_answers_but_not_by_grpc_is_named() -> None:
    http = HTTPServer(openai_app(Deployment().gateway(), open_access()), 0.0)
    address = (await http.start("127.0.0.1:0", "http")).removeprefix("http://")
    async with AsyncClient(address) as client:
        for method in (client.ask, client.search):
            with pytest.raises(GatewayError) as caught:
                await method(QUESTION)
            assert str(caught.value) == (
                f"the server at {address} does not speak gRPC; if this is the gateway's HTTP port "
                "(`server.http`), use its gRPC port (`server.address`)."
            )
    await http.drain()


def test_a_host_name_that_cannot_be_resolved_is_named() -> None:
    with (
        Client("tls.invalid:50551") as client,
        pytest.raises(GatewayError, match="cannot be resolved; check the add"),
    ):
        client.ask(QUESTION)


@pytest.mark.parametrize("rows", [[], [("x" * (1 << 20),)] * 2])
async def test_a_request_that_is_too_large_is_refused_with_the_limit(
    rows: list[tuple[str]], gateway: str
) -> None:
    """It is not sent again."""
    message = (
        r"^the request has \d{7} bytes, but the gateway accepts at most 1572864; "
        "send a shorter text, or fewer rows or earlier messages"
    )
    async with AsyncClient(gateway) as client:
        with pytest.raises(GatewayError, match=message) as caught:
            if rows:
                await client.table(QUESTION, "city*", rows)
            else:
                await client.ask("x" * 3_000_000)
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("given", [-1, 0, "a", float("nan")])
@pytest.mark.parametrize("method", ["ask", "stream", "table", "stream_table", "search", "watch"])
async def test_a_timeout_that_is_no_positive_number_is_refused(method: str, given: object) -> None:
    """Both clients refuse it before anything is sent."""
    columns = ("a*",) if "table" in method else ()
    message = rf"^timeout_s: must be a number of seconds more than 0, got {given!r}\.$"
    with Client("127.0.0.1:9") as client, pytest.raises(ValueError, match=message):
        getattr(client, method)("Who?", *columns, timeout_s=given)
    async with AsyncClient("127.0.0.1:9") as asking:
        with pytest.raises(ValueError, match=message):
            await getattr(asking, method)("Who?", *columns, timeout_s=given)


def test_a_deadline_includes_connecting() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Client(f"127.0.0.1:{silent.getsockname()[1]}") as client,
        pytest.raises(
            GatewayError, match="the deadline passed before the response arrived"
        ) as caught,
    ):
        client.ask(QUESTION, timeout_s=0.1)
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "")


async def test_a_server_that_is_no_gateway_is_recognised() -> None:
    """Its error differs from a gateway's refusal."""
    server = Server(None, None)
    async with AsyncClient(address := f"127.0.0.1:{await server.start('127.0.0.1:0')}") as client:
        with pytest.raises(GatewayError, match=f"the server at {address} does not offer this call"):
            await client.ask(QUESTION)
    await server.drain(0)


async def test_reading_a_cancelled_stream_raises_a_gateway_error() -> None:
    """It does not raise the error that cancels tasks."""
    async with held() as (address, model, _), AsyncClient(address) as client:
        events = client.stream(QUESTION)
        reading = aiter(events)
        await ended(anext(reading))
        await ended(model.called.wait())
        events.cancel()
        with pytest.raises(GatewayError, match="cancelled") as caught:
            await ended(anext(reading))
        await ended(model.cancelled.wait())
    assert caught.value.code is grpc.StatusCode.CANCELLED


async def test_cancelling_a_task_cancels_the_run() -> None:
    """The task ends like other cancelled tasks, and the model calls are cancelled."""

    async def read(address: str) -> None:
        async with AsyncClient(address) as client:
            async for _ in client.stream(QUESTION):
                pass

    async with held() as (address, model, _):
        task = asyncio.create_task(read(address))
        await ended(model.called.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended(task)
        await ended(model.cancelled.wait())


async def test_a_blocked_stream_can_be_cancelled() -> None:
    """It is cancelled from another thread, or by leaving the context."""

    def read(address: str, *, leave: bool) -> str:
        with Client(address) as client, client.stream(QUESTION) as events:
            for _ in events:
                if not leave:
                    events.cancel()
                    try:
                        next(iter(events))
                    except GatewayError as error:
                        return error.code.name
                break
        return "left"

    for leave, text in ((True, "left"), (False, "CANCELLED")):
        async with held() as (address, _, store):
            assert await ended(asyncio.to_thread(read, address, leave=leave)) == text
            assert (await store.next()).status == "cancelled"


def test_the_example_prints_answer_events_and_error(gateway: str) -> None:
    runs = [
        subprocess.run(
            [sys.executable, str(ROOT / "examples" / "python" / "ask.py"), gateway, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
            timeout=60,
        )
        for arguments in ([QUESTION], [QUESTION, "stream"], [DEAD_QUESTION])
    ]
    answer = (
        "in 1943\n  Heat: Heat is a film by Michael Mann.\n  Michael Mann: Michael Mann was "
        "born in 1943.\n"
    )
    event_lines = "".join(f"{number} {kind}\n" for number, kind in enumerate(STREAMED, 1))
    assert [(run.returncode, run.stdout) for run in runs] == [
        (0, answer),
        (0, event_lines + answer),
        (1, ""),
    ]
    assert [run.stderr for run in runs] == [
        "",
        "",
        (
            "UNAVAILABLE UPSTREAM_UNAVAILABLE delegation: delegation at "
            "http://127.0.0.1:9/v1: connection refused\n"
        ),
    ]
