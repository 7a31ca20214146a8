"""From the retrieval section of a config to a retriever."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

from router.search.retrieval import IndexRetriever
from serving.config import EngineConfig, RetrievalConfig
from serving.retrieval.remote import RemoteRetriever
from serving.retrieval.stoppable import stoppable
from serving.supervision import Say


@asynccontextmanager
async def open_retriever(
    config: RetrievalConfig,
    tell: Callable[[str], None],
    engines: Mapping[str, EngineConfig] = {},
    *,
    cpu_threads: int = 1,
    say: Say = lambda _why: None,
) -> AsyncIterator[IndexRetriever]:
    """The retriever that a config names, ready to search, with its embedder's engine. Raises `BadConfig` or `BadIndex`.

    `cpu_threads`, `say`: for that engine, as for `serving.engine.engine`.
    """
    if config.address is not None:
        remote = RemoteRetriever(config.address, timeout_s=config.timeout_s)
        try:
            yield remote
        finally:
            await remote.close()
        return
    # What an index in this process needs is not always installed.
    from serving.retrieval.local_index import follow, open_index
    from serving.retrieval.open_embedder import open_embedder
    from serving.retrieval.searcher import IndexSearcher

    async with open_embedder(config.embedder, engines, tell, cpu_threads=cpu_threads, say=say) as embedder:
        index = await stoppable(partial(open_index, config, embedder, tell))
        batching = config.batching
        searcher = IndexSearcher(
            index, embedder, wait_s=batching.wait_ms / 1000, most=batching.most, cache=batching.cache
        )
        following = asyncio.create_task(follow(config, searcher, index, embedder))
        try:
            yield searcher
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await searcher.close()
