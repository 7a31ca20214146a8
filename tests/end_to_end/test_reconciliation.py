"""The ledger compared with a real engine's counters and its log."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import usage_service_pb2 as usage_pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub

from router.calls import Role
from router.calls.limits import prompt_bound
from router.ledger import Ledger, Reconciler, RunStart
from router.ledger.reconciliation import EngineCount, Reconciliation, Tokens, VLLMCounts
from router.models import Delta, Message, Prompt, Sampling
from router.models.connection_pool import ConnectionPool, ReplyReader, Target
from router.models.openai_client import OpenAIHTTP
from router.models.session import fetch_text
from router.store import Database, LogJournal, SQLUsages
from router.trace import Run
from tests.end_to_end.conftest import Demo, Engine

pytestmark = pytest.mark.asyncio(loop_scope="package")
MODEL = "mini-executor"
ASKED = (
    Message("system", "You search."),
    Message("user", "In which city was Worfle Shenlei born?"),
)
LONG = 1500


@dataclass(frozen=True, slots=True)
class Served:
    """An engine, and its counters at the beginning of the test."""

    engine: Engine
    session: aiohttp.ClientSession
    pool: ConnectionPool
    before: Tokens

    def role(self, max_tokens: int, **extra: object) -> Role:
        """Return a role of the engine's model."""
        model = OpenAIHTTP(self.pool, self.engine.url, MODEL, extra_body=extra)
        return Role(
            "execution",
            model,
            "You search.",
            Sampling(max_tokens),
            deployment="engine",
            context_tokens=2048,
        )

    async def read(self, base_url: str) -> EngineCount:
        """Return the tokens since then."""
        count = await VLLMCounts(partial(fetch_text, self.session)).read(base_url)
        return msgspec.structs.replace(count, tokens=minus(count.tokens, self.before))


def minus(tokens: Tokens, before: Tokens) -> Tokens:
    return Tokens(tokens.prompt - before.prompt, tokens.completion - before.completion)


@pytest_asyncio.fixture(loop_scope="package")
async def served(executor_engine: Engine) -> AsyncIterator[Served]:
    async with aiohttp.ClientSession() as session, ConnectionPool() as pool:
        before = (await VLLMCounts(partial(fetch_text, session)).read(executor_engine.url)).tokens
        yield Served(executor_engine, session, pool, before)


@pytest_asyncio.fixture(loop_scope="package")
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = await Database.open(f"sqlite:///{tmp_path}/runs.db")
    yield database
    await database.close()


def start(run_id: str) -> RunStart:
    return RunStart(run_id, "execute", "default", "", "", "?", "", 0.0)


def run(run_id: str, ledger: Ledger) -> Run:
    return Run(run_id, "execute", "?", "finished", "", None, {}, ledger.calls, 0.0, 1.0)


async def test_the_ledger_equals_the_engine(served: Served, database: Database) -> None:
    """Completed calls agree exactly, by their names; cut calls are within their bounds; every
    request in the engine's log is a row.
    """
    async with LogJournal.writing(database) as journal:
        await journal.begin(start("run-whole"))
        ledger = Ledger("run-whole", journal=journal)
        uncapped = served.role(64)
        capped = served.role(5)
        await asyncio.gather(
            *(role_.ask(ASKED, ("</search>",), ledger) for role_ in [uncapped, capped] * 5)
        )
        assert [call.outcome for call in ledger.calls] == ["completed"] * 10
        await journal.finish(run("run-whole", ledger))
        completed_tokens = await compared(served, database)
        assert (
            completed_tokens.verdict,
            completed_tokens.completed_calls,
            completed_tokens.uncertain_calls,
        ) == ("equal", 10, ())

        await journal.begin(start("run-cut"))
        cut = Ledger("run-cut", journal=journal)
        long = served.role(LONG, ignore_eos=True, min_tokens=LONG)
        await asyncio.gather(*(leaves_after(number, long, cut) for number in (1, 7, 40)))
        await cancelled_once_sent(served, cut)
        await cut.close(10)
        await journal.finish(run("run-cut", cut))
        known = [call.usage for call in cut.calls if call.usage is not None]
        assert {call.outcome for call in cut.calls} == {"cancelled"}
        assert [usage.lower_bound for usage in known] == [True] * 3
        assert all(usage.prompt_tokens == exact(ledger) for usage in known)
        both = await compared(served, database)
        # Equal where nothing came after the last report of usage
        assert both.verdict in ("equal", "within_bounds")
        assert both.completed_calls == 10
        assert sorted(both.uncertain_calls) == [f"run-cut-{number}" for number in range(4)]
        log = served.engine.log
        for call in (*ledger.calls, *(call for call in cut.calls if call.usage)):
            assert f"chatcmpl-{call.request_id}" in log


async def test_the_gateway_reconciles_each_deployment(demo: Demo) -> None:
    """No call of a role's deployments is unaccounted for."""
    await AnswerServiceStub(demo.channel).Answer(
        answer_pb.AnswerRequest(question="Who is Worfle Shenlei?")
    )
    response = await UsageServiceStub(demo.channel).ReconcileUsage(usage_pb.ReconcileUsageRequest())
    assert [reconciliation.deployment for reconciliation in response.reconciliations] == [
        "engines.backbone",
        "engines.executor",
    ]
    good = (usage_pb.RECONCILIATION_VERDICT_EQUAL, usage_pb.RECONCILIATION_VERDICT_WITHIN_BOUNDS)
    assert all(reconciliation.verdict in good for reconciliation in response.reconciliations)
    assert sum(reconciliation.completed_calls for reconciliation in response.reconciliations) > 0


async def compared(served: Served, database: Database) -> Reconciliation:
    reconciler = Reconciler({"engine": served.engine.url}, served, SQLUsages(database))
    (reconciliation,) = await reconciler.reconcile()
    return reconciliation


def exact(ledger: Ledger) -> int:
    """Return the prompt's tokens by the engine's count."""
    (tokens,) = {call.usage.prompt_tokens for call in ledger.calls if call.usage}
    return tokens


async def leaves_after(pieces: int, role: Role, ledger: Ledger) -> None:
    """Return a listener that leaves a stream after some pieces."""
    heard = list[Delta]()

    def hear(delta: Delta) -> None:
        heard.append(delta)
        if len(heard) == pieces:
            asking.cancel()

    asking = asyncio.create_task(role.ask(ASKED, (), ledger, on_delta=hear))
    await asyncio.gather(asking, return_exceptions=True)


async def cancelled_once_sent(served: Served, ledger: Ledger) -> None:
    """Call, and cancel as soon as the request is sent."""
    sent = asyncio.Event()

    class Noticed(ConnectionPool):
        async def post(
            self, target: Target, request: Callable[[], bytes], reader: ReplyReader
        ) -> None:
            def leaving() -> bytes:
                sent.set()
                return request()

            await super().post(target, leaving, reader)

    async with Noticed() as pool:
        asking = asyncio.create_task(replace(served, pool=pool).role(LONG).ask(ASKED, (), ledger))
        await sent.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_the_tokenizer_counts_like_the_engine(served: Served) -> None:
    """A prompt with its template has exactly the tokens that the engine counts, and no more than
    its bytes.
    """
    model = OpenAIHTTP(served.pool, served.engine.url, MODEL)
    prompt = Prompt(ASKED, Sampling(16), request_id="counted")
    completion = await model.complete(prompt)
    counted = await model.count(prompt, "two words")
    assert completion.usage is not None
    assert counted is not None
    assert counted.prompt_tokens == completion.usage.prompt_tokens <= prompt_bound(ASKED)
    assert counted.completion_tokens > 0
