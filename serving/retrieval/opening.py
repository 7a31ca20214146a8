"""From the retrieval section of a config to a retriever."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec.structs import replace

from router.errors import BadConfig
from router.search.retrieval import IndexRetriever
from serving.config.config import EmbedderConfig, EngineConfig, RetrievalConfig
from serving.config.secrets import api_key, key_problems
from serving.engines.engine import engine
from serving.engines.process import OnChange
from serving.retrieval.embedder import Embedder, MiniLM
from serving.retrieval.endpoint_embedder import EndpointEmbedder, endpoint_identity
from serving.retrieval.remote import RemoteRetriever


@asynccontextmanager
async def open_embedder(
    config: EmbedderConfig,
    engines: Mapping[str, EngineConfig],
    log: Callable[[str], None],
    *,
    cpu_threads: int = 1,
    on_change: OnChange = lambda _reason: None,
) -> AsyncIterator[Embedder]:
    """The embedder that a config names, with its engine if it has one; `on_change` as for that. Raises `BadConfig`."""
    if config.in_process:
        yield MiniLM()
        return
    async with AsyncExitStack() as stack:
        if config.engine is not None:
            served = [config.model or ""]
            started = engine(
                config.engine, engines[config.engine], served, log, cpu_threads=cpu_threads, on_change=on_change
            )
            config = replace(config, base_url=await stack.enter_async_context(started))
        embedder = _endpoint(config)
        try:
            yield embedder
        finally:
            await asyncio.to_thread(embedder.close)


def _endpoint(config: EmbedderConfig) -> EndpointEmbedder:
    if config.base_url is None or config.model is None or config.dimension is None:
        raise BadConfig("retrieval.embedder: an embedder elsewhere needs base_url (or engine), model and dimension.")
    for problem in key_problems("retrieval.embedder", config.api_key_env):
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
    """The retriever that a config names, ready to search, with its embedder's engine. Raises `BadConfig` or `BadIndex`.

    `cpu_threads`, `on_change`: for that engine, as for `serving.engine.engine`.
    """
    if config.address is not None:
        remote = RemoteRetriever(config.address, timeout_s=config.timeout_s)
        try:
            yield remote
        finally:
            await remote.close()
        return
    from serving.retrieval.local_index import open_searcher  # its packages are not always installed

    async with (
        open_embedder(config.embedder, engines, log, cpu_threads=cpu_threads, on_change=on_change) as embedder,
        open_searcher(config, embedder, log) as searcher,
    ):
        yield searcher


def identity_of(config: EmbedderConfig) -> str:
    """The `identity` of the embedder that a config names."""
    if config.in_process:
        return MiniLM.identity
    return endpoint_identity(config.model or "", config.passage_prefix)
