"""Run a bare pipeline in a separate process: `python -m benchmarks.pipelines.process KIND BASE_URL
RETRIEVAL FOLDER`. There are three kinds:

P1   reads model replies with aiohttp on plain asyncio; retrieval over gRPC
P2   parses replies as their bytes arrive, on uvloop; retrieval inside the process
SDK  makes model calls with LiteLLM's SDK on plain asyncio; retrieval inside the process

A pipeline logs each run, and each model call before and after the call. It syncs the log to disk
before it answers. The process prints the address of its `AnswerService`, and runs until standard
input is closed.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import aiohttp
import grpc.aio
import uvloop
from rolegate.v1.answer_service_pb2 import AnswerRequest, AnswerResponse
from rolegate.v1.retrieval_service_pb2 import SearchRequest
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub

from benchmarks.gateway import OnePassage
from benchmarks.pipelines.question import Call, Pipeline, PipelineLog
from benchmarks.pipelines.readers import PushCalls, aiohttp_calls, litellm_calls
from router.edge.limits import Limits
from router.protocol import Passage
from serving.signals import tune_interpreter

_TOP_K = 3


async def in_process(query: str) -> Sequence[Passage]:
    """Return the passages for a query, from a retriever inside this process."""
    return (await OnePassage().search([query], _TOP_K))[0]


@asynccontextmanager
async def calls(kind: str, base_url: str) -> AsyncIterator[Call]:
    """Yield the function with which pipelines of `kind`, such as P1, call models. `base_url`: base
    URL of the models.
    """
    match kind:
        case "P1":
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                yield aiohttp_calls(session, base_url)
        case "P2":
            with closing(PushCalls(base_url)) as push:
                yield push
        case _:
            yield litellm_calls(base_url)


async def _serve(
    kind: str,
    base_url: str,
    retrieval: str,
    folder: str,
) -> None:
    async with calls(kind, base_url) as call, grpc.aio.insecure_channel(retrieval) as channel:
        stub = RetrievalServiceStub(channel)

        async def by_address(query: str) -> Sequence[Passage]:
            request = SearchRequest(queries=[query], top_k=_TOP_K)
            response = await stub.Search(request, timeout=10)
            return [
                Passage(passage.passage_id, passage.title, passage.text, passage.score)
                for passage in response.results[0].passages
            ]

        log = PipelineLog(Path(folder) / f"{kind}.log")
        server = grpc.aio.server(options=[*Limits().grpc_options.items(), ("grpc.so_reuseport", 0)])
        pipeline = Pipeline(call, by_address if kind == "P1" else in_process, log)

        async def answer(request: AnswerRequest, _context: object) -> AnswerResponse:
            return await pipeline.answer(request.question)

        answers = grpc.unary_unary_rpc_method_handler(
            answer, AnswerRequest.FromString, AnswerResponse.SerializeToString
        )
        service = grpc.method_handlers_generic_handler(
            "rolegate.v1.AnswerService", {"Answer": answers}
        )
        server.add_generic_rpc_handlers((service,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        tune_interpreter()
        print(f"127.0.0.1:{port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(0)


if __name__ == "__main__":
    run = uvloop.run if sys.argv[1] == "P2" else asyncio.run
    run(_serve(*sys.argv[1:]))
