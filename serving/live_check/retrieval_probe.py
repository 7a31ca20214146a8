"""Whether passages can be searched: in an index in this process, or by a retrieval server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from router.errors import UpstreamError
from router.search.retrieval import Retriever
from serving.config import Config
from serving.engine import Tell
from serving.live_check.cell import GOOD, Cells, failed
from serving.retrieval.open_retriever import open_retriever


@asynccontextmanager
async def retrieval_probe(
    config: Config, tell: Tell, *, cpu_threads: int
) -> AsyncIterator[Callable[[], Awaitable[dict[str, Cells]]]]:
    """Open what is searched with; the call that probes it. `cpu_threads`: as for `open_retriever`."""
    if config.retrieval.address is not None:
        async with open_retriever(config.retrieval, tell) as retriever:
            yield partial(_probe_server, retriever)
        return
    # What an index in this process needs is not always installed.
    from serving.live_check.index_probe import probe_index
    from serving.retrieval.open_embedder import open_embedder

    opened = open_embedder(config.retrieval.embedder, config.engines, tell, cpu_threads=cpu_threads)
    async with opened as embedder:
        index, documents = Path(config.retrieval.index or ""), bool(config.retrieval.documents)
        yield partial(asyncio.to_thread, probe_index, index, embedder, documents)


async def _probe_server(retriever: Retriever) -> dict[str, Cells]:
    try:
        await retriever.search(["Who directed the film Heat?"], 1)
    except UpstreamError as error:
        advice = f"{error}; start `rolegate retrieve serve` there, or correct retrieval.address"
        return {"retrieval": {"reachable": failed("no", advice)}}
    return {"retrieval": {"reachable": GOOD}}
