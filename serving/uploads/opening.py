"""Opening of all indexes of a gateway: those of the config, and those of uploads."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from router.background import background_tasks
from router.search.retrieval import IndexRetriever
from serving.config.config import Config
from serving.engines.engine import Log
from serving.engines.process import OnChange
from serving.retrieval.opening import open_embedder, open_indexes
from serving.uploads.uploads import StoredUploads


@dataclass(frozen=True, slots=True)
class Searched:
    """Everything that a gateway searches, opened."""

    retrievers: Mapping[str, IndexRetriever]
    """The retriever of each index of the config, by the index's name."""
    uploads: StoredUploads | None = None
    """None if the gateway accepts no uploads."""


@asynccontextmanager
async def open_searched(
    config: Config,
    log: Log,
    *,
    cpu_threads: int = 1,
    on_change: OnChange = lambda _reason: None,
) -> AsyncIterator[Searched]:
    """Open all indexes of a config with their embedder, and the uploads, whose indexes are built in
    the background while the context is open. Raises `BadConfig` or `BadIndex`.

    `log`, `cpu_threads` and `on_change` are passed on to `serving.engines.engine.engine`.
    """
    async with AsyncExitStack() as stack:
        embedder = None
        uploads = None
        if config.uploads.folder:
            embedder = await stack.enter_async_context(
                open_embedder(
                    config.retrieval.embedder,
                    config.engines,
                    log,
                    cpu_threads=cpu_threads,
                    on_change=on_change,
                )
            )
            uploads = StoredUploads(config, embedder)
            stack.push_async_callback(uploads.close)
            await uploads.start()
            tasks = background_tasks(uploads.work(), uploads.follow())
            await stack.enter_async_context(tasks)
        retrievers = await stack.enter_async_context(
            open_indexes(
                config.all_indexes,
                log,
                config.engines,
                embedder=embedder,
                cpu_threads=cpu_threads,
                on_change=on_change,
            )
        )
        yield Searched(retrievers, uploads)
