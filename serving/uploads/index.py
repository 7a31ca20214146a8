"""Search the documents that a tenant has uploaded."""

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
    """An `IndexRetriever` for the documents that a tenant has uploaded. Builds may create and
    remove the index of these documents while the gateway runs. The index is not opened before the
    first search, because many tenants may never search.
    """

    def __init__(self, name: str, folder: Path, embedder: Embedder) -> None:
        """Read the manifest in the index folder `folder`. Blocks. `name`: name of the index, unique
        among the indexes of the gateway.
        """
        self._name = name
        self._folder = folder
        self._embedder = embedder
        self._searcher: IndexSearcher | None = None
        self._swapping = asyncio.Lock()
        self._manifest = manifest_at(folder)
        """Manifest of the current generation; None if there is no index."""

    @property
    def index_id(self) -> str:
        """Identifier that changes whenever a query might return other passages. It consists of the
        index's name, its generation, and a digest of its passages.
        """
        passages = self._manifest.corpus_sha256 if self._manifest else ""
        return f"{self._name} {self.generation} {passages}"

    @property
    def generation(self) -> str:
        """Name of the generation (one build of the index) that searches use; empty if there is no
        index.
        """
        return self._manifest.generation if self._manifest else ""

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        """Search for passages, as `IndexRetriever.search` specifies. Find nothing if there is no
        index. Raises `BadIndex` if the index cannot be opened.
        """
        if self._manifest and self._searcher is None:
            await self.refresh(opening=True)
        if self._manifest is None or self._searcher is None:
            return [[] for _ in queries]
        return await self._searcher.search(queries, top_k, document, only)

    def is_stale(self) -> bool:
        """Return True if searches do not use the generation on disk, or if the index was removed.
        Blocks.
        """
        return manifest_at(self._folder) != self._manifest

    async def refresh(self, *, opening: bool = False) -> None:
        """Switch to the generation on disk. Raises `BadIndex` if that generation cannot be opened.

        `opening`: applies if no search has opened the index yet. True opens the index; False reads
        only its manifest.
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
        """End the thread that searches, if a search has started it."""
        if self._searcher:
            await self._searcher.close()
