"""The retriever of a tenant's uploads."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from router.protocol import Passage
from router.trace.scope import NO_FILTER, DocumentFilter
from serving.retrieval.embedder import Embedder
from serving.retrieval.index import Index
from serving.retrieval.manifest import manifest_at
from serving.retrieval.searcher import IndexSearcher


class UploadsIndex:
    """An `IndexRetriever` over the index of a tenant's uploads, which may not exist, or appear and
    disappear. It is opened by the first search, as most tenants may never ask.
    """

    def __init__(self, name: str, folder: Path, embedder: Embedder) -> None:
        """`name`: the index's name in scopes. Reads the manifest in `folder`, so it blocks."""
        self._name = name
        self._folder = folder
        self._embedder = embedder
        self._searcher: IndexSearcher | None = None
        self._swapping = asyncio.Lock()
        self._manifest = manifest_at(folder)
        """The manifest of the generation that is searched; None if there is nothing to search."""

    @property
    def index_id(self) -> str:
        """See `IndexRetriever.index_id`: the tenant, the generation and the passages."""
        passages = self._manifest.corpus_sha256 if self._manifest else ""
        return f"{self._name} {self.generation} {passages}"

    @property
    def generation(self) -> str:
        """The generation that is searched; empty if there is nothing to search."""
        return self._manifest.generation if self._manifest else ""

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        """See `IndexRetriever.search`. Raises `BadIndex` if the index cannot be opened."""
        if self._manifest and self._searcher is None:
            await self.refresh(opening=True)
        if self._manifest is None or self._searcher is None:
            return [[] for _ in queries]
        return await self._searcher.search(queries, top_k, document, only)

    def is_stale(self) -> bool:
        """Return whether there is another generation than the one that is searched. Blocks."""
        return manifest_at(self._folder) != self._manifest

    async def refresh(self, *, opening: bool = False) -> None:
        """Search the newest generation from now on. Raises `BadIndex` if it cannot be opened.

        `opening`: whether to open the index if no search has opened it yet.
        """
        async with self._swapping:
            manifest = await asyncio.to_thread(manifest_at, self._folder)
            if manifest and (self._searcher or opening):
                index = await asyncio.to_thread(Index.open, self._folder, self._embedder)
                manifest = index.manifest
                if self._searcher:
                    self._searcher.swap(index)
                else:
                    self._searcher = IndexSearcher(index, self._embedder)
            self._manifest = manifest

    async def close(self) -> None:
        """End the thread that searches."""
        if self._searcher:
            await self._searcher.close()
