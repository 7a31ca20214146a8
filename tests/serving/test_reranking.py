"""A gateway with a reranker: runs record its calls, and survive its failures."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import aiohttp
import grpc
import msgspec
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import execution_service_pb2 as execution_pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.budget_pb2 import Budget
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub
from rolegate.v1.retrieval_service_pb2 import SearchRequest
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.usage_pb2 import ROLE_EXECUTION as EXECUTION

from executor_sft.runtime import open_runtime
from executor_sft.step import config_settings
from router.edge.grpc.server import Server
from router.ledger import Journal, RunStart
from router.ledger.journal import Admitted, EarlierRun
from router.protocol import Passage
from router.trace import Price
from serving.composition import running_gateway
from serving.config.config import (
    Config,
    RerankerConfig,
    RetrievalConfig,
    RoleConfig,
    RolesConfig,
    ServerConfig,
)
from serving.config.secrets import missing
from serving.retrieval.services import RetrievalServicer
from tests.openai_server import MODEL, OpenAIServer, says, serving
from tests.router.deployment import report
from tests.router.retriever import one_index
from tests.serving.retrieval import scripted_reranker
from tests.serving.retrieval.scripted_reranker import Reply, reranking, shortest_first

SUB_QUERY = "Who directed Heat?"
PASSAGES = [
    Passage("p1", "Heat", "Heat is a film with a long description, by Michael Mann.", 0.9),
    Passage("p2", "Heat", "Heat is by Michael Mann.", 0.8),
]
TURNS = ("<search>Heat</search>", report("Mann", "Heat is by Michael Mann."))


class NotingJournal:
    """A journal that notes the starts of runs."""

    def __init__(self, usual: Journal, starts: list[RunStart]) -> None:
        self._usual = usual
        self._starts = starts

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        """See `Journal.begin`."""
        self._starts.append(start)
        return await self._usual.begin(start)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)


class Gateway(NamedTuple):
    """A gateway whose reranker is scripted."""

    channel: grpc.aio.Channel
    pages: str
    server: OpenAIServer
    rerank_bodies: list[dict[str, Any]]
    starts: list[RunStart]

    async def executed(self, budget: Budget | None = None) -> execution_pb.ExecuteResponse:
        """Execute the sub-query."""
        request = execution_pb.ExecuteRequest(sub_query=SUB_QUERY, budget=budget)
        return await ExecutionServiceStub(self.channel).Execute(request, timeout=30)

    async def search(self, run_id: str) -> dict[str, Any]:
        """Return the only search in the trace of a run."""
        request = run_pb.GetRunRequest(run_id=run_id, include_trace=True)
        response = await RunServiceStub(self.channel).GetRun(request, timeout=30)
        (search,) = json.loads(response.trace_json)["result"]["searches"]
        return dict(search)

    async def calls(self, run_id: str) -> list[run_pb.UpstreamCall]:
        """Return the calls of a run."""
        response = await RunServiceStub(self.channel).GetRun(
            run_pb.GetRunRequest(run_id=run_id), timeout=30
        )
        return list(response.calls)

    async def page(self, run_id: str, agent: str = "execution-0") -> str:
        """Return the page of an agent of the run."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.pages}/runs/{run_id}/agents/{agent}") as response,
        ):
            return await response.text()


def config_of(
    folder: Path, url: str, retrieval: str, reranker: RerankerConfig | None = None
) -> Config:
    """Return the config of a gateway."""
    (folder / "prompt.txt").write_text("Work.\n", "utf-8")
    role = RoleConfig(model=MODEL, prompt=f"{folder}/prompt.txt", base_url=url)
    return Config(
        roles=RolesConfig(delegation=role, execution=role, answer=role),
        retrieval=RetrievalConfig(address=retrieval),
        reranker=reranker,
        prices={"cross": Price(prompt=2.0, completion=0.0), MODEL: Price(prompt=0, completion=0)},
        server=ServerConfig(store=f"sqlite:///{folder}/runs.db"),
    )


@asynccontextmanager
async def retrieval() -> AsyncIterator[str]:
    """Serve the passages, and yield the server's address."""
    indexes = one_index({"Heat": PASSAGES, "health": PASSAGES})
    server = Server(None, RetrievalServicer(indexes))
    port = await server.start("127.0.0.1:0")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.drain(0)


@asynccontextmanager
async def gateway(folder: Path, reply: Reply) -> AsyncIterator[Gateway]:
    """Run a gateway with a reranker that replies with `reply`."""
    lines: list[str] = []
    starts: list[RunStart] = []

    def noting(usual: Journal) -> Journal:
        return cast(Journal, NotingJournal(usual, starts))

    async with serving() as server, retrieval() as address, reranking(reply) as reranker:
        server.plays(*[says(text) for text in TURNS * 3])
        config = config_of(folder, server.base_url, address, reranker.config())
        async with (
            running_gateway(
                config, "127.0.0.1:0", lines.append, "127.0.0.1:0", journal=noting
            ) as bound,
            grpc.aio.insecure_channel(bound) as channel,
        ):
            pages = lines[-1].removeprefix("pages are at ").removesuffix("/")
            yield Gateway(channel, pages, server, reranker.bodies, starts)


async def test_a_run_records_the_reranker_s_call(tmp_path: Path) -> None:
    """The executor reads the passages in its order; the trace and the page have its tokens. Health
    probes, such as that at the start, do not call it.
    """
    async with gateway(tmp_path, shortest_first(usage={"total_tokens": 42})) as running:
        assert not running.rerank_bodies
        response = await running.executed()
        search = await running.search(response.run_id)
        page = await running.page(response.run_id)

    shown = running.server.bodies[1]["messages"][-1]["content"]
    assert shown.index(PASSAGES[1].text) < shown.index(PASSAGES[0].text)
    assert [passage["id"] for passage in search["passages"]] == ["p2", "p1"]
    assert search["reranking"] == {"model": "cross", "tokens": 42, "error": None}
    assert "reranked by cross with 42 tokens" in page
    assert [body["query"] for body in running.rerank_bodies] == ["Heat"]


async def test_calls_of_the_reranker_are_in_the_ledger_and_count_against_quotas(
    tmp_path: Path,
) -> None:
    """A call is booked on the executor with its own purpose, and with its price."""
    async with gateway(tmp_path, shortest_first(usage={"total_tokens": 42})) as running:
        response = await running.executed()
        calls = await running.calls(response.run_id)
        page = await running.page(response.run_id, "rerank-0")

    assert [call.purpose for call in calls] == ["first", "rerank", "first"]
    reranked = calls[1]
    assert (reranked.role, reranked.model, reranked.outcome) == (EXECUTION, "cross", "completed")
    assert (reranked.prompt_tokens, reranked.completion_tokens) == (42, 0)
    assert reranked.cost_nano_usd == 84_000
    assert {usage.model: usage.prompt_tokens for usage in response.usage}["cross"] == 42
    assert "Reranker" in page


async def test_an_endpoint_that_reports_no_usage_is_charged_an_estimate(tmp_path: Path) -> None:
    """The worst case, which is reserved, would be several times as much."""
    async with gateway(tmp_path, shortest_first()) as running:
        response = await running.executed()
        calls = await running.calls(response.run_id)
    (call,) = [call for call in calls if call.purpose == "rerank"]
    assert (call.counted, call.completion_tokens) == ("estimated", 0)
    assert 0 < call.prompt_tokens < 100


async def test_a_budget_that_is_too_small_for_the_reranker_leaves_the_order_of_the_search(
    tmp_path: Path,
) -> None:
    """The run goes on, and nothing is sent to the reranker."""
    async with gateway(tmp_path, shortest_first(usage={"total_tokens": 42})) as running:
        response = await running.executed(Budget(max_cost_nano_usd=1_000))
        search = await running.search(response.run_id)

    assert [passage["id"] for passage in search["passages"]] == ["p1", "p2"]
    assert "dollars are left" in search["reranking"]["error"]
    assert not running.rerank_bodies


async def test_a_run_survives_a_failed_reranker_and_says_so(tmp_path: Path) -> None:
    """Its report is not kept for other runs, since it is not that of the reranked index."""
    async with gateway(tmp_path, scripted_reranker.says("busy", 503)) as running:
        responses = [await running.executed() for _ in range(3)]
        search = await running.search(responses[0].run_id)
        calls = await running.calls(responses[0].run_id)
        page = await running.page(responses[0].run_id)

    assert [response.result.answer for response in responses] == ["Mann"] * 3
    assert [list(response.result.shared_from) for response in responses] == [[], [], []]
    assert [passage["id"] for passage in search["passages"]] == ["p1", "p2"]
    assert "HTTP 503: busy" in search["reranking"]["error"]
    assert [call.outcome for call in calls if call.purpose == "rerank"] == ["connect_error"]
    assert search["reranking"]["tokens"] is None
    assert "not reranked: retrieval at http://127.0.0.1:" in page
    assert "HTTP 503: busy" in page


async def test_reports_of_reranked_searches_are_kept(tmp_path: Path) -> None:
    """The index that others see is named by the reranker too."""
    async with gateway(tmp_path, shortest_first()) as running:
        first, second = [await running.executed() for _ in range(2)]
        stub = RetrievalServiceStub(running.channel)
        found = await stub.Search(SearchRequest(queries=["Heat"], top_k=1), timeout=30)

    assert list(second.result.shared_from) == [first.run_id]
    assert found.index_id == "an index 30 cross"
    assert [passage.passage_id for passage in found.results[0].passages] == ["p2"]


async def test_a_run_is_resumed_only_with_the_same_reranker(tmp_path: Path) -> None:
    """The index, which must be the same, is named by the reranker too."""
    async with gateway(tmp_path, shortest_first()) as running:
        running.server.plays(says("<stop/>No search is needed<stop>"))
        request = answer_pb.AnswerRequest(question=SUB_QUERY)
        await AnswerServiceStub(running.channel).Answer(request, timeout=30)

    assert [start.conditions["index"] for start in running.starts] == ["an index 30 cross"]


async def test_steps_of_a_training_use_the_reranker(tmp_path: Path) -> None:
    """Its model and the number of candidates are settings of a step; its address is not."""
    async with retrieval() as address, reranking(shortest_first()) as server:
        config = config_of(tmp_path, "http://127.0.0.1:9/v1", address, server.config())
        async with open_runtime(config, lambda _step: None) as bench:
            ((passage,),) = await bench.retriever.search(["Heat"], 1)

        def settings(**keys: Any) -> dict[str, Any]:
            changed = msgspec.structs.replace(server.config(), **keys)
            return config_settings(msgspec.structs.replace(config, reranker=changed))

    assert passage.id == "p2"
    assert settings(base_url="http://127.0.0.1:9/v1", timeout_s=1.0, form="score") == settings()
    assert (
        len(
            {
                json.dumps(settings(**keys)["reranker"])
                for keys in ({}, {"model": "m"}, {"candidates": 20})
            }
        )
        == 3
    )
    without = msgspec.structs.replace(config, reranker=None)
    assert config_settings(without)["reranker"] is None


def test_a_key_that_is_not_set_is_named(tmp_path: Path) -> None:
    reranker = RerankerConfig(
        base_url="http://127.0.0.1:9/v1", model="m", api_key_env="ROLEGATE_NO_SUCH_KEY"
    )
    assert missing(config_of(tmp_path, "http://127.0.0.1:9/v1", "127.0.0.1:9", reranker)) == [
        "reranker.api_key_env: the environment variable ROLEGATE_NO_SUCH_KEY is not set; export it."
    ]
