"""The service of runs over a real channel."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from msgspec.structs import replace
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import run_service_pb2 as pb
from rolegate.v1 import usage_pb2
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from sqlalchemy import Connection

from router.access import CALLER
from router.edge.grpc.server import Server
from router.edge.grpc.services import RunServicer
from router.edge.status import as_seen_by
from router.errors import UpstreamUnavailable
from router.ledger import RunStart
from router.models import Completion, Message
from router.protocol import NO_EVIDENCE
from router.runs import RunFilter, Runs
from router.runs.archive import ExportedRun, RunPage
from router.runs.live import LiveRuns
from router.store import Database, SQLArchive
from router.store.schema import RUNS
from router.trace import Conversation, Execution, Run, Trajectory
from router.trace.identity import LOCAL, Identity
from router.trace.run import Feedback, RunStatus
from router.trace.table import Schema
from router.trace.values import Reported, Reranking, SearchRecord, TableRun, ToolCall
from tests.router.clock import ended
from tests.router.deployment import Deployment, HeldModel, Kept
from tests.router.edge.wire import info_of, next_of, refusal, served, whole_server
from tests.router.store import stored
from tests.scripted_model import ScriptedModel

if TYPE_CHECKING:
    from rolegate.v1.run_service_pb2_grpc import RunServiceAsyncStub

QUESTION = "Who directed Heat?"
ADDRESS = "http://10.0.0.7:8000/v1"
ACME, OTHER = (Identity(tenant, frozenset({"ask", "train"}), "k1") for tenant in ("acme", "other"))
MESSAGES = [completion_pb.ChatMessage(role="user", content="hi")]


def stub_of(channel: grpc.aio.Channel) -> "RunServiceAsyncStub":
    return RunServiceStub(channel)


@contextmanager
def called_by(identity: Identity) -> Iterator[None]:
    """Make `identity` the caller of every server that is started inside."""
    token = CALLER.set(identity)
    try:
        yield
    finally:
        CALLER.reset(token)


@asynccontextmanager
async def showing(store: Kept) -> AsyncIterator["RunServiceAsyncStub"]:
    """Open a stub of a service of stored runs alone."""
    async with served(Server(None, None, RunServicer(Runs(store, LiveRuns())))) as channel:
        yield stub_of(channel)


async def asked(channel: grpc.aio.Channel, **fields: Any) -> answer_pb.AnswerResponse:
    """Ask the question and return the answer."""
    return await AnswerServiceStub(channel).Answer(
        answer_pb.AnswerRequest(question=QUESTION, **fields)
    )


async def kept(status: RunStatus) -> tuple[Kept, Run]:
    """Return a store with one run of tenant `acme` with this status, and the run."""
    error = f"UpstreamUnavailable: delegation at {ADDRESS}: refused" if status == "failed" else ""
    run = Run("run-1", "answer", QUESTION, status, error, None, {}, (), 1.0, 2.0, "acme")
    return await keeping(run), run


async def keeping(*runs: Run) -> Kept:
    """Return a store with `runs`."""
    store = Kept()
    for run in runs:
        await store.begin(
            RunStart(run.id, run.kind, run.tenant, "", "", run.request, "", run.started_at)
        )
        await store.finish(run)
    return store


async def test_a_run_has_its_usage_and_calls_and_on_request_its_trace() -> None:
    async with served(whole_server(Deployment())) as channel:
        answer = await asked(channel, request_id="r1")
        plain = await stub_of(channel).GetRun(pb.GetRunRequest(run_id=answer.run_id))
        traced = await stub_of(channel).GetRun(
            pb.GetRunRequest(run_id=answer.run_id, include_trace=True)
        )
    run = plain.run
    assert (run.run_id, run.kind, run.status) == (
        answer.run_id,
        pb.RUN_KIND_ANSWER,
        pb.RUN_STATUS_FINISHED,
    )
    assert (run.tenant, run.request, run.request_id, run.outcome) == (
        "default",
        QUESTION,
        "r1",
        answer.outcome,
    )
    assert run.start_time.seconds > 0
    assert run.duration == answer.duration
    assert list(plain.usage) == list(answer.usage)
    assert [call.call_id for call in plain.calls] == [
        f"{answer.run_id}-{number}" for number in range(5)
    ]
    first_call = plain.calls[0]
    assert (first_call.role, first_call.model, first_call.purpose, first_call.attempt) == (
        usage_pb2.ROLE_DELEGATION,
        "backbone",
        "first",
        1,
    )
    assert (first_call.outcome, first_call.counted, first_call.HasField("cost_nano_usd")) == (
        "completed",
        "reported",
        False,
    )
    assert first_call.deployment
    assert sum(call.prompt_tokens for call in plain.calls) == sum(
        row.prompt_tokens for row in plain.usage
    )
    assert plain.trace_json == ""
    assert json.loads(traced.trace_json)["result"]["answer"] == "Michael Mann"


async def test_only_the_operator_sees_the_details_of_an_error() -> None:
    """A tenant sees the class of an error and no address in the error, the calls or the trace."""
    deployment = Deployment(ScriptedModel([UpstreamUnavailable("refused", endpoint=ADDRESS)]))
    store = Kept()
    with called_by(ACME):
        async with served(whole_server(deployment, store)) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await asked(channel)
            request = pb.GetRunRequest(run_id=store.runs[0].id, include_trace=True)
            tenants_view = await stub_of(channel).GetRun(request)
            exported = [item async for item in stub_of(channel).ExportRuns(pb.ExportRunsRequest())]
    async with showing(store) as stub:
        operators_view = await stub.GetRun(request)
    assert (tenants_view.run.status, tenants_view.error) == (
        pb.RUN_STATUS_FAILED,
        "upstream unavailable",
    )
    assert (
        tenants_view.calls[0].deployment,
        tenants_view.calls[0].outcome,
        tenants_view.calls[0].counted,
    ) == (
        "",
        "unavailable",
        "",
    )
    assert not tenants_view.calls[0].HasField("prompt_tokens")
    assert ADDRESS in operators_view.error
    assert operators_view.calls[0].deployment
    for trace in (tenants_view.trace_json, exported[0].trace_json):
        assert ADDRESS not in trace
        assert operators_view.calls[0].deployment not in trace


def _failing(server: str) -> SearchRecord:
    """Return a failed tool call whose error names a path."""
    return SearchRecord(
        "fetch",
        (),
        call=ToolCall(server, "fetch", "{}", 1.0, f"last words of {server}: /etc/{server}"),
    )


async def test_only_the_operator_sees_the_errors_of_tools() -> None:
    """Holds everywhere in a run: in a manager's work, in the work of the manager before it, and in
    events.
    """
    own, worker, earlier = (
        Execution("Who?", NO_EVIDENCE, "no_report", (_failing(name),), Conversation(()))
        for name in ("own", "worker", "before")
    )
    work = Trajectory("", "no_search", (worker,), (1,))
    managed = Execution(
        "Who?", NO_EVIDENCE, "no_report", (), Conversation(()), work=work, before=earlier
    )
    result = Trajectory("", "no_search", (own, managed), (2,))
    run = Run(
        "run-1",
        "answer",
        QUESTION,
        "finished",
        "",
        None,
        {},
        (),
        1.0,
        2.0,
        "acme",
        events=(Reported(0, own),),
    )
    runs = [
        replace(run, result=result),
        replace(
            run, id="run-2", kind="table", result=TableRun(Schema(()), executions=(own, managed))
        ),
        replace(run, id="run-3", kind="execute", result=own),
    ]
    store = await keeping(*runs)
    traces = dict[Identity, list[str]]()
    for identity in (LOCAL, ACME):
        with called_by(identity):
            async with showing(store) as stub:
                responses = [
                    await stub.GetRun(pb.GetRunRequest(run_id=stored_run.id, include_trace=True))
                    for stored_run in runs
                ]
                exported = [item async for item in stub.ExportRuns(pb.ExportRunsRequest())]
                traces[identity] = [response.trace_json for response in responses]
                traces[identity] += [item.trace_json for item in exported]
    assert [trace.count("/etc/") for trace in traces[LOCAL]] == [3, 3, 1] * 2
    assert [trace.count("/etc/") for trace in traces[ACME]] == [0] * 6
    assert [trace.count('"error":"failed"') for trace in traces[ACME]] == [3, 3, 1] * 2
    assert "/etc/" not in str(as_seen_by(run, ACME).events)
    assert as_seen_by(run, LOCAL) is run


async def test_only_the_operator_sees_the_errors_of_the_reranker() -> None:
    """They have its address. A tenant sees that it failed."""
    search = SearchRecord("q", (), reranking=Reranking("cross", error=f"refused at {ADDRESS}"))
    execution = Execution("Who?", NO_EVIDENCE, "no_report", (search,), Conversation(()))
    run = Run("run-1", "execute", QUESTION, "finished", "", execution, {}, (), 1.0, 2.0, "acme")
    store = await keeping(run)
    traces = {}
    for identity in (LOCAL, ACME):
        with called_by(identity):
            async with showing(store) as stub:
                request = pb.GetRunRequest(run_id="run-1", include_trace=True)
                traces[identity] = (await stub.GetRun(request)).trace_json
    assert ADDRESS in traces[LOCAL]
    assert ADDRESS not in traces[ACME]
    assert '"error":"failed"' in traces[ACME]


async def test_another_tenant_s_run_is_not_found() -> None:
    """No method finds it, and it is neither listed nor exported."""
    store, run = await kept("finished")
    with called_by(OTHER):
        async with showing(store) as stub:
            calls = (
                stub.GetRun(pb.GetRunRequest(run_id=run.id)),
                stub.CancelRun(pb.CancelRunRequest(run_id=run.id)),
                stub.SubmitFeedback(pb.SubmitFeedbackRequest(run_id=run.id, comment="good")),
                stub.WatchRun(pb.WatchRunRequest(run_id=run.id)).read(),
            )
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError, match="'run-1'") as caught:
                    await call
                assert caught.value.code() == grpc.StatusCode.NOT_FOUND
            for tenant in ("", "acme"):
                assert not (await stub.ListRuns(pb.ListRunsRequest(tenant=tenant))).runs
                assert not [
                    item async for item in stub.ExportRuns(pb.ExportRunsRequest(tenant=tenant))
                ]


class Recording(Kept):
    """A store that notes the filters that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[tuple[RunFilter, int]] = []

    async def list(self, wanted: RunFilter, size: int, page: str = "") -> RunPage:
        self.wanted.append((wanted, size))
        return RunPage((), "")

    async def export(self, wanted: RunFilter) -> AsyncIterator[ExportedRun]:
        self.wanted.append((wanted, 0))
        for run in self.runs:
            yield ExportedRun(run, ())


async def test_filters_reach_the_store_unchanged() -> None:
    """An absent field filters nothing. A page has 50 runs by default, and at most 1000."""
    store = Recording()
    span: Any = {
        "start_time": datetime.fromtimestamp(1, UTC),
        "end_time": datetime.fromtimestamp(2.5, UTC),
    }
    async with showing(store) as stub:
        await stub.ListRuns(pb.ListRunsRequest())
        await stub.ListRuns(
            pb.ListRunsRequest(
                page_size=2000,
                tenant="acme",
                kind=pb.RUN_KIND_EXECUTE,
                status=pb.RUN_STATUS_INTERRUPTED,
                key_id="5f0c2a9e",
                **span,
            )
        )
        async for _ in stub.ExportRuns(pb.ExportRunsRequest()):
            pass
        request = pb.ExportRunsRequest(
            tenant="acme", kind=pb.RUN_KIND_COMPLETE, for_training=True, **span
        )
        async for _ in stub.ExportRuns(request):
            pass
    assert store.wanted == [
        (RunFilter(), 50),
        (RunFilter("acme", "execute", "interrupted", 1.0, 2.5, key_id="5f0c2a9e"), 1000),
        (RunFilter(), 0),
        (RunFilter("acme", "complete", None, 1.0, 2.5, training=True), 0),
    ]


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"page_size": -1}, "page_size"), ({"kind": 9}, "kind"), ({"status": 9}, "status")],
)
async def test_a_list_with_an_invalid_filter_is_refused(fields: dict[str, Any], field: str) -> None:
    async with showing(Kept()) as stub:
        assert await refusal(stub.ListRuns(pb.ListRunsRequest(**fields)), field) == (
            "INVALID_ARGUMENT",
            "BAD_REQUEST",
        )


async def test_a_watch_of_an_ended_run_gives_the_streamed_events() -> None:
    """It begins after any given event number."""
    async with served(whole_server(Deployment())) as channel:
        call = AnswerServiceStub(channel).StreamAnswer(
            answer_pb.StreamAnswerRequest(question=QUESTION)
        )
        streamed = [event async for event in call]
        run_id = streamed[0].run_started.run_id
        for event_number in (0, 3, len(streamed) - 2, len(streamed) - 1):
            request = pb.WatchRunRequest(run_id=run_id, after_event_number=event_number)
            events = [item.event async for item in stub_of(channel).WatchRun(request)]
            assert events == streamed[event_number:]
        for event_number in (-1, len(streamed)):
            request = pb.WatchRunRequest(run_id=run_id, after_event_number=event_number)
            with pytest.raises(grpc.aio.AioRpcError, match="after_event_number") as caught:
                await stub_of(channel).WatchRun(request).read()
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        ("failed", grpc.StatusCode.UNAVAILABLE, "UPSTREAM_UNAVAILABLE"),
        ("cancelled", grpc.StatusCode.CANCELLED, "RUN_CANCELLED"),
        ("interrupted", grpc.StatusCode.UNAVAILABLE, "RUN_INTERRUPTED"),
    ],
)
@pytest.mark.parametrize("identity", [ACME, None])
async def test_a_watch_of_a_run_that_did_not_finish_ends_in_its_error(
    status: RunStatus, code: grpc.StatusCode, reason: str, identity: Identity | None
) -> None:
    """Only the operator sees addresses in the message."""
    store, run = await kept(status)
    with called_by(identity or CALLER.get()):
        async with showing(store) as stub:
            with pytest.raises(grpc.aio.AioRpcError, match=run.id) as caught:
                await stub.WatchRun(pb.WatchRunRequest(run_id=run.id)).read()
    assert (caught.value.code(), info_of(caught.value).reason) == (code, reason)
    assert (ADDRESS in (caught.value.details() or "")) == (identity is None and status == "failed")


async def test_cancelling_a_run_ends_its_stream_and_its_watches() -> None:
    """The work upstream stops."""
    store = Kept()
    model = HeldModel(ScriptedModel([]))
    async with served(whole_server(Deployment(model), store)) as channel:
        answer_stream = AnswerServiceStub(channel).StreamAnswer(
            answer_pb.StreamAnswerRequest(question=QUESTION)
        )
        run_id = (await next_of(answer_stream)).run_started.run_id
        watch = stub_of(channel).WatchRun(pb.WatchRunRequest(run_id=run_id))
        await next_of(watch)
        await ended(model.called.wait())
        await stub_of(channel).CancelRun(pb.CancelRunRequest(run_id=run_id))
        for call in (answer_stream, watch):
            with pytest.raises(grpc.aio.AioRpcError, match="was cancelled") as caught:
                while True:
                    await next_of(call)
            assert (caught.value.code(), info_of(caught.value).reason) == (
                grpc.StatusCode.CANCELLED,
                "RUN_CANCELLED",
            )
        await ended(model.cancelled.wait())
        await stub_of(channel).CancelRun(pb.CancelRunRequest(run_id=run_id))
    assert [run.status for run in store.runs] == ["cancelled"]


async def test_a_running_run_has_neither_outcome_nor_duration() -> None:
    model = HeldModel(ScriptedModel([]))
    async with served(whole_server(Deployment(model))) as channel:
        answering = AnswerServiceStub(channel).StreamAnswer(
            answer_pb.StreamAnswerRequest(question=QUESTION)
        )
        run_id = (await next_of(answering)).run_started.run_id
        await ended(model.called.wait())
        run = (await stub_of(channel).GetRun(pb.GetRunRequest(run_id=run_id))).run
        answering.cancel()
    assert (run.status, run.outcome, run.HasField("duration")) == (pb.RUN_STATUS_RUNNING, 0, False)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"verdict": pb.VERDICT_ACCEPTED}, {"accepted": True}),
        (
            {"verdict": pb.VERDICT_REJECTED, "right_answer": "Mann"},
            {"accepted": False, "right_answer": "Mann"},
        ),
        ({"score": 0.0}, {"score": 0.0}),
        ({"score": 1.0, "comment": "good"}, {"score": 1.0, "comment": "good"}),
    ],
)
async def test_feedback_is_stored_and_returned_as_it_was_given(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    """An absent field stays absent, and a score of 0 is a score."""
    store, run = await kept("finished")
    async with showing(store) as stub:
        response = await stub.SubmitFeedback(pb.SubmitFeedbackRequest(run_id=run.id, **fields))
        response_with_run = await stub.GetRun(pb.GetRunRequest(run_id=run.id))
        exported = [item async for item in stub.ExportRuns(pb.ExportRunsRequest())]
    assert response.feedback_id
    assert store.given == [Feedback(run.id, **expected)]
    assert list(response_with_run.feedback) == [pb.Feedback(**fields)]
    assert [list(item.feedback) for item in exported] == [[pb.Feedback(**fields)]]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "empty"),
        ({"score": 1.1}, "score"),
        ({"score": -0.1}, "score"),
        ({"score": float("nan")}, "score"),
        ({"verdict": 7}, "verdict"),
        ({"comment": "é" * 5001}, "comment must have at most 5000 characters, got 5001"),
        (
            {"right_answer": "x" * 1_500_000},
            "right_answer must have at most 5000 characters, got 1500000",
        ),
    ],
)
async def test_invalid_feedback_is_refused_with_the_name_of_its_field(
    fields: dict[str, Any], field: str
) -> None:
    """Nothing is stored."""
    store, run = await kept("finished")
    async with showing(store) as stub:
        assert await refusal(
            stub.SubmitFeedback(pb.SubmitFeedbackRequest(run_id=run.id, **fields)), field
        ) == (
            "INVALID_ARGUMENT",
            "BAD_REQUEST",
        )
    assert store.given == []


@asynccontextmanager
async def in_database(
    folder: Path, *runs: Run
) -> AsyncIterator[tuple["RunServiceAsyncStub", Database]]:
    """Open a stub of a service of runs in a database, with gRPC's own limit on messages, and return
    the database too.
    """
    database = await Database.open(f"sqlite:///{folder / 'runs.db'}")
    await stored.put(database, *runs)
    async with served(
        Server(None, None, RunServicer(Runs(SQLArchive(database), LiveRuns())))
    ) as channel:
        yield stub_of(channel), database
    await database.close()


async def test_feedback_beyond_the_maximum_is_refused(tmp_path: Path) -> None:
    """Holds also for concurrent requests. All stored feedback fits into one message."""
    text = "\U0001f4a9" * 5000
    async with in_database(tmp_path, stored.run("run-1"), stored.run("run-2")) as (stub, _):
        request = pb.SubmitFeedbackRequest(run_id="run-1", right_answer=text, comment=text)
        answers = await asyncio.gather(
            *(stub.SubmitFeedback(request) for _ in range(60)), return_exceptions=True
        )
        refused = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
        assert {(error.code(), error.details()) for error in refused} == {
            (
                grpc.StatusCode.INVALID_ARGUMENT,
                "run_id 'run-1': has 50 entries of feedback, which is the maximum; no more can be "
                "added.",
            )
        }
        assert len(refused) == 10
        response = await stub.GetRun(pb.GetRunRequest(run_id="run-1"))
        assert [(feedback.right_answer, feedback.comment) for feedback in response.feedback] == [
            (text, text)
        ] * 50
        request.run_id = "run-2"
        assert (await stub.SubmitFeedback(request)).feedback_id


@pytest.mark.parametrize("character", ["x", "\U0001f4a9"])
async def test_the_longest_run_is_readable_with_all_its_feedback(
    character: str, tmp_path: Path
) -> None:
    """Holds also in the longest list."""
    long_text = character * (3_900_000 // len(character.encode()))
    result = Conversation((Message("user", long_text),), (Completion(long_text, "stop"),))
    runs = [
        stored.run(
            f"run-{number}",
            float(number),
            kind="complete",
            request=long_text,
            result=result,
            events=(),
        )
        for number in range(2)
    ]
    async with in_database(tmp_path, *runs) as (stub, database):
        text = character * 5000
        feedback = pb.SubmitFeedbackRequest(run_id="run-0", right_answer=text, comment=text)
        await asyncio.gather(*(stub.SubmitFeedback(feedback) for _ in range(50)))
        response = await stub.GetRun(pb.GetRunRequest(run_id="run-0"))
        assert response.run.request == response.output == f"{long_text[:199_999]}…"
        await database.write(_copied)
        page = await stub.ListRuns(pb.ListRunsRequest(page_size=1000))
        assert [run.request for run in page.runs] == [f"{long_text[:499]}…"] * 1000


def _copied(connection: Connection) -> None:
    """Insert a thousand copies of the first run into a database, without their traces."""
    columns = ", ".join(
        column.name for column in RUNS.columns if column.name not in ("run_id", "request", "trace")
    )
    connection.exec_driver_sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
        f"INSERT INTO runs (run_id, request, {columns}) "
        f"SELECT 'copy-' || i, substr(request, 1, 600), {columns} FROM runs, n WHERE "
        "run_id = 'run-0'"
    )
