"""From the retrieval section of a config to a retriever."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from router.retrieval import Retriever
from serving.config import RetrievalConfig
from serving.retrieval.remote import RemoteRetriever


@asynccontextmanager
async def open_retriever(config: RetrievalConfig, tell: Callable[[str], None]) -> AsyncIterator[Retriever]:
    """The retriever that a config names, ready to search. Raises `BadConfig` or `BadIndex`."""
    if config.address is not None:
        remote = RemoteRetriever(config.address)
        try:
            yield remote
        finally:
            await remote.close()
    else:
        from serving.retrieval.local_index import close_index, open_index  # what it needs is not always installed

        searcher, embedder = await asyncio.to_thread(open_index, config, tell)
        try:
            yield searcher
        finally:
            await close_index(searcher, embedder)
