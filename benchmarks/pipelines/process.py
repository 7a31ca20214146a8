"""Baselines in separate processes: `python -m benchmarks.pipelines.process KIND BASE_URL RETRIEVAL
FOLDER`.

P1            pipeline on aiohttp and plain asyncio, retrieval over gRPC
P2            pipeline on uvloop that parses pushed bytes, retrieval in the process
no_gateway    P2's calls and searches, made by the client itself, without a log
SDK           the same with LiteLLM's SDK, on plain asyncio
SDK_streamed  the same, streamed
role          long stream, read by a role of the gateway on the gateway's event loop
aiohttp       long stream, read as in P1 on plain asyncio

P1 and P2 log each call before it is made and after it has ended, and each run; they sync the log
before they answer. They print the address of their `AnswerService`. The others print `driven` and
read a `benchmarks.load.Order` as JSON from each line of standard input; for each they print one
line with the seconds of each question. All run until their standard input is closed.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import aiohttp
import grpc.aio
import msgspec
import uvloop
from rolegate.v1.answer_service_pb2 import AnswerRequest, AnswerResponse
from rolegate.v1.retrieval_service_pb2 import SearchRequest
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub

from benchmarks.gateway import OnePassage
from benchmarks.load import Order, ordered, question
from benchmarks.pipelines.question import Call, Pipeline, PipelineLog
from benchmarks.pipelines.readers import AiohttpCalls, LiteLLMCalls, PushCalls
from router.calls import Role
from router.edge.limits import Limits
from router.ledger import Ledger
from router.models import Message, Sampling
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.protocol import Passage
from serving.signals import tune_interpreter

DRIVEN = "driven"
"""First line of a process that is driven by orders."""
TOKENS = 400
"""Tokens of a long stream."""
_TOP_K = 3


async def in_process(query: str) -> Sequence[Passage]:
    """Search with a retriever in the process."""
    return (await OnePassage().search([query], _TOP_K))[0]


@asynccontextmanager
async def calls(kind: str, base_url: str) -> AsyncIterator[Call]:
    """Open the client of a kind, which makes model calls."""
    match kind:
        case "P2" | "no_gateway":
            with closing(PushCalls(base_url)) as push:
                yield push
        case "SDK" | "SDK_streamed":
            yield LiteLLMCalls(base_url, streamed=kind == "SDK_streamed")
        case _:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                yield AiohttpCalls(session, base_url)


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
        pipeline = Pipeline(call, in_process if kind == "P2" else by_address, log)

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


async def _drive(kind: str, base_url: str, *_: str) -> None:
    async with calls(kind, base_url) as call, ConnectionPool() as pool:
        role = Role("answer", OpenAIHTTP(pool, base_url, "long"), "", Sampling(TOKENS))
        pipeline = Pipeline(call, in_process)

        async def ask(number: int) -> object:
            match kind:
                case "role":
                    return await role.ask(
                        (Message("user", question(number)),), (), Ledger(f"run-{number}")
                    )
                case "aiohttp":
                    messages = [{"role": "user", "content": question(number)}]
                    body = {"model": "long", "messages": messages, "max_tokens": TOKENS}
                    return await call(body, f"run-{number}-1")
            return await pipeline.answer(question(number))

        tune_interpreter()
        print(DRIVEN, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            took_s = await ordered(ask, msgspec.json.decode(line, type=Order))
            print(msgspec.json.encode(took_s).decode(), flush=True)


if __name__ == "__main__":
    main = _serve if sys.argv[1] in ("P1", "P2") else _drive
    run = uvloop.run if sys.argv[1] in ("P2", "no_gateway", "role") else asyncio.run
    run(main(*sys.argv[1:]))
