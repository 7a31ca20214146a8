"""`rolegate retrieve`: search an index on behalf of other processes."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from router.calls.health import Readiness
from router.edge.grpc.server import Server
from router.edge.http.server import HTTPServer
from router.runs.live import meanwhile
from router.search.retrieval import WatchedRetriever
from serving.cli.index import add_embedder, embedder_config
from serving.cli.options import host_port
from serving.config.config import RetrievalConfig
from serving.retrieval.manifest import read_manifest
from serving.retrieval.opening import open_retriever
from serving.retrieval.services import RetrievalServicer, retrieval_app
from serving.signals import tell, until_stopped

_GRACE_S = 10.0


def main(arguments: Sequence[str]) -> int:
    """`rolegate retrieve serve`."""
    parser = argparse.ArgumentParser(prog="rolegate retrieve", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser(
        "serve",
        help="gRPC RetrievalService, and HTTP POST /retrieve",
        description="Serves one index over gRPC and, as search agents expect it, over HTTP: POST /retrieve takes "
        '{"queries", "topk", "return_scores"} or {"query_list", "k"}.',
    )
    serve.add_argument("--index", type=Path, required=True, metavar="DIR", help="what `index build` wrote")
    for option, default, what in (("--address", "127.0.0.1:50552", "gRPC"), ("--http", "127.0.0.1:50553", "HTTP")):
        serve.add_argument(
            option, type=host_port, default=default, metavar="HOST:PORT", help=f"{what} (default: %(default)s)"
        )
    serve.add_argument(
        "--http-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which HTTP may be asked for, beside IP addresses, localhost and the host of --http",
    )
    serve.add_argument("--top-k", type=int, default=3, help="passages where a caller does not say (default: 3)")
    add_embedder(serve)
    given = parser.parse_args(arguments)
    lexical = read_manifest(given.index).lexical
    config = RetrievalConfig(index=str(given.index), lexical=lexical, embedder=embedder_config(given))
    asyncio.run(until_stopped(_serving(config, given)))
    return 0


@asynccontextmanager
async def _serving(config: RetrievalConfig, given: argparse.Namespace) -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        readiness = Readiness()
        retriever = WatchedRetriever(await stack.enter_async_context(open_retriever(config, tell)), readiness)
        await stack.enter_async_context(meanwhile(retriever.follow()))
        app = retrieval_app(retriever, default_top_k=given.top_k, readiness=readiness)
        http = HTTPServer(app, _GRACE_S, hosts=given.http_host)
        url = f"http://{await http.start(given.http, '--http')}/retrieve"
        stack.push_async_callback(http.drain)
        servicer = RetrievalServicer(retriever, default_top_k=given.top_k, index_id=lambda: retriever.index_id)
        server = Server(None, servicer, readiness=readiness)
        bound = await server.start(given.address)
        stack.push_async_callback(server.drain, _GRACE_S)
        yield f"{given.address.rpartition(':')[0]}:{bound}, {url}"
