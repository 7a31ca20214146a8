"""A bare pipeline behind `AnswerService`: `python -m benchmarks.pipelines.server P1|P2 BASE_URL RETRIEVAL FOLDER`.

P1  aiohttp on plain asyncio, retrieval by gRPC
P2  bytes pushed into a parser on uvloop, retrieval in the process

Both write each call to a log before it is made and when it has ended, each run at its end, and sync the log before they
answer. It prints its address, and goes on until its standard input ends.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import aiohttp
import grpc.aio
import uvloop
from rolegate.v1.answer_service_pb2 import (
    ANSWER_OUTCOME_ANSWERED,
    AnswerRequest,
    AnswerResponse,
    StreamAnswerRequest,
    StreamAnswerResponse,
)
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceServicer, add_AnswerServiceServicer_to_server
from rolegate.v1.evidence_pb2 import EXECUTION_OUTCOME_REPORTED, EvidencePoint, SubQueryResult
from rolegate.v1.retrieval_service_pb2 import SearchRequest
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub
from rolegate.v1.usage_pb2 import ROLE_ANSWER, ROLE_DELEGATION, ROLE_EXECUTION

from benchmarks.gateway import MODELS, OnePassage
from benchmarks.pipelines.question import Answered, Pipeline, Search
from benchmarks.pipelines.readers import AiohttpCalls, PushCalls
from benchmarks.pipelines.run_log import RunLog
from router.edge.limits import Limits
from router.protocol import Passage
from serving.signals import collect_seldom

Name = Literal["P1", "P2"]
_ROLES = {"delegation": ROLE_DELEGATION, "execution": ROLE_EXECUTION, "answer": ROLE_ANSWER}
_TOP_K = 3


class _Door(AnswerServiceServicer):
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def Answer(self, request: AnswerRequest, context: object) -> AnswerResponse:
        return _response(await self._pipeline.answer(request.question))

    async def StreamAnswer(self, request: StreamAnswerRequest, context: object) -> AsyncIterator[StreamAnswerResponse]:
        raise NotImplementedError
        yield


def _response(run: Answered) -> AnswerResponse:
    response = AnswerResponse(run_id=run.run_id, answer=run.answer, outcome=ANSWER_OUTCOME_ANSWERED)
    response.results.extend(
        SubQueryResult(
            sub_query=report.sub_query,
            answer=report.answer,
            evidence=[EvidencePoint(text=report.evidence)],
            outcome=EXECUTION_OUTCOME_REPORTED,
            search_queries=report.queries,
        )
        for report in run.reports
    )
    for role, (calls, read, wrote) in run.usage.items():
        response.usage.add(
            role=_ROLES[role], model=MODELS[role], attempts=calls, prompt_tokens=read, completion_tokens=wrote
        )
    response.duration.FromNanoseconds(int(run.duration_s * 1e9))
    return response


async def in_process(query: str) -> Sequence[Passage]:
    """The search of a retriever in the process."""
    return (await OnePassage().search([query], _TOP_K))[0]


def _by_address(channel: grpc.aio.Channel) -> Search:
    stub = RetrievalServiceStub(channel)

    async def search(query: str) -> Sequence[Passage]:
        found = await stub.Search(SearchRequest(queries=[query], top_k=_TOP_K), timeout=10)
        return [Passage(each.passage_id, each.title, each.text, each.score) for each in found.results[0].passages]

    return search


@asynccontextmanager
async def _pipeline(name: str, base_url: str, retrieval: str, log: RunLog) -> AsyncIterator[Pipeline]:
    if name == "P2":
        calls = PushCalls(base_url)
        yield Pipeline(calls, in_process, log)
        calls.close()
        return
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, grpc.aio.insecure_channel(retrieval) as channel:
        yield Pipeline(AiohttpCalls(session, base_url), _by_address(channel), log)


async def _serve(name: str, base_url: str, retrieval: str, folder: str) -> None:
    async with _pipeline(name, base_url, retrieval, RunLog(Path(folder) / f"{name}.log")) as pipeline:
        server = grpc.aio.server(options=[*Limits().grpc_options.items(), ("grpc.so_reuseport", 0)])
        add_AnswerServiceServicer_to_server(_Door(pipeline), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        collect_seldom()
        print(f"127.0.0.1:{port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(0)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if sys.argv[1] == "P2" else None) as runner:
        runner.run(_serve(*sys.argv[1:]))
