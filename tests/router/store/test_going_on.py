"""Runs of a killed gateway are resumed from the last turn of each of their models."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import msgspec
import pytest
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from structlog.testing import capture_logs

from router.access import Tenant
from router.edge.grpc.server import Server
from router.errors import BadRequest, BudgetExhausted, NotFound, StoreFailed
from router.ledger import Budget
from router.models import Prompt
from router.runs import Gateway, RequestOptions, RunFilter, RunLifecycle
from router.runs.live import LiveRuns
from router.search import Answerer, Delegator, Executor, FactorizedSearch, Topology
from router.search.agent import ExecutorLimits
from router.search.tools import Tool, ToolOutput, Tools
from router.store import Database, LogJournal, SQLAccounts, SQLArchive
from router.trace import RoleName
from router.trace.identity import SCOPES, Identity
from router.trace.redaction import redacted
from router.trace.run import RoleSetting
from router.trace.values import RunStarted, ToolCall, Trajectory
from tests.router.deployment import PASSAGE, STOP, HeldModel, block, finds, report, role
from tests.router.edge.wire import connected
from tests.router.retriever import FixedRetriever
from tests.router.tools import FixedTools
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import ScriptedModel

if TYPE_CHECKING:
    from rolegate.v1.answer_service_pb2_grpc import AnswerServiceAsyncStub

QUESTION = "Who directed Heat, and when was he born?"
SUB_QUERIES = "Who directed Heat?", "When was he born?"


class Models:
    """Three models that note their prompts. The model `held` does not answer its first prompt."""

    def __init__(self, held: RoleName | None = None, free: int = 0) -> None:
        self.prompts: dict[RoleName, list[Prompt]] = {}
        outputs: dict[RoleName, Any] = {
            "delegation": _decide,
            "execution": finds,
            "answer": lambda _: "<answer>1943</answer>",
        }
        self.models: dict[RoleName, Any] = {}
        for name, say in outputs.items():
            model = ScriptedModel(say, name)
            self.prompts[name] = model.prompts
            self.models[name] = HeldModel(model, free) if name == held else model


def _decide(prompt: Prompt) -> str:
    return STOP if "<search_results>" in prompt.messages[-1].content else block(*SUB_QUERIES)


@asynccontextmanager
async def gateway(
    store: Path | str, models: Models, index: str = "one", tools: Tools | None = None
) -> AsyncIterator[tuple[Gateway, SQLArchive, LogJournal]]:
    """Open a gateway on the store in a folder or at a URL."""
    database = await Database.open(
        store if isinstance(store, str) else f"sqlite:///{store}/runs.db"
    )
    retriever = FixedRetriever({text: [PASSAGE] for text in SUB_QUERIES})
    roles: dict[RoleName, Any] = {name: role(name, model) for name, model in models.models.items()}
    executor = Executor(roles["execution"], Unfiltered(retriever), ExecutorLimits(), tools=tools)
    search = FactorizedSearch(Delegator(roles["delegation"]), executor, Answerer(roles["answer"]))
    settings = {name: RoleSetting(name, "0" * 64) for name in roles}
    try:
        async with LogJournal.writing(database) as journal:
            archive = SQLArchive(database, journal.calls)
            lifecycle = RunLifecycle(
                journal,
                archive,
                LiveRuns(),
                settings,
                60.0,
                conditions=lambda _scope: {"index": index},
            )
            topologies = {"factorized": Topology(search, roles)}
            yield (
                Gateway(topologies=topologies, executor=executor, roles=roles, lifecycle=lifecycle),  # type: ignore[arg-type]
                archive,
                journal,
            )
    finally:
        await database.close()


async def killed(
    folder: Path,
    models: Models,
    held: RoleName,
    options: RequestOptions,
    tools: Tools | None = None,
) -> tuple[Path, str]:
    """Ask until `held` does not answer.

    Return the store as a kill at that moment leaves it, and the run.
    """
    left = folder / "killed"
    async with gateway(folder / "first", models, tools=tools) as (first, archive, _):
        asking = asyncio.create_task(first.answer(QUESTION, options))
        await asyncio.wait_for(models.models[held].called.wait(), 10)
        await asyncio.sleep(0)  # the log is written at the end of the loop's turn
        run_id = (await archive.list(ALL, 1)).runs[0].id
        shutil.copytree(folder / "first", left)
        (left / "runs.db.log" / "owner").unlink()
        models.models[held].let.set()
        await asking
    return left, run_id


ALL = RunFilter()
WAYS = "a retry under its name", "by its identifier"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("held", "free", "again"),
    [
        ("delegation", 0, {"delegation": 2, "execution": 4, "answer": 1}),
        ("execution", 3, {"delegation": 1, "execution": 1, "answer": 1}),
        ("answer", 0, {"delegation": 0, "execution": 0, "answer": 1}),
    ],
)
async def test_only_calls_in_flight_are_repeated(
    tmp_path: Path, way: str, held: RoleName, free: int, again: dict[RoleName, int]
) -> None:
    """The resumed run equals an undisturbed one. Its first turns are booked to the killed run."""
    models = Models(held, free)
    (tmp_path / "first").mkdir()
    left, run_id = await killed(tmp_path, models, held, RequestOptions(request_id="mine"))
    second_models = Models()
    async with gateway(left, second_models) as (second, archive, _):
        interrupted = await archive.load(run_id)
        assert interrupted.status == "interrupted"
        if way == WAYS[0]:
            run = await second.answer(QUESTION, RequestOptions(request_id="mine"))
        else:
            run = await second.answer("", RequestOptions(resume=run_id))
        stored = await archive.load(run.id)
        assert {name: len(prompts) for name, prompts in second_models.prompts.items()} == again
        assert (await second.answer(QUESTION, RequestOptions(request_id="mine"))).id == run.id
    assert (run.status, run.resumed_from, run.request_id) == ("finished", run_id, "mine")
    assert (stored, run.result) == (run, await whole(tmp_path))
    assert len(run.calls) == sum(again.values())
    assert {call.outcome for call in interrupted.calls} <= {"completed", "interrupted"}


@pytest.mark.postgres
@pytest.mark.parametrize("way", WAYS)
async def test_on_postgresql_the_gateway_that_takes_the_log_resumes_its_runs(
    postgres: Callable[[], str], tmp_path: Path, way: str
) -> None:
    """Other gateways may share the database meanwhile."""
    url = postgres()
    models = Models("execution", 3)
    asked = RequestOptions(request_id="mine")
    with suppress(_Killed):
        async with gateway(url, models) as (first, archive, _):
            asking = asyncio.create_task(first.answer(QUESTION, asked))
            await asyncio.wait_for(models.models["execution"].called.wait(), 10)
            await asyncio.sleep(0)
            run_id = (await archive.list(ALL, 1)).runs[0].id
            raise _Killed
    models.models["execution"].let.set()
    with pytest.raises(StoreFailed):
        await asking
    second_models = Models()
    async with gateway(url, second_models) as (second, archive, _), gateway(url, Models()):
        options = asked if way == WAYS[0] else RequestOptions(resume=run_id)
        run = await second.answer(QUESTION if way == WAYS[0] else "", options)
        assert (await archive.load(run_id)).status == "interrupted"
        assert await archive.load(run.id) == run
        assert (await second.answer(QUESTION, asked)).id == run.id
    assert (run.status, run.resumed_from, run.request_id) == ("finished", run_id, "mine")
    assert {name: len(prompts) for name, prompts in second_models.prompts.items()} == {
        "delegation": 1,
        "execution": 1,
        "answer": 1,
    }
    assert run.result == await whole(tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("signals", [1, 2])
async def test_a_run_that_outlives_the_grace_of_a_shutdown_is_resumed(
    url: str, tmp_path: Path, signals: int, way: str
) -> None:
    """Its client learns how. A second signal ends the grace. No completed turn is repeated."""
    grace_s = 0.01 if signals == 1 else 60
    models = Models("execution", 3)
    async with gateway(url, models) as (first, archive, _):
        server = Server(first, None)
        async with connected(await server.start("127.0.0.1:0")) as channel:
            stub: AnswerServiceAsyncStub = AnswerServiceStub(channel)
            call = stub.Answer(pb.AnswerRequest(question=QUESTION, request_id="mine"))
            await asyncio.wait_for(models.models["execution"].called.wait(), 10)
            run_id = (await archive.list(ALL, 1)).runs[0].id
            with capture_logs() as log:
                drain = asyncio.create_task(server.drain(grace_s))
                logged = list[Any]()
                while not logged:
                    await asyncio.sleep(0)
                    logged = [entry for entry in log if entry["event"] == "serve.stopping"]
            if signals == 2:
                drain.cancel()
            await asyncio.wait([drain], timeout=10)
            with pytest.raises(grpc.aio.AioRpcError, match="gateway stopped") as caught:
                await call
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert f"`rolegate runs resume {run_id}`" in str(caught.value.details())
    assert [(entry["runs"], entry["grace_s"]) for entry in logged] == [(1, grace_s)]
    second_models = Models()
    async with gateway(url, second_models) as (second, archive, _):
        interrupted = await archive.load(run_id)
        options = RequestOptions(request_id="mine")
        if way == WAYS[1]:
            options = RequestOptions(resume=run_id)
        run = await second.answer("" if options.resume else QUESTION, options)
    assert (interrupted.status, interrupted.error) == ("interrupted", "")
    assert (run.status, run.resumed_from, run.request_id) == ("finished", run_id, "mine")
    assert {name: len(prompts) for name, prompts in second_models.prompts.items()} == {
        "delegation": 1,
        "execution": 1,
        "answer": 1,
    }
    assert run.result == await whole(tmp_path)


class _Killed(Exception):
    pass


async def whole(folder: Path) -> object:
    """Return the result of an undisturbed run."""
    (folder / "whole").mkdir()
    async with gateway(folder / "whole", Models()) as (undisturbed, _, _):
        return (await undisturbed.answer(QUESTION, RequestOptions())).result


def _calls(prompt: Prompt) -> str:
    sub_query = prompt.messages[1].content
    if len(prompt.messages) == 2:
        return f'<call tool="fetch">{{"url": "{sub_query}"}}</call>'
    return report(f"the answer to {sub_query}", f"It is so: {sub_query}")


async def test_no_completed_or_failed_tool_call_is_repeated(tmp_path: Path) -> None:
    """Its record is taken over, as a search's is."""
    fetch = Tool("web", "fetch", "", {})
    page = ToolOutput(f"It is so: {SUB_QUERIES[0]}", "Page", "http://mini/1")
    before, after = (FixedTools([fetch], {SUB_QUERIES[0]: page}) for _ in range(2))
    models = Models()
    second_models = Models()
    models.models["execution"] = HeldModel(ScriptedModel(_calls, "execution"), 3)
    second_models.models["execution"] = again = ScriptedModel(_calls, "execution")
    (tmp_path / "first").mkdir()
    left, run_id = await killed(tmp_path, models, "execution", RequestOptions(), before)
    async with gateway(left, second_models, tools=after) as (second, archive, _):
        run = await second.answer("", RequestOptions(resume=run_id))
        stored = await archive.load(run.id)
    assert (len(before.called), after.called, len(again.prompts)) == (2, [], 1)
    assert stored == run
    assert isinstance(stored.result, Trajectory)
    calls = [search.call for execution in stored.result.executions for search in execution.searches]
    errors = [call.error for call in calls if isinstance(call, ToolCall)]
    assert [error is None for error in errors] == [True, False]
    assert stored.result.executions[0].searches[0].passages[0].document == page.address
    hidden = redacted(stored)
    assert isinstance(hidden.result, Trajectory)
    (search, *_) = hidden.result.executions[0].searches
    assert isinstance(search.call, ToolCall)
    assert (search.call.server, search.call.tool, search.call.arguments) == ("web", "fetch", "")


async def test_a_run_is_resumed_after_a_second_kill(tmp_path: Path) -> None:
    """The turns that were taken over are in the log of the resumed run."""
    (tmp_path / "first").mkdir()
    left, run_id = await killed(tmp_path, Models("execution", 3), "execution", RequestOptions())
    models = Models("answer")
    async with gateway(left, models) as (second, archive, _):
        asking = asyncio.create_task(second.answer("", RequestOptions(resume=run_id)))
        await asyncio.wait_for(models.models["answer"].called.wait(), 10)
        second_id = (await archive.list(ALL, 1)).runs[0].id
        shutil.copytree(left, tmp_path / "again")
        (tmp_path / "again" / "runs.db.log" / "owner").unlink()
        models.models["answer"].let.set()
        await asking
    second_models = Models()
    async with gateway(tmp_path / "again", second_models) as (third, _, journal):
        assert journal.unfinished(run_id) is None
        run = await third.answer("", RequestOptions(resume=second_id))
    assert {name: len(prompts) for name, prompts in second_models.prompts.items() if prompts} == {
        "answer": 1
    }
    assert run.result == await whole(tmp_path)


async def test_kills_before_any_turn_was_taken_over_cost_nothing(tmp_path: Path) -> None:
    """The turns and the spending of the first run are found behind the later ones."""
    (tmp_path / "first").mkdir()
    left, run_id = await killed(
        tmp_path, Models("answer"), "answer", RequestOptions(request_id="mine")
    )
    run_ids = [run_id]
    for number in range(2):
        kept = tmp_path / str(number)

        def copy(event: object, left: Path = left, kept: Path = kept) -> None:
            if isinstance(event, RunStarted):
                run_ids.append(event.run_id)
                shutil.copytree(left, kept)
                (kept / "runs.db.log" / "owner").unlink()

        async with gateway(left, Models()) as (asked, _, _):
            await asked.answer(QUESTION, RequestOptions(request_id="mine"), copy)
        left = kept
    (tmp_path / "tight").mkdir()
    shutil.copytree(left, tmp_path / "tight" / "store")
    second_models = Models()
    async with gateway(left, second_models) as (last, archive, _):
        run = await last.answer(QUESTION, RequestOptions(request_id="mine"))
        spent = sum(call.charged.tokens for call in (await archive.load(run_id)).calls)
        chain = [
            run.resumed_from,
            *[(await archive.load(id_of_run)).resumed_from for id_of_run in reversed(run_ids)],
        ]
    assert chain == [*reversed(run_ids), ""]
    assert {name: len(prompts) for name, prompts in second_models.prompts.items() if prompts} == {
        "answer": 1
    }
    assert run.result == await whole(tmp_path)
    async with gateway(tmp_path / "tight" / "store", Models()) as (last, _, _):
        tight = RequestOptions(request_id="mine", budget=Budget(max_total_tokens=spent + 1))
        with pytest.raises(BudgetExhausted, match="max_total_tokens"):
            await last.answer(QUESTION, tight)


async def test_earlier_spending_counts_against_the_budget(tmp_path: Path) -> None:
    """The budget is that of the first request. Calls in flight count with their worst case."""
    (tmp_path / "first").mkdir()
    options = RequestOptions(request_id="mine", budget=Budget(max_total_tokens=2000))
    left, run_id = await killed(tmp_path, Models("answer"), "answer", options)
    async with gateway(left, Models()) as (second, archive, _):
        before = sum(call.charged.tokens for call in (await archive.load(run_id)).calls)
        assert 0 < before < 2000
        with pytest.raises(BudgetExhausted, match="max_total_tokens"):
            tight = msgspec.structs.replace(options, budget=Budget(max_total_tokens=before + 1))
            await second.answer(QUESTION, tight)


@pytest.mark.parametrize("what", ["index", "turned over", "finished", "unknown", "redacted"])
async def test_a_run_that_cannot_be_resumed_is_refused_with_the_reason(
    tmp_path: Path, what: str
) -> None:
    """A retry with its request name starts again."""
    (tmp_path / "first").mkdir()
    if what == "redacted":
        database = await Database.open(f"sqlite:///{tmp_path}/first/runs.db")
        await SQLAccounts(database).set_tenant(Tenant("default", redact=True))
        await database.close()
    left, run_id = await killed(
        tmp_path, Models("answer"), "answer", RequestOptions(request_id="mine")
    )
    second_models = Models()
    async with gateway(left, second_models, "another" if what == "index" else "one") as (
        second,
        _,
        _,
    ):
        tried = "run-0" if what == "unknown" else run_id
        if what in ("turned over", "finished"):
            run = await second.answer("", RequestOptions(resume=run_id))
            tried = run.id if what == "finished" else run_id
        messages = {
            "index": "index changed since the run began",
            "unknown": "no such run",
            "finished": "this finished run of kind answer cannot",
        }
        with pytest.raises(
            (BadRequest, NotFound),
            match=messages.get(what, "interrupted answer or table can be resumed"),
        ):
            await second.answer("", RequestOptions(resume=tried))
        if what in ("index", "redacted"):
            run = await second.answer(QUESTION, RequestOptions(request_id="mine"))
            assert (run.resumed_from, len(second_models.prompts["execution"])) == ("", 4)


async def test_a_run_is_not_resumed_in_an_index_that_its_tenant_has_lost(tmp_path: Path) -> None:
    """No model is called."""
    (tmp_path / "first").mkdir()
    acme = Identity("acme", SCOPES)
    left, run_id = await killed(tmp_path, Models("answer"), "answer", RequestOptions(acme))
    moved = msgspec.structs.replace(acme, indexes=("other",))
    second_models = Models()
    async with gateway(left, second_models) as (second, _, _):
        with pytest.raises(NotFound, match="'default': does not exist"):
            await second.answer("", RequestOptions(moved, resume=run_id))
    assert not any(second_models.prompts.values())
