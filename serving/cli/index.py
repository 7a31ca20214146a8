"""`rolegate index` and `rolegate retrieve`: build the index that retrieval searches, or take over
one that another program built, and search it on behalf of other processes.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID

from router.background import background_tasks
from router.calls import Readiness
from router.edge.grpc.server import Server
from router.edge.http.server import HTTPServer
from router.errors import BadConfig
from router.search.retrieval import WatchedRetriever
from serving.cli.options import (
    add_command,
    add_config,
    chosen_config,
    host_port,
    json_of,
    new_parser,
)
from serving.config.config import EmbedderConfig, EngineConfig, RetrievalConfig
from serving.engines.engine import cores
from serving.retrieval.adopt import adopt_index
from serving.retrieval.build import Built, build_index
from serving.retrieval.embedder import Embedder
from serving.retrieval.gaps import gaps_of
from serving.retrieval.manifest import read_manifest
from serving.retrieval.opening import Check, open_embedder, open_retriever, stoppable
from serving.retrieval.services import RetrievalServicer, retrieval_app
from serving.signals import log_step, run_until_stopped
from serving.terminal import progress_bar

_BUILD = """Reads files and folders (text, Markdown, HTML, PDF, DOCX, JSON lines, Parquet), cuts
them into passages at sentence ends, and embeds them. Without PATH, everything is as the config
says. Called again, it reads only what changed; interrupted, it goes on where it was. A gateway that
serves the index goes over to the new one by itself. A file that cannot be read, or takes too much
time or memory, is named and skipped; so is a symbolic link out of its folder. Rows are {"id",
"title", "text"} or {"id", "contents"}."""


def index(arguments: Sequence[str]) -> int:
    """`rolegate index build` and `rolegate index adopt`."""
    parser = new_parser(
        "index",
        "Builds the index that retrieval searches, or takes over one that another program built.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build = add_command(commands, "build", "index documents, or what changed of them", _BUILD)
    build.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="a file or a folder")
    build.add_argument("--out", type=Path, metavar="DIR", help="the index folder; needed with PATH")
    add_config(build)
    build.add_argument(
        "--chunk-tokens",
        type=int,
        default=200,
        metavar="N",
        help="tokens of a passage (default: 200)",
    )
    build.add_argument(
        "--lexical",
        action="store_true",
        help="keep word statistics too, to be fused with the vectors",
    )
    build.add_argument("--json", action="store_true", help="print what was done as JSON")
    build.add_argument(
        "--verbose", action="store_true", help="name the files of kinds that are not read"
    )
    adopt = add_command(
        commands,
        "adopt",
        "take over a FAISS index",
        "Takes over a FAISS index with the corpus that it was built from: row n is "
        "vector n. Some passages "
        "are embedded again, to see that the embedder named here is the one that built it.",
    )
    adopt.add_argument(
        "--faiss", type=Path, required=True, metavar="FILE", help="what faiss.write_index wrote"
    )
    adopt.add_argument(
        "--corpus", type=Path, required=True, metavar="FILE.jsonl", help="its rows, in order"
    )
    adopt.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new index folder")
    for command in (build, adopt):
        add_embedder(command)
    given = parser.parse_args(arguments)
    if given.command == "adopt":
        return asyncio.run(_adopt(given))
    retrieval, engines = _retrieval(given, build)
    return asyncio.run(_build(retrieval, engines, given))


def _retrieval(
    given: argparse.Namespace, parser: argparse.ArgumentParser
) -> tuple[RetrievalConfig, Mapping[str, EngineConfig]]:
    """Documents to be indexed, from the options or from the config; and the engines that its
    embedder may be on.
    """
    if given.paths:
        if given.out is None:
            parser.error("--out: name the folder of the index")
        if not 32 <= given.chunk_tokens <= 8192:
            parser.error("--chunk-tokens: must be 32 to 8192")
        retrieval = RetrievalConfig(
            index=str(given.out),
            documents=tuple(map(str, given.paths)),
            chunk_tokens=given.chunk_tokens,
            lexical=given.lexical,
            embedder=embedder_config(given),
        )
        return retrieval, {}
    config = chosen_config(given)
    if not config.retrieval.documents:
        raise BadConfig(
            "retrieval.documents: the config names none; add them, or give PATH and --out."
        )
    return config.retrieval, config.engines


async def _build(
    config: RetrievalConfig, engines: Mapping[str, EngineConfig], given: argparse.Namespace
) -> int:
    log = partial(Console(stderr=True).print, markup=False)
    async with open_embedder(config.embedder, engines, log, cpu_threads=cores()) as embedder:
        built = await stoppable(partial(_built, config, embedder))
    if given.json:
        print(json_of(_for_programs(built)))
    else:
        _show(built, Path(config.index or ""), Console(soft_wrap=True), verbose=given.verbose)
    return 0


def _built(config: RetrievalConfig, embedder: Embedder, check: Check) -> Built:
    with progress_bar() as bar:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int) -> None:
            check()
            if not total:
                stage = "waiting for another build of this index"
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage)
            bar.update(tasks[stage], completed=done, total=total or None)

        return build_index(
            [Path(place) for place in config.documents],
            Path(config.index or ""),
            embedder,
            lexical=config.lexical,
            chunk_tokens=config.chunk_tokens,
            progress=show,
        )


def _show(built: Built, out: Path, console: Console, *, verbose: bool) -> None:
    for line in gaps_of(built.manifest, built.entries).lines():
        console.print(f"[yellow]{escape(line)}[/yellow]", highlight=False)
    for link in built.found.links:
        console.print(f"[yellow]not followed:[/yellow] {escape(link)}", highlight=False)
    for path in built.found.passed_over if verbose else ():
        console.print(f"passed over: {escape(path)}", highlight=False)
    others = len(built.found.passed_over)
    passed_over = f", {others} of other kinds passed over" if others else ""
    documents = (
        f"{built.documents} documents ({built.documents_read} read now, {len(built.skipped)} "
        f"skipped{passed_over})"
    )
    passages = f"{built.manifest.passages} passages ({built.embedded} embedded now)"
    console.out(f"{out}: {documents}, {passages}, {built.manifest.embedder}", highlight=False)


def _for_programs(built: Built) -> dict[str, object]:
    return {
        **msgspec.structs.asdict(gaps_of(built.manifest, built.entries)),
        "documents": built.documents,
        "documents_read": built.documents_read,
        "passed_over": len(built.found.passed_over),
        "passed_over_files": built.found.passed_over,
        "links": built.found.links,
        "passages": built.manifest.passages,
        "passages_embedded": built.embedded,
        "generation": built.manifest.generation,
        "embedder": built.manifest.embedder,
    }


async def _adopt(given: argparse.Namespace) -> int:
    async with open_embedder(embedder_config(given), {}, print) as embedder:
        manifest = await asyncio.to_thread(
            adopt_index, given.faiss, given.corpus, given.out, embedder
        )
    print(f"{given.out}: {manifest.passages} passages, {manifest.embedder}, {manifest.metric}")
    return 0


def add_embedder(parser: argparse.ArgumentParser) -> None:
    """Options for an embedder other than the default one."""
    group = parser.add_argument_group(
        "embedder", "all-MiniLM-L6-v2 in this process, unless an endpoint is named"
    )
    group.add_argument(
        "--embedder-url", metavar="URL", help="an OpenAI-compatible endpoint, http://…/v1"
    )
    group.add_argument("--embedder-model", metavar="NAME", help="the model's name there")
    group.add_argument(
        "--embedder-dimension", type=int, metavar="N", help="numbers in one of its vectors"
    )
    group.add_argument(
        "--embedder-key-env", metavar="NAME", help="the environment variable that holds the key"
    )
    group.add_argument("--query-prefix", default="", metavar="TEXT", help="put before every query")
    group.add_argument(
        "--passage-prefix", default="", metavar="TEXT", help="put before every passage"
    )


def embedder_config(given: argparse.Namespace) -> EmbedderConfig:
    """The embedder that the options name."""
    return EmbedderConfig(
        base_url=given.embedder_url,
        model=given.embedder_model,
        dimension=given.embedder_dimension,
        api_key_env=given.embedder_key_env,
        query_prefix=given.query_prefix,
        passage_prefix=given.passage_prefix,
    )


_GRACE_S = 10.0


def retrieve(arguments: Sequence[str]) -> int:
    """`rolegate retrieve serve`."""
    parser = new_parser("retrieve", "Searches an index on behalf of other processes.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser(
        "serve",
        help="gRPC RetrievalService, and HTTP POST /retrieve",
        description="Serves one index over gRPC and, as search agents expect it, over HTTP: POST "
        "/retrieve takes "
        '{"queries", "topk", "return_scores"} or {"query_list", "k"}.',
        allow_abbrev=False,
    )
    serve.add_argument(
        "--index", type=Path, required=True, metavar="DIR", help="what `index build` wrote"
    )
    for option, default, what in (
        ("--address", "127.0.0.1:50552", "gRPC"),
        ("--http", "127.0.0.1:50553", "HTTP"),
    ):
        serve.add_argument(
            option,
            type=host_port,
            default=default,
            metavar="HOST:PORT",
            help=f"{what} (default: %(default)s)",
        )
    serve.add_argument(
        "--http-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which HTTP may be asked for, beside IP addresses, localhost and the "
        "host of --http",
    )
    serve.add_argument(
        "--top-k", type=int, default=3, help="passages where a caller does not say (default: 3)"
    )
    add_embedder(serve)
    given = parser.parse_args(arguments)
    lexical = read_manifest(given.index).lexical
    config = RetrievalConfig(
        index=str(given.index), lexical=lexical, embedder=embedder_config(given)
    )
    run_until_stopped(_serving_index(config, given))
    return 0


@asynccontextmanager
async def _serving_index(config: RetrievalConfig, given: argparse.Namespace) -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        readiness = Readiness()
        retriever = WatchedRetriever(
            await stack.enter_async_context(open_retriever(config, log_step)), readiness
        )
        await stack.enter_async_context(background_tasks(retriever.follow()))
        app = retrieval_app(retriever, default_top_k=given.top_k, readiness=readiness)
        http = HTTPServer(app, _GRACE_S, hosts=given.http_host)
        url = f"http://{await http.start(given.http, '--http')}/retrieve"
        stack.push_async_callback(http.drain)
        servicer = RetrievalServicer(
            retriever, default_top_k=given.top_k, index_id=lambda: retriever.index_id
        )
        server = Server(None, servicer, readiness=readiness)
        bound = await server.start(given.address)
        stack.push_async_callback(server.drain, _GRACE_S)
        yield f"{given.address.rpartition(':')[0]}:{bound}, {url}"
