"""From the retrieval section of a config to a retriever: one at an address, or an index in this
process, brought up to date, opened, and left for the next generation when there is one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar

import structlog
from msgspec.structs import replace

from router.background import background_tasks, errors_logged
from router.errors import BadConfig, BadIndex, RolegateError, UpstreamError, UpstreamRefused
from router.search.retrieval import IndexRetriever, Retriever
from serving.config.config import EmbedderConfig, EngineConfig, RetrievalConfig
from serving.config.secrets import api_key, key_problems
from serving.engines.engine import engine
from serving.engines.process import OnChange
from serving.retrieval.build import build_index
from serving.retrieval.embedder import Embedder, EndpointEmbedder, MiniLM, endpoint_identity
from serving.retrieval.index import Index
from serving.retrieval.manifest import Manifest, read_manifest
from serving.retrieval.remote import RemoteRetriever
from serving.retrieval.searcher import IndexSearcher

T = TypeVar("T")
Check = Callable[[], None]
"""Raises `Stopped` once the work is to end; to be called now and then."""

_FOLLOW_INTERVAL_S = 1.0
_LOG_INTERVAL_S = 2.0
_log = structlog.get_logger("retrieval")


@asynccontextmanager
async def open_embedder(
    config: EmbedderConfig,
    engines: Mapping[str, EngineConfig],
    log: Callable[[str], None],
    *,
    cpu_threads: int = 1,
    on_change: OnChange = lambda _reason: None,
) -> AsyncIterator[Embedder]:
    """The embedder that a config names, with its engine if it has one; `on_change` as for that.
    Raises `BadConfig`.
    """
    if config.in_process:
        yield MiniLM()
        return
    async with AsyncExitStack() as stack:
        if config.engine is not None:
            served = [config.model or ""]
            started = engine(
                config.engine,
                engines[config.engine],
                served,
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


def _endpoint(config: EmbedderConfig) -> EndpointEmbedder:
    if config.base_url is None or config.model is None or config.dimension is None:
        raise BadConfig(
            "retrieval.embedder: an embedder elsewhere needs base_url (or engine), model "
            "and dimension."
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
    log: Callable[[str], None],
    engines: Mapping[str, EngineConfig] = {},
    *,
    cpu_threads: int = 1,
    on_change: OnChange = lambda _reason: None,
) -> AsyncIterator[IndexRetriever]:
    """The retriever that a config names, ready to search, with its embedder's engine. Raises
    `BadConfig` or `BadIndex`.

    `cpu_threads`, `on_change`: for that engine, as for `serving.engines.engine.engine`.
    """
    if config.address is not None:
        remote = RemoteRetriever(config.address, timeout_s=config.timeout_s)
        try:
            yield remote
        finally:
            await remote.close()
        return
    async with (
        open_embedder(
            config.embedder, engines, log, cpu_threads=cpu_threads, on_change=on_change
        ) as embedder,
        _open_searcher(config, embedder, log) as searcher,
    ):
        yield searcher


async def check_access(retriever: Retriever) -> None:
    """See that documents can be opened, as far as the retriever is there. Raises `BadConfig`."""
    try:
        for passage in (await retriever.search(["document"], 1))[0]:
            if not passage.document:
                raise BadConfig("search.access: the passages name no documents; set it to false.")
            # A server that does not know the field finds something in any
            for name in (passage.document, "\0"):
                await retriever.search(["document"], 1, name)
    except (UpstreamRefused, BadIndex) as error:
        raise BadConfig(f"search.access: {error}; set it to false.") from error
    except UpstreamError:
        _log.warning("retrieval.access_unchecked")


class Stopped(Exception):
    """The work was asked to end."""


async def stoppable(work: Callable[[Check], T]) -> T:
    """The result of `work`, run in a thread. Cancelled, it waits until `work` has ended."""
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
    config: RetrievalConfig, embedder: Embedder, log: Callable[[str], None]
) -> AsyncIterator[IndexSearcher]:
    """Search the config's index, up to date, and go over to each new generation of it."""
    index = await stoppable(partial(_open_up_to_date, config, embedder, log))
    searcher = IndexSearcher(index, embedder)
    try:
        async with background_tasks(_follow(config, searcher, index.manifest, embedder)):
            yield searcher
    finally:
        await searcher.close()


def _open_up_to_date(
    config: RetrievalConfig, embedder: Embedder, log: Callable[[str], None], check: Check
) -> Index:
    if config.documents:
        _update(config, embedder, log, check)
    index = _open(config, embedder)
    embedder.embed(["warm up"], queries=True)
    log(f"retrieval: {index.manifest.passages} passages, {index.manifest.embedder}")
    return index


async def _follow(
    config: RetrievalConfig, searcher: IndexSearcher, seen: Manifest | None, embedder: Embedder
) -> None:
    """Let `searcher` go over to each new generation of its index; one that cannot be opened is
    logged and left.
    """
    while True:
        await asyncio.sleep(_FOLLOW_INTERVAL_S)
        found = await asyncio.to_thread(_manifest, config)
        if found is None or found == seen:
            continue
        with errors_logged(_log, "retrieval.not_swapped"):  # it is gone again, perhaps
            searcher.swap(await asyncio.to_thread(_open, config, embedder))
            _log.info("retrieval.swapped", generation=found.generation, passages=found.passages)
        seen = found


def _open(config: RetrievalConfig, embedder: Embedder) -> Index:
    index = Index.open(Path(config.index or ""), embedder)
    if index.manifest.lexical != config.lexical:
        raise BadIndex(
            f"{config.index}: built {'with' if index.manifest.lexical else 'without'} "
            "word statistics, but "
            f"retrieval.lexical is {str(config.lexical).lower()}; change the key, or "
            "build the index again."
        )
    return index


def _manifest(config: RetrievalConfig) -> Manifest | None:
    with suppress(BadIndex):
        return read_manifest(Path(config.index or ""))
    return None


def _update(
    config: RetrievalConfig, embedder: Embedder, log: Callable[[str], None], check: Check
) -> None:
    """Bring the index up to date. Where that fails and there is one, it is served as it is."""
    logged_at = time.monotonic()

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal logged_at
        check()
        if time.monotonic() - logged_at >= _LOG_INTERVAL_S:
            logged_at = time.monotonic()
            log(
                f"retrieval: {stage}, {done} of {total} "
                f"{'documents' if stage == 'reading' else 'passages'}"
            )

    exists = _manifest(config) is not None
    try:
        built = build_index(
            [Path(place) for place in config.documents],
            Path(config.index or ""),
            embedder,
            lexical=config.lexical,
            chunk_tokens=config.chunk_tokens,
            wait=not exists,
            progress=progress,
        )
    except (RolegateError, OSError) as error:
        if not exists:
            raise
        log(
            "retrieval: the index is served as it was, because it could not be brought "
            f"up to date: {error}"
        )
    else:
        for entry in built.skipped:
            log(f"retrieval: skipped {entry.error}")
        for link in built.found.links:
            log(f"retrieval: not followed: {link}")


def identity_of(config: EmbedderConfig) -> str:
    """The `identity` of the embedder that a config names."""
    if config.in_process:
        return MiniLM.identity
    return endpoint_identity(config.model or "", config.passage_prefix)
