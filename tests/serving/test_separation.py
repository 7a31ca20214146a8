"""Two tenants at one gateway with a real store: no data of one tenant reaches the other."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import Default
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import execution_service_pb2 as execution_pb
from rolegate.v1 import executor_version_service_pb2 as version_pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import table_service_pb2 as table_pb
from rolegate.v1 import usage_service_pb2 as usage_pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub
from rolegate.v1.executor_version_service_pb2_grpc import ExecutorVersionServiceStub
from rolegate.v1.retrieval_service_pb2 import SearchRequest
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.table_service_pb2_grpc import TableServiceStub
from rolegate.v1.usage_pb2 import ROLE_ANSWER
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub
from sqlalchemy import func, select

from router.access import Access, Tenant, new_key
from router.administration import Auditor
from router.edge.grpc.server import Server
from router.edge.grpc.services import ExecutorVersionServicer, RunServicer, UsageServicer
from router.edge.grpc.table_service import TableServicer
from router.ledger import Reconciler
from router.models import Prompt
from router.protocol import Passage
from router.runs import Gateway, RunLifecycle, Runs
from router.runs.live import LiveRuns
from router.search import Executor, ReportCache, Topology
from router.search.agent import ExecutorLimits
from router.store import Database, LogJournal, SQLAccounts, SQLArchive, SQLUsages, SQLVersionBook
from router.store.schema import FEEDBACK
from router.trace.identity import SCOPES
from router.trace.run import RoleSetting
from router.versions import VersionRouting, Versions
from router.versions.book import Traffic
from serving.config.config import SearchConfig
from serving.retrieval.services import RetrievalServicer
from serving.topologies import new_search
from tests.router.accounts import open_access
from tests.router.clock import ended
from tests.router.deployment import PASSAGE, STOP, Deployment, block, finds
from tests.router.scripted_tables import ScriptedTables
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import ScriptedModel

SERVICES = (
    "Answer",
    "Completion",
    "Execution",
    "ExecutorVersion",
    "Retrieval",
    "Run",
    "Table",
    "Usage",
)
ELSEWHERE = ("Admin", "Document")
"""Services whose cases are in `tests/router/edge/test_admin_service.py` and
`tests/serving/uploads/test_upload_separation.py`.
"""
MARK = "Rumpelstiltskin"
"""Text that is in all requests of the first tenant, and in nothing else."""
MARKED = f"Who directed {MARK}?"
WAITING = f"Who waits for {MARK}?"
PLAIN = "Who directed Heat?"
REQUEST_ID = "the-first-tenant-s-name-for-it"


class Waits:
    """A retriever that delays one question."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.let = asyncio.Event()

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        if WAITING in queries:
            self.asked.set()
            await self.let.wait()
        return [[PASSAGE][:top_k] for _ in queries]


class NoCounts:
    """A reader of engine counters that has none."""

    async def read(self, base_url: str) -> Any:
        raise NotImplementedError


async def _traffic() -> Traffic:
    """Fail, as nothing reads the traffic."""
    raise NotImplementedError


async def _load(name: str) -> str:
    """Fail, as no version may be loaded."""
    raise NotImplementedError(name)


def delegates(prompt: Prompt) -> str:
    """Delegate the question itself as the only sub-query."""
    return block(prompt.messages[1].content) if len(prompt.messages) == 2 else STOP


@dataclass
class Caller:
    """A tenant, or the operator, with a key that has every scope."""

    name: str
    metadata: tuple[tuple[str, str], ...]
    question: str
    """The caller's question."""


@dataclass
class World:
    """A gateway on which the first tenant has made each kind of request; one of its runs is still
    running.
    """

    channel: grpc.aio.Channel
    database: Database
    retriever: Waits
    owner: Caller
    other: Caller
    operator: Caller
    ended: str = ""
    """Completed run of the owner."""
    under_way: str = ""
    """Running run of the owner."""
    table: str = ""
    """Table of the owner."""
    page: str = ""
    """Page token of the owner's list of runs."""


async def _opened(stack: AsyncExitStack, folder: Path) -> World:
    database = await Database.open(f"sqlite:///{folder}/runs.db")
    stack.push_async_callback(database.close)
    live = LiveRuns()
    retriever = Waits()
    archive = SQLArchive(database)
    journal = await stack.enter_async_context(LogJournal.writing(database, on_cancel=live.cancel))
    deployment = Deployment(
        ScriptedModel(delegates, "backbone"),
        ScriptedModel(finds, "small"),
        ScriptedModel(lambda _prompt: "<answer>Mann</answer>", "fixed"),
        retriever,
    )
    roles = deployment.roles()
    settings = {name: RoleSetting(role.model.name, "0" * 64) for name, role in roles.items()}
    worker = Executor(roles["execution"], Unfiltered(retriever), ExecutorLimits())
    executor = ReportCache(
        VersionRouting(lambda _version: worker, "", _traffic, _load), lambda _scope: "the index"
    )
    lifecycle = RunLifecycle(journal, archive, live, settings, 60.0)
    gateway = Gateway(
        topologies={"factorized": Topology(new_search(SearchConfig(), roles, executor), roles)},
        executor=executor,
        roles=roles,
        lifecycle=lifecycle,
    )
    accounts = SQLAccounts(database)
    callers: list[Caller] = []
    for name, question in (("first", MARKED), ("second", PLAIN), (None, PLAIN)):
        text, key = new_key(name, SCOPES)
        await accounts.add_key(key)
        callers.append(Caller(name or "", (("authorization", f"Bearer {text}"),), question))
    server = Server(
        gateway,
        RetrievalServicer(Unfiltered(retriever)),
        RunServicer(Runs(archive, live)),
        UsageServicer(
            SQLUsages(database), Reconciler({"scripted": None}, NoCounts(), SQLUsages(database))
        ),
        ExecutorVersionServicer(
            Versions(SQLVersionBook(database), _load), Auditor(accounts, "grpc")
        ),
        TableServicer(ScriptedTables(lifecycle), Runs(archive, live), open_access()),
        access=Access(accounts),
    )
    port = await server.start("127.0.0.1:0")
    stack.push_async_callback(server.drain, 10)
    stack.callback(retriever.let.set)
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
    owner, other, operator = callers
    return World(channel, database, retriever, owner, other, operator)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        world = await _opened(stack, tmp_path)
        for case in (answer, execute, complete, fill_table):
            await case(world, world.owner)
        runs = await _runs(world).ListRuns(
            run_pb.ListRunsRequest(page_size=1), metadata=world.owner.metadata
        )
        world.page = runs.next_page_token
        listed = await _runs(world).ListRuns(
            run_pb.ListRunsRequest(kind=run_pb.RUN_KIND_ANSWER), metadata=world.owner.metadata
        )
        world.ended = listed.runs[0].run_id
        tables = await _runs(world).ListRuns(
            run_pb.ListRunsRequest(kind=run_pb.RUN_KIND_TABLE), metadata=world.owner.metadata
        )
        world.table = tables.runs[0].run_id
        await feedback(world, world.owner)
        request = answer_pb.StreamAnswerRequest(question=WAITING, request_id="another")
        waiting: Any = AnswerServiceStub(world.channel).StreamAnswer(
            request, metadata=world.owner.metadata
        )
        world.under_way = (await ended(waiting.read())).run_started.run_id
        await ended(world.retriever.asked.wait())
        yield world
        waiting.cancel()


def _runs(world: World) -> Any:
    return RunServiceStub(world.channel)


async def whole(stream: Any) -> str:
    """Return a whole stream as text. The stream of a running run is read until it is let finish."""
    return "".join([str(message) async for message in stream])


async def answer(world: World, caller: Caller) -> str:
    """Ask with the first tenant's `request_id`."""
    request = answer_pb.AnswerRequest(question=caller.question, request_id=REQUEST_ID)
    return str(await AnswerServiceStub(world.channel).Answer(request, metadata=caller.metadata))


async def stream_answer(world: World, caller: Caller) -> str:
    request = answer_pb.StreamAnswerRequest(question=caller.question, request_id=REQUEST_ID)
    return await whole(
        AnswerServiceStub(world.channel).StreamAnswer(request, metadata=caller.metadata)
    )


def _messages(caller: Caller) -> list[completion_pb.ChatMessage]:
    return [completion_pb.ChatMessage(role="user", content=caller.question)]


async def complete(world: World, caller: Caller) -> str:
    request = completion_pb.CompleteRequest(
        role=ROLE_ANSWER, messages=_messages(caller), request_id="completing"
    )
    return str(
        await CompletionServiceStub(world.channel).Complete(request, metadata=caller.metadata)
    )


async def stream_complete(world: World, caller: Caller) -> str:
    request = completion_pb.StreamCompleteRequest(
        role=ROLE_ANSWER, messages=_messages(caller), request_id="completing"
    )
    return await whole(
        CompletionServiceStub(world.channel).StreamComplete(request, metadata=caller.metadata)
    )


async def execute(world: World, caller: Caller) -> str:
    request = execution_pb.ExecuteRequest(sub_query=caller.question, request_id="executing")
    return str(await ExecutionServiceStub(world.channel).Execute(request, metadata=caller.metadata))


def _wanted(caller: Caller) -> dict[str, Any]:
    """Return the table request, with a known row of the caller."""
    columns = [
        table_pb.Column(name=name, key=name == "city") for name in ("city", "founder", "founded")
    ]
    given = table_pb.GivenRow(values=[caller.question, "", ""])
    return {
        "question": "Which cities?",
        "columns": columns,
        "rows": [given],
        "request_id": "filling",
    }


async def fill_table(world: World, caller: Caller) -> str:
    request = table_pb.FillTableRequest(**_wanted(caller))
    return str(await TableServiceStub(world.channel).FillTable(request, metadata=caller.metadata))


async def stream_table(world: World, caller: Caller) -> str:
    request = table_pb.StreamTableRequest(**_wanted(caller))
    return await whole(
        TableServiceStub(world.channel).StreamTable(request, metadata=caller.metadata)
    )


async def get_table(world: World, caller: Caller) -> str:
    request = table_pb.GetTableRequest(run_id=world.table)
    return str(await TableServiceStub(world.channel).GetTable(request, metadata=caller.metadata))


async def search(world: World, caller: Caller) -> str:
    request = SearchRequest(queries=[MARKED])
    return str(await RetrievalServiceStub(world.channel).Search(request, metadata=caller.metadata))


async def get_run(world: World, caller: Caller) -> str:
    """Get both runs, with their traces."""
    return await _each(
        world,
        lambda run_id: _runs(world).GetRun(
            run_pb.GetRunRequest(run_id=run_id, include_trace=True), metadata=caller.metadata
        ),
    )


async def watch_run(world: World, caller: Caller) -> str:
    """Watch both runs from the first event; the first event of each is enough."""

    async def first(run_id: str) -> Any:
        stream = _runs(world).WatchRun(
            run_pb.WatchRunRequest(run_id=run_id), metadata=caller.metadata
        )
        streams = [await ended(stream.read()) for _ in range(3)]
        stream.cancel()
        return streams

    return await _each(world, first)


async def cancel_run(world: World, caller: Caller) -> str:
    """Cancel both runs."""
    return await _each(
        world,
        lambda run_id: _runs(world).CancelRun(
            run_pb.CancelRunRequest(run_id=run_id), metadata=caller.metadata
        ),
    )


async def feedback(world: World, caller: Caller) -> str:
    request = run_pb.SubmitFeedbackRequest(run_id=world.ended, comment=f"about {MARK}")
    return str(await _runs(world).SubmitFeedback(request, metadata=caller.metadata))


async def list_runs(world: World, caller: Caller) -> str:
    """List all runs, by the first tenant's name, and from its page token."""
    texts = ""
    for request in (
        run_pb.ListRunsRequest(),
        run_pb.ListRunsRequest(tenant="first"),
        run_pb.ListRunsRequest(page_token=world.page),
        run_pb.ListRunsRequest(
            tenant="first", page_token=world.page, status=run_pb.RUN_STATUS_RUNNING
        ),
    ):
        texts += str(await _runs(world).ListRuns(request, metadata=caller.metadata))
    return texts


async def export_runs(world: World, caller: Caller) -> str:
    """Export all runs, by name, and for training."""
    texts = ""
    for request in (
        run_pb.ExportRunsRequest(),
        run_pb.ExportRunsRequest(tenant="first"),
        run_pb.ExportRunsRequest(tenant="first", for_training=True),
        run_pb.ExportRunsRequest(for_training=True),
    ):
        texts += await whole(_runs(world).ExportRuns(request, metadata=caller.metadata))
    return texts


async def get_usage(world: World, caller: Caller) -> str:
    """Get the usage of all tenants, and by name."""
    texts = ""
    for request in (
        usage_pb.GetUsageRequest(group_by=[usage_pb.USAGE_DIMENSION_TENANT]),
        usage_pb.GetUsageRequest(tenant="first"),
    ):
        texts += str(
            await UsageServiceStub(world.channel).GetUsage(request, metadata=caller.metadata)
        )
    return texts


async def reconcile_usage(world: World, caller: Caller) -> str:
    request = usage_pb.ReconcileUsageRequest()
    return str(
        await UsageServiceStub(world.channel).ReconcileUsage(request, metadata=caller.metadata)
    )


def version_case(method: str) -> "Case":
    """Return the call of a method of the versions service."""

    async def case(world: World, caller: Caller) -> str:
        request = getattr(version_pb, f"{method}Request")()
        call = getattr(ExecutorVersionServiceStub(world.channel), method)
        return str(await call(request, metadata=caller.metadata))

    return case


async def _each(world: World, call: Callable[[str], Awaitable[Any]]) -> str:
    """Call a method with both runs of the first tenant.

    If neither is found, the errors must be equal.
    """
    texts = ""
    refused = []
    for run_id in (world.ended, world.under_way):
        try:
            texts += str(await call(run_id))
        except grpc.aio.AioRpcError as error:
            refused.append((error.code(), str(error.details()).replace(run_id, "…")))
    try:
        await call("run-0000000000000000")
    except grpc.aio.AioRpcError as error:
        made_up = (error.code(), str(error.details()).replace("run-0000000000000000", "…"))
    assert refused in ([], [made_up, made_up])
    return "NOT_FOUND" if refused and made_up[0] is grpc.StatusCode.NOT_FOUND else texts


Case = Callable[[World, Caller], Awaitable[str]]
CASES: dict[str, tuple[Case, str, str]] = {
    "AnswerService/Answer": (answer, MARK, "answer"),
    "AnswerService/StreamAnswer": (stream_answer, MARK, "answer"),
    "CompletionService/Complete": (complete, "run_id", "run_id"),
    "CompletionService/StreamComplete": (stream_complete, "run_id", "run_id"),
    "ExecutionService/Execute": (execute, MARK, "run_id"),
    **{
        f"ExecutorVersionService/{name}": (
            version_case(name),
            "PERMISSION_DENIED",
            "PERMISSION_DENIED",
        )
        for name in (
            "ListExecutorVersions",
            "RegisterExecutorVersion",
            "SetExecutorVersionTraffic",
            "PromoteExecutorVersion",
            "RollBackExecutorVersion",
            "ListExecutorVersionDecisions",
        )
    },
    "RetrievalService/Search": (search, "Heat", "Heat"),
    "RunService/GetRun": (get_run, MARK, "NOT_FOUND"),
    "RunService/ListRuns": (list_runs, MARK, ""),
    "RunService/WatchRun": (watch_run, MARK, "NOT_FOUND"),
    "RunService/CancelRun": (cancel_run, "", "NOT_FOUND"),
    "RunService/SubmitFeedback": (feedback, "feedback_id", "NOT_FOUND"),
    "RunService/ExportRuns": (export_runs, MARK, ""),
    "TableService/FillTable": (fill_table, MARK, "Heat"),
    "TableService/StreamTable": (stream_table, MARK, "Heat"),
    "TableService/GetTable": (get_table, MARK, "NOT_FOUND"),
    "UsageService/GetUsage": (get_usage, "first", ""),
    "UsageService/ReconcileUsage": (reconcile_usage, "PERMISSION_DENIED", "PERMISSION_DENIED"),
}
"""For every method: the call, text in the owner's response (so that there is data to separate), and
text in the other tenant's response.
"""


async def tried(case: Case, world: World, caller: Caller) -> str:
    """Return the response, or the error, as text."""
    try:
        return await ended(case(world, caller))
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"


def test_every_method_has_a_case() -> None:
    """A method without a case fails this test."""
    services = [Default().FindServiceByName(f"rolegate.v1.{name}Service") for name in SERVICES]
    assert sorted(CASES) == sorted(
        f"{service.name}/{method.name}" for service in services for method in service.methods
    )


def test_every_service_is_known() -> None:
    """An unknown service fails this test."""
    files = {
        path.stem
        for path in (Path(__file__).parents[2] / "protos/rolegate/v1").glob("*_service.proto")
    }
    known = (*SERVICES, *ELSEWHERE)
    assert files == {re.sub("(?<=.)(?=[A-Z])", "_", name).lower() + "_service" for name in known}


@pytest.mark.parametrize("method", sorted(CASES))
async def test_another_tenant_gets_nothing(world: World, method: str) -> None:
    """The other tenant has a key with every scope, and uses the first tenant's run ids, names, page
    tokens and request ids.
    """
    case, _, expected = CASES[method]
    response = await tried(case, world, world.other)
    assert expected in response
    assert MARK not in response
    assert "first" not in response
    assert expected or response == ""
    if expected != "NOT_FOUND":
        assert world.ended not in response
        assert world.under_way not in response


@pytest.mark.parametrize("method", sorted(CASES))
async def test_the_owner_gets_its_data(world: World, method: str) -> None:
    """Without this test, the other tests would prove nothing."""
    case, expected, _ = CASES[method]
    response = await tried(case, world, world.owner)
    assert expected in response
    assert "NOT_FOUND" not in response


@pytest.mark.parametrize(
    "method", ["GetRun", "ListRuns", "WatchRun", "ExportRuns", "SubmitFeedback"]
)
async def test_the_operator_gets_the_data_of_all_tenants(world: World, method: str) -> None:
    case, expected, _ = CASES[f"RunService/{method}"]
    assert expected in await tried(case, world, world.operator)


async def test_requests_of_another_tenant_change_nothing(world: World) -> None:
    """The run that the other tenant tried to cancel completes, and only the owner's feedback is
    stored.
    """
    for method in CASES:
        await tried(CASES[method][0], world, world.other)
    watching = _runs(world).WatchRun(
        run_pb.WatchRunRequest(run_id=world.under_way), metadata=world.owner.metadata
    )
    world.retriever.let.set()
    stream = await ended(whole(watching))
    assert "done" in stream
    count = select(func.count()).select_from(FEEDBACK)
    assert await world.database.read(lambda connection: connection.scalar(count)) == 1


async def test_a_sub_query_of_two_tenants_is_worked_on_for_each(world: World) -> None:
    """No tenant gets a report from another tenant's work: both spend the same, and each has its own
    run.
    """
    spent = []
    run_ids = set()
    for caller in (world.owner, world.other):
        request = execution_pb.ExecuteRequest(sub_query=PLAIN, request_id="the same")
        response = await ExecutionServiceStub(world.channel).Execute(
            request, metadata=caller.metadata
        )
        spent.append(
            [
                (row.role, row.attempts, row.prompt_tokens, row.completion_tokens)
                for row in response.usage
            ]
        )
        run_ids.add(response.run_id)
    assert spent[0] == spent[1]
    assert spent[0][0][1] == 2
    assert len(run_ids) == 2
    usage = usage_pb.GetUsageRequest(group_by=[usage_pb.USAGE_DIMENSION_TENANT])
    other_usage = await UsageServiceStub(world.channel).GetUsage(
        usage, metadata=world.other.metadata
    )
    assert [(row.tenant, row.usage.attempts) for row in other_usage.rows] == [("second", 2)]


async def test_reports_are_reused_within_a_tenant_only(world: World) -> None:
    """The first tenant pays nothing the second time, unless it requests fresh work.

    Another tenant pays for all of it and sees no other run.
    """
    spent = []
    for caller, fresh in (
        (world.owner, False),
        (world.owner, False),
        (world.owner, True),
        (world.other, False),
    ):
        request = execution_pb.ExecuteRequest(sub_query="Who directed Ronin?", no_cache=fresh)
        response = await ExecutionServiceStub(world.channel).Execute(
            request, metadata=caller.metadata
        )
        spent.append(
            (sum(row.attempts for row in response.usage), len(response.result.shared_from))
        )
    assert spent == [(2, 0), (0, 1), (2, 0), (2, 0)]


async def test_no_tenant_waits_for_another(world: World) -> None:
    """A sub-query with which the first tenant's run is delayed is searched immediately by the other
    tenant's run.
    """
    world.retriever.asked.clear()
    request = execution_pb.ExecuteRequest(sub_query=WAITING)
    execution: Any = ExecutionServiceStub(world.channel).Execute(
        request, metadata=world.other.metadata
    )
    await ended(world.retriever.asked.wait())
    world.retriever.let.set()
    response = await ended(execution)
    assert sum(row.attempts for row in response.usage) == 2
    assert not response.result.shared_from


async def test_an_export_has_only_training_data_of_its_tenant(world: World) -> None:
    """Runs that may not be used for training are in no export, not even the operator's."""
    await execute(world, world.other)
    export = run_pb.ExportRunsRequest(for_training=True)
    theirs = await whole(_runs(world).ExportRuns(export, metadata=world.other.metadata))
    assert (PLAIN in theirs, MARK in theirs) == (True, False)
    assert MARK in await whole(_runs(world).ExportRuns(export, metadata=world.operator.metadata))
    await SQLAccounts(world.database).set_tenant(Tenant("first", training=False))
    left = await whole(_runs(world).ExportRuns(export, metadata=world.operator.metadata))
    assert (PLAIN in left, MARK in left) == (True, False)


async def test_a_run_and_its_usage_have_the_key_that_asked(world: World) -> None:
    """Runs can be listed by key. A tenant sees nothing of other tenants' keys."""
    await execute(world, world.other)
    keys = {
        caller.name: caller.metadata[0][1].split("_")[1]
        for caller in (world.owner, world.other, world.operator)
    }
    first, second, operator = keys.values()
    shown = await _runs(world).GetRun(
        run_pb.GetRunRequest(run_id=world.ended, include_trace=True), metadata=world.owner.metadata
    )
    trace = json.loads(shown.trace_json)
    assert shown.run.key_id == trace["key_id"] == first
    assert {call["key_id"] for call in trace["calls"]} == {first}
    assert world.owner.metadata[0][1].split("_", 2)[2] not in str(shown)

    async def listed(key: str, caller: Caller) -> set[str]:
        request = run_pb.ListRunsRequest(key_id=key)
        runs = (await _runs(world).ListRuns(request, metadata=caller.metadata)).runs
        assert {run.key_id for run in runs} <= {key}
        return {run.run_id for run in runs}

    assert world.ended in await listed(first, world.operator)
    assert len(await listed(second, world.operator)) == 1
    assert await listed(second, world.owner) == set()
    assert await listed(operator, world.operator) == set()

    request = usage_pb.GetUsageRequest(group_by=[usage_pb.USAGE_DIMENSION_KEY_ID])
    stub: Any = UsageServiceStub(world.channel)
    usage = await stub.GetUsage(request, metadata=world.operator.metadata)
    total = await stub.GetUsage(usage_pb.GetUsageRequest(), metadata=world.operator.metadata)
    assert {row.key_id for row in usage.rows} == {first, second}
    attempts = [sum(row.usage.attempts for row in sums.rows) for sums in (usage, total)]
    assert attempts[0] == attempts[1]
    own = await stub.GetUsage(request, metadata=world.other.metadata)
    assert [(row.key_id, row.usage.attempts) for row in own.rows] == [(second, 2)]
