"""`rolegate index` and `rolegate retrieve`: build an index, adopt a FAISS index that another
program built, and serve an index to other processes.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from rich.console import Console

from router.background import background_tasks
from router.calls import Readiness
from router.edge.grpc.server import Server
from router.edge.http.server import HTTPServer
from router.errors import BadConfig
from router.search import Indexes
from router.search.retrieval import WatchedRetriever
from router.trace.scope import DEFAULT_INDEX
from serving.bulk import finished, workers_of
from serving.cli.command import POSITIONAL, run_async, run_subcommand, shown_as
from serving.cli.grid import counted, print_lines
from serving.cli.options import File, Folder, HostPort, Name, Options, json_of
from serving.config.config import (
    FACTORY,
    EmbedderConfig,
    EngineConfig,
    PassageTokens,
    RetrievalConfig,
    place_of,
)
from serving.config.file import load_config
from serving.engines.engine import cores
from serving.retrieval.adopt import adopt_index
from serving.retrieval.build import BATCH, Built
from serving.retrieval.embedder import Embedder, MiniLM, Vectors
from serving.retrieval.faiss_index import FaissIndex
from serving.retrieval.gaps import gaps_of
from serving.retrieval.manifest import read_manifest
from serving.retrieval.opening import (
    Check,
    build_configured,
    open_embedder,
    open_retriever,
    stoppable,
)
from serving.retrieval.services import RetrievalServicer, retrieval_app
from serving.signals import log_step, run_until_stopped
from serving.terminal import progress_bar


class EmbedderOptions(Options):
    """Options that choose an embedder. By default, all-MiniLM-L6-v2 runs in this process."""

    embedder_url: Annotated[str, shown_as("URL")] | None = None
    """Let this OpenAI-compatible endpoint, http://…/v1, compute the embeddings (default: the model
    MiniLM computes them in this process).
    """
    embedder_model: Name | None = None
    """Name of the embedding model at --embedder-url; required with it."""
    embedder_dimension: int | None = None
    """Number of components of the vectors that --embedder-model returns, such as 1024; required
    with --embedder-url.
    """
    embedder_key_env: Name | None = None
    """Name of the environment variable that holds the API key for --embedder-url (default: no key).
    """
    query_prefix: str = ""
    """Put this text before every query before it is embedded, if the model card asks for that, such
    as "query: " for E5 (default: no text).
    """
    passage_prefix: str = ""
    """Put this text before every passage before it is embedded, if the model card asks for that,
    such as "passage: " for E5 (default: no text).
    """


def embedder_config(options: EmbedderOptions) -> EmbedderConfig:
    """Return the options as the table `[retrieval.embedder]` of a config."""
    return EmbedderConfig(
        base_url=options.embedder_url,
        model=options.embedder_model,
        dimension=options.embedder_dimension,
        api_key_env=options.embedder_key_env,
        query_prefix=options.query_prefix,
        passage_prefix=options.passage_prefix,
    )


class BuildOptions(EmbedderOptions, kw_only=True):
    """Options of `index build`."""

    config: Path
    paths: Annotated[tuple[Path, ...], POSITIONAL] = ()
    """Files and folders to index (default: the documents of the index in the config)."""
    out: Folder | None = None
    """Write the index to this folder; required with PATHS, and only allowed with PATHS."""
    index: Name = DEFAULT_INDEX
    """Build the index of the table [indexes.NAME] of the config (default: the index of the table
    [retrieval]).
    """
    chunk_tokens: PassageTokens = 200
    """Max tokens of a passage, counted with the embedder's tokenizer; needs PATHS."""
    lexical: bool = False
    """Also store word statistics, so that searches combine BM25 with vector search, and so find
    rare names and numbers better; needs PATHS.
    """
    ray: str | None = None
    """Embed with MiniLM on the workers of this Ray cluster: local (this machine's cores), or
    HOST:PORT of the cluster's head node (default: embed in this process).
    """
    json: bool = False
    """Print the result as JSON."""
    verbose: bool = False
    """List the files whose formats are not supported."""
    NEEDS: ClassVar = dict.fromkeys(
        (*EmbedderOptions.__struct_fields__, "out", "chunk_tokens", "lexical"), "paths"
    )


class AdoptOptions(EmbedderOptions, kw_only=True):
    """Options of `index adopt`."""

    faiss: File
    """FAISS file with the vectors, written by faiss.write_index."""
    corpus: Annotated[Path, shown_as("FILE.jsonl")]
    """JSON-lines file with the indexed texts, in the order of the vectors. Each line has "id",
    "title" and "text", or "id" and "contents".
    """
    out: Folder
    """Write the index to this new folder."""


def index(arguments: Sequence[str]) -> int:
    """Run `rolegate index`; return the exit status."""
    return run_subcommand(
        "index",
        "Build the index that retrieval searches, or adopt one that another program built.",
        {"build": _build, "adopt": _adopt},
        arguments,
        run_async,
    )


def _retrieval(options: BuildOptions) -> tuple[RetrievalConfig, Mapping[str, EngineConfig]]:
    """Return the settings of the index to build, and the config's vLLM engines by name. If PATHS
    are given, the settings come from the options, and there are no engines. Otherwise, both come
    from the config. Raises `BadConfig` if the options contradict each other or the config.
    """
    if options.paths:
        if options.out is None:
            raise BadConfig("--out: missing; with PATHS, name the folder to write the index to.")
        if options.index != DEFAULT_INDEX:
            raise BadConfig(
                "--index: names an index of the config, but PATHS are indexed into the folder "
                "--out; leave out --index or PATHS."
            )
        retrieval = RetrievalConfig(
            index=str(options.out),
            documents=tuple(map(str, options.paths)),
            chunk_tokens=options.chunk_tokens,
            lexical=options.lexical,
            embedder=embedder_config(options),
        )
        return retrieval, {}

    config = load_config(options.config)
    key = place_of(options.index)
    named = config.all_indexes.get(options.index)
    if named is None:
        raise BadConfig(
            f"--index {options.index}: the config has no table [{key}]; add it, or name another."
        )
    if not named.documents:
        raise BadConfig(
            f"{key}.documents: the config names no documents; add them, or give PATHS and --out."
        )
    return named, config.engines


async def _build(options: BuildOptions) -> None:
    """Index documents, or only what changed since the last build.

    Read files and folders (text, Markdown, HTML, PDF, office documents, mail, CSV, JSON), split the
    texts into passages at sentence ends, and embed the passages. Without PATHS, the config names
    the documents and all other settings. An interrupted build continues where it stopped. Running
    gateways switch to the new index by themselves.

    A file that cannot be read, or takes too much time or memory, is reported and skipped. So is a
    symbolic link that leads out of its folder. Rows of JSON lines and Parquet must have the fields
    "id", "title" and "text", or "id" and "contents".
    """
    config, engines = _retrieval(options)
    if options.ray and not config.embedder.in_process:
        raise BadConfig(
            "--ray: works only with the default embedder MiniLM, but the config has another one; "
            "leave --ray out, or remove the table [retrieval.embedder] from the config."
        )
    log = partial(Console(stderr=True).print, markup=False)
    async with open_embedder(config.embedder, engines, log, cpu_threads=cores()) as embedder:
        built = await stoppable(partial(_built, config, embedder, options.ray))
    if options.json:
        print(json_of(_for_programs(built)))
    else:
        _show(built, Path(config.index or ""), Console(soft_wrap=True), verbose=options.verbose)


class _MiniLMOnRay(MiniLM):
    """MiniLM on the workers of a Ray cluster. Each worker embeds `BATCH` texts at a time."""

    def __init__(self, workers: Any) -> None:
        super().__init__()
        self._workers = workers

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        """Embed texts on the workers, as `Embedder.embed` specifies. Raises `RolegateError` if a
        worker dies four times.
        """
        calls = [
            worker.embed.remote(texts[start : start + BATCH], queries=queries)
            for worker, start in zip(
                cycle(self._workers), range(0, len(texts), BATCH), strict=False
            )
        ]
        return np.concatenate([asyncio.run(finished(call)) for call in calls])


def _built(config: RetrievalConfig, embedder: Embedder, ray: str | None, check: Check) -> Built:
    batch = BATCH
    if ray:
        workers = workers_of(ray, MiniLM)
        embedder = _MiniLMOnRay(workers)
        batch *= 2 * len(workers)
    with progress_bar() as bar:
        task = bar.add_task("")

        def show(stage: str, done: int, total: int) -> None:
            check()
            if not total:
                stage = "waiting for another build of this index"
            bar.update(task, description=stage, completed=done, total=total or None)

        return build_configured(config, embedder, show, batch=batch)


def _show(
    built: Built,
    out: Path,
    console: Console,
    *,
    verbose: bool,
) -> None:
    lines = gaps_of(built.manifest, built.entries).lines()
    lines += [f"not followed: {link}" for link in built.files.links]
    lines += [f"format not supported: {path}" for path in built.files.passed_over if verbose]
    others = len(built.files.passed_over)
    passed_over = f", {others} of unsupported formats" if others else ""
    documents = (
        f"{counted(built.documents, 'document')} ({built.documents_read} read now, "
        f"{len(built.skipped)} skipped{passed_over})"
    )
    passages = f"{counted(built.manifest.passages, 'passage')} ({built.embedded} embedded now)"
    lines.append(f"{out}: {documents}, {passages}, {built.manifest.embedder}")
    if built.manifest.recall:
        lines.append(f"{out}: {built.manifest.searched_by}")
    print_lines(console, lines)


def _for_programs(built: Built) -> dict[str, object]:
    return {
        **msgspec.structs.asdict(gaps_of(built.manifest, built.entries)),
        "documents": built.documents,
        "documents_read": built.documents_read,
        "passed_over": len(built.files.passed_over),
        "passed_over_files": built.files.passed_over,
        "links": built.files.links,
        "passages": built.manifest.passages,
        "passages_embedded": built.embedded,
        "generation": built.manifest.generation,
        "embedder": built.manifest.embedder,
        "vectors": built.manifest.vectors,
        "recall": built.manifest.recall,
    }


async def _adopt(options: AdoptOptions) -> None:
    """Adopt a FAISS index that another program built, together with its texts.

    Row n of --corpus must hold the text of vector n in --faiss. A few texts are embedded again, to
    check that the vectors were computed by the embedder that the options choose.
    """
    async with open_embedder(embedder_config(options), {}, print) as embedder:
        manifest = await asyncio.to_thread(
            adopt_index,
            options.faiss,
            options.corpus,
            options.out,
            embedder,
        )
    passages = counted(manifest.passages, "passage")
    print(f"{options.out}: {passages}, {manifest.embedder}, {manifest.metric}")


_GRACE_S = 10.0
"""Max seconds that running requests get to finish when the server stops."""


class RetrieveOptions(EmbedderOptions, kw_only=True):
    """Options of `retrieve serve`."""

    index: Folder
    """Folder of the index, which `index build` or `index adopt` wrote."""
    address: HostPort = "127.0.0.1:50552"
    """Listen for gRPC at this address."""
    http: HostPort = "127.0.0.1:50553"
    """Listen for HTTP at this address."""
    http_host: tuple[str, ...] = ()
    """Also accept HTTP requests that clients send to this host name, such as search.example.
    Requests to IP addresses, localhost and the host of --http are always accepted, all others are
    refused.
    """
    top_k: int = 3
    """Return this many passages for a query if the request does not set a number."""


def retrieve(arguments: Sequence[str]) -> int:
    """Run `rolegate retrieve`; return the exit status."""
    return run_subcommand(
        "retrieve", "Serve an index to other processes.", {"serve": _serve}, arguments
    )


def _serve(options: RetrieveOptions) -> None:
    """Serve one index over gRPC and HTTP.

    The HTTP API is the one that common search agents expect: POST /retrieve with {"queries",
    "topk", "return_scores"} or {"query_list", "k"}.
    """
    manifest = read_manifest(options.index)
    config = RetrievalConfig(
        index=str(options.index),
        lexical=manifest.lexical,
        vectors=manifest.vectors if FACTORY.fullmatch(manifest.vectors) else FaissIndex.name,
        embedder=embedder_config(options),
    )
    run_until_stopped(_serving_index(config, options))


@asynccontextmanager
async def _serving_index(config: RetrievalConfig, options: RetrieveOptions) -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        readiness = Readiness()
        retriever = WatchedRetriever(
            await stack.enter_async_context(open_retriever(config, log_step)), readiness
        )
        await stack.enter_async_context(background_tasks(retriever.follow()))
        http = HTTPServer(
            retrieval_app(retriever, default_top_k=options.top_k, readiness=readiness),
            _GRACE_S,
            hosts=options.http_host,
        )
        url = f"http://{await http.start(options.http, '--http')}/retrieve"
        stack.push_async_callback(http.drain)
        indexes = Indexes({DEFAULT_INDEX: retriever})
        server = Server(
            None,
            RetrievalServicer(indexes, default_top_k=options.top_k),
            readiness=readiness,
        )
        bound = await server.start(options.address)
        stack.push_async_callback(server.drain, _GRACE_S)
        yield f"{options.address.rpartition(':')[0]}:{bound}, {url}"
