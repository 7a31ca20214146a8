"""Open the retriever that a config describes: a remote server, or an index in this process.

An index in this process is first updated from its documents. When any process has built a new
generation of the index, this process switches to that generation.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple, TypeVar

import structlog
from msgspec.structs import replace

from router.background import background_tasks, errors_logged
from router.errors import BadConfig, BadIndex, RolegateError, UpstreamError, UpstreamRefused
from router.search.retrieval import IndexRetriever
from router.trace.scope import DEFAULT_INDEX
from serving.config.config import EmbedderConfig, EngineConfig, RetrievalConfig
from serving.config.secrets import api_key, key_problems
from serving.engines.engine import Log, engine
from serving.engines.process import OnChange
from serving.retrieval.approximate import ApproximateStore
from serving.retrieval.build import Built, Progress, build_index
from serving.retrieval.dense import VectorStore
from serving.retrieval.embedder import (
    Embedder,
    EndpointEmbedder,
    MiniLM,
    OnnxEmbedder,
    endpoint_identity,
    onnx_identity,
)
from serving.retrieval.faiss_index import FaissIndex
from serving.retrieval.index import Index
from serving.retrieval.manifest import Manifest, manifest_at
from serving.retrieval.milvus import MilvusStore
from serving.retrieval.remote import RemoteRetriever
from serving.retrieval.searcher import IndexSearcher

T = TypeVar("T")
Check = Callable[[], None]
"""Function that must be called regularly by work in a thread. It raises `Stopped` if the work was
cancelled.
"""

_FOLLOW_INTERVAL_S = 1.0
_LOG_INTERVAL_S = 2.0
_log = structlog.get_logger("retrieval")


@asynccontextmanager
async def open_embedder(
    config: EmbedderConfig,
    engines: Mapping[str, EngineConfig],
    log: Log,
    *,
    cpu_threads: int = 1,
    on_change: OnChange = lambda _reason: None,
) -> AsyncIterator[Embedder]:
    """Open the embedder that a config describes. If the embedder runs on one of the `engines`,
    start that engine first. Raises `BadConfig` if the embedder cannot be opened.

    `log`, `cpu_threads` and `on_change` are passed to `serving.engines.engine.engine`.
    """
    if config.in_process:
        yield MiniLM()
        return
    if config.onnx:
        yield await asyncio.to_thread(
            partial(
                OnnxEmbedder,
                Path(config.onnx),
                query_prefix=config.query_prefix,
                passage_prefix=config.passage_prefix,
            )
        )
        return
    async with AsyncExitStack() as stack:
        if config.engine is not None:
            started = engine(
                config.engine,
                engines[config.engine],
                [config.model or ""],
                log,
                cpu_threads=cpu_threads,
                on_change=on_change,
            )
            config = replace(config, base_url=await stack.enter_async_context(started))
        embedder = _endpoint(config)
        try:
            yield embedder
        finally:
            await asyncio.to_thread(embedder.close)


def vector_store(config: RetrievalConfig) -> VectorStore:
    """Return the vector store that the config of an index describes."""
    if config.milvus:
        return MilvusStore(config.milvus)
    if config.vectors == FaissIndex.name:
        return FaissIndex
    return ApproximateStore(config.vectors, config.memory_gb, config.breadth)


def build_configured(
    config: RetrievalConfig, embedder: Embedder, progress: Progress, **how: Any
) -> Built:
    """Build the index that a config describes, with `build_index`, and return the result. `how`:
    further keyword arguments of `build_index`.
    """
    return build_index(
        [Path(place) for place in config.documents],
        Path(config.index or ""),
        embedder,
        lexical=config.lexical,
        chunk_tokens=config.chunk_tokens,
        progress=progress,
        store=vector_store(config),
        **how,
    )


def _endpoint(config: EmbedderConfig) -> EndpointEmbedder:
    if config.base_url is None or config.model is None or config.dimension is None:
        raise BadConfig(
            "retrieval.embedder: an embedder with engine or base_url also needs model and "
            "dimension; set them."
        )
    for problem in key_problems("retrieval.embedder.api_key_env", config.api_key_env):
        raise BadConfig(problem)
    return EndpointEmbedder(
        config.base_url,
        config.model,
        dimension=config.dimension,
        query_prefix=config.query_prefix,
        passage_prefix=config.passage_prefix,
        api_key=api_key(config.api_key_env),
    )


@asynccontextmanager
async def open_retriever(
    config: RetrievalConfig,
    log: Log,
    engines: Mapping[str, EngineConfig] = {},
    *,
    cpu_threads: int = 1,
) -> AsyncIterator[IndexRetriever]:
    """Open the retriever of a single index, and yield the retriever. The arguments and errors are
    those of `open_indexes`.
    """
    opened = open_indexes({DEFAULT_INDEX: config}, log, engines, cpu_threads=cpu_threads)
    async with opened as searched:
        yield searched.retrievers[DEFAULT_INDEX]


class Searched(NamedTuple):
    """The opened retrievers of a gateway, and their embedder."""

    retrievers: Mapping[str, IndexRetriever]
    """The retriever of each index, by the index's name."""
    embedder: Embedder | None = None
    """The embedder of the indexes in this process; None if all indexes are remote and no embedder
    was requested.
    """


@asynccontextmanager
async def open_indexes(
    configs: Mapping[str, RetrievalConfig],
    log: Log,
    engines: Mapping[str, EngineConfig] = {},
    *,
    embeds: bool = False,
    cpu_threads: int = 1,
    on_change: OnChange = lambda _reason: None,
) -> AsyncIterator[Searched]:
    """Open the retrievers that configs describe, their embedder, and the embedder's engine.

    `configs`: the config of each index, by the index's name; all have the embedder of the index
    `default`. `embeds`: whether to open the embedder even if all indexes are remote. `log`,
    `cpu_threads` and `on_change` are passed to `serving.engines.engine.engine`. Raises `BadConfig`
    or `BadIndex`.
    """
    async with AsyncExitStack() as stack:
        embedder: Embedder | None = None
        local = [config for config in configs.values() if config.address is None]
        if embeds or local:
            opened = open_embedder(
                configs[DEFAULT_INDEX].embedder,
                engines,
                log,
                cpu_threads=cpu_threads,
                on_change=on_change,
            )
            embedder = await stack.enter_async_context(opened)

        retrievers = dict[str, IndexRetriever]()
        for name, config in configs.items():
            if config.address is not None:
                remote = RemoteRetriever(config.address, timeout_s=config.timeout_s)
                stack.push_async_callback(remote.close)
                retrievers[name] = remote
            elif embedder:
                searcher = _open_searcher(config, embedder, log)
                retrievers[name] = await stack.enter_async_context(searcher)
        yield Searched(retrievers, embedder)


async def check_access(retriever: IndexRetriever) -> None:
    """Raise `BadConfig` if the retriever cannot search within a single document. The setting
    `search.access` needs such searches. If the retriever is down, only log a warning.
    """
    try:
        for passage in (await retriever.search(["document"], 1))[0]:
            if not passage.document:
                raise BadConfig(
                    "search.access: the index does not record the documents of its passages, so "
                    "executors cannot open documents; set search.access to false."
                )
            # Also search a document that does not exist. If a server ignores the field `document`,
            # it returns passages of other documents, and the retriever raises an error.
            for name in (passage.document, "\0"):
                await retriever.search(["document"], 1, name)
    except (UpstreamRefused, BadIndex) as error:
        raise BadConfig(f"search.access: {error}, or set search.access to false.") from error
    except UpstreamError:
        _log.warning("retrieval.access_unchecked")


class Stopped(Exception):
    """Raised in a thread to end work that was cancelled."""


async def stoppable(work: Callable[[Check], T]) -> T:
    """Run `work` in a thread and return its result. The argument of `work` is a function that
    `work` must call regularly (see `Check`). If this coroutine is cancelled, the next call of that
    function raises `Stopped`, and the coroutine waits until the work has ended.
    """
    stopped = Event()

    def check() -> None:
        if stopped.is_set():
            raise Stopped

    working = asyncio.ensure_future(asyncio.to_thread(work, check))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        stopped.set()
        await asyncio.gather(working, return_exceptions=True)
        raise


@asynccontextmanager
async def _open_searcher(
    config: RetrievalConfig, embedder: Embedder, log: Log
) -> AsyncIterator[IndexSearcher]:
    """Update the config's index, and yield a searcher for it. While the context is open, the
    searcher switches to each new generation of the index.
    """
    index = await stoppable(partial(_open_up_to_date, config, embedder, log))
    searcher = IndexSearcher(index, embedder)
    try:
        async with background_tasks(_follow(config, searcher, index.manifest, embedder)):
            yield searcher
    finally:
        await searcher.close()


def _open_up_to_date(
    config: RetrievalConfig,
    embedder: Embedder,
    log: Log,
    check: Check,
) -> Index:
    if config.documents:
        _update(config, embedder, log, check)
    index = _open(config, embedder)
    embedder.embed(["warm up"], queries=True)
    log(f"retrieval: {index.manifest.passages} passages, {index.manifest.embedder}")
    return index


async def _follow(
    config: RetrievalConfig,
    searcher: IndexSearcher,
    seen: Manifest | None,
    embedder: Embedder,
) -> None:
    """Make `searcher` switch to each new generation of the index. If a generation cannot be opened,
    log the error and wait for the next generation. Never returns. `seen`: manifest of the
    generation that is open at first.
    """
    while True:
        await asyncio.sleep(_FOLLOW_INTERVAL_S)
        manifest = await asyncio.to_thread(manifest_at, Path(config.index or ""))
        if manifest is None or manifest == seen:
            continue
        seen = manifest
        with errors_logged(_log, "retrieval.not_swapped"):  # the generation may be removed already
            searcher.swap(await asyncio.to_thread(_open, config, embedder))
            _log.info(
                "retrieval.swapped",
                generation=manifest.generation,
                passages=manifest.passages,
            )


def _open(config: RetrievalConfig, embedder: Embedder) -> Index:
    index = Index.open(Path(config.index or ""), embedder, store=vector_store(config))
    if index.manifest.lexical != config.lexical:
        raise BadIndex(
            f"{config.index}: was built with lexical = {str(index.manifest.lexical).lower()}, but "
            f"the config now has lexical = {str(config.lexical).lower()}; change this key back, or "
            "run `rolegate index build` again."
        )
    return index


def _update(
    config: RetrievalConfig,
    embedder: Embedder,
    log: Log,
    check: Check,
) -> None:
    """Update the index from its documents. If that fails and there is an older index, log the error
    and keep the older index. If there is no older index, raise the error.
    """
    logged_at = time.monotonic()

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal logged_at
        check()
        if time.monotonic() - logged_at >= _LOG_INTERVAL_S:
            logged_at = time.monotonic()
            unit = "documents" if stage == "reading" else "passages"
            log(f"retrieval: {stage}, {done} of {total} {unit}")

    exists = manifest_at(Path(config.index or "")) is not None
    try:
        built = build_configured(config, embedder, progress, wait=not exists)
    except (RolegateError, OSError) as error:
        if not exists:
            raise
        log(
            f"retrieval: serving the old index, because it could not be brought up to date: {error}"
        )
        return
    for entry in built.skipped:
        log(f"retrieval: skipped {entry.error}")
    for link in built.files.links:
        log(f"retrieval: not followed: {link}")


def identity_of(config: EmbedderConfig) -> str:
    """Return the `identity` of the embedder that a config describes, without opening the
    embedder.
    """
    if config.in_process:
        return MiniLM.identity
    if config.onnx:
        return onnx_identity(Path(config.onnx), config.passage_prefix)
    return endpoint_identity(config.model or "", config.passage_prefix)
