"""An index: a folder with passages, their vectors and, optionally, word statistics."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from router.errors import BadIndex
from router.protocol import Passage
from serving.retrieval.dense import Hit, VectorIndex
from serving.retrieval.embedder import Embedder, Vectors
from serving.retrieval.faiss_index import FaissIndex
from serving.retrieval.lexical import LexicalIndex
from serving.retrieval.manifest import Manifest, check_files, read_manifest
from serving.retrieval.passages import PassageStore

DEPTH = 100
"""Ranks that are fused. Fixed, so that the order of the first hits does not depend on `top_k`."""
_HITS_PER_PASSAGE = 8
"""Hits searched for each passage wanted, so that copies of one text do not crowd out others."""


def fuse(rankings: Sequence[Sequence[Hit]], top_k: int, k: int = 60) -> list[Hit]:
    """Merge rankings: a row scores the sum of 1 / (k + rank), ranks from 1; ties by row."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking[:DEPTH], 1):
            scores[hit.row] = scores.get(hit.row, 0.0) + 1 / (k + rank)
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [Hit(row, score) for row, score in best[:top_k]]


class Index:
    """An opened index. `search` blocks."""

    def __init__(
        self,
        manifest: Manifest,
        passages: PassageStore,
        dense: VectorIndex,
        lexical: LexicalIndex | None,
    ) -> None:
        self.manifest = manifest
        self.passages = passages
        self.dense = dense
        self.lexical = lexical

    @classmethod
    def open(
        cls,
        folder: Path,
        embedder: Embedder,
        *,
        verify: bool = False,
        store: type[VectorIndex] = FaissIndex,
    ) -> Self:
        """Open a finished index that was built with this embedder and store.

        `verify`: read all files and compare their SHA-256. Raises `BadIndex`.
        """
        manifest = read_manifest(folder)
        built = (manifest.embedder, manifest.dimension)
        given = (embedder.identity, embedder.dimension)
        if built != given:
            raise BadIndex(
                f"{folder}: built with the embedder {built[0]} (dimension {built[1]}), opened with "
                f"{given[0]} (dimension {given[1]}); open it with the former, or build the index "
                "again."
            )
        check_files(folder, manifest, contents=verify)
        files = folder / manifest.generation
        passages = PassageStore(files)
        dense = store.open(files)
        if not len(passages) == len(dense) == manifest.passages:
            raise BadIndex(
                f"{folder}: its files disagree on the number of passages; build the index again."
            )
        lexical = LexicalIndex.open(files) if manifest.lexical else None
        return cls(manifest, passages, dense, lexical)

    def search(
        self,
        vectors: Vectors,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
    ) -> list[list[Passage]]:
        """Return the `top_k` best passages of each query, best first, without repeated texts.

        `vectors` are the embedded `queries`, (batch, dimension) float32. Scores are cosines, or
        sums of reciprocal ranks if the index has word statistics. `document`: as in
        `Retriever.search`.
        """
        if document is not None:
            rows = self.passages.documents.get(document, range(0))
            return [
                self._open_document(rows, vector, query, top_k)
                for vector, query in zip(vectors, queries, strict=True)
            ]
        if self.lexical is None:
            ranked = self.dense.search(vectors, top_k * _HITS_PER_PASSAGE)
        else:
            by_meaning = self.dense.search(vectors, DEPTH)
            by_word = self.lexical.search(queries, DEPTH)
            pairs = zip(by_meaning, by_word, strict=True)
            ranked = [fuse(rankings, 2 * DEPTH) for rankings in pairs]
        return [self._distinct(hits, top_k) for hits in ranked]

    def _open_document(
        self,
        rows: range,
        vector: Vectors,
        query: str,
        top_k: int,
    ) -> list[Passage]:
        """Return the `top_k` best passages of a document, in the order of the document."""
        if not rows:
            return []
        hits = self.dense.within(vector, rows)
        if self.lexical is not None:
            hits = fuse([hits, *self.lexical.search([query], DEPTH, rows)], 2 * DEPTH)
        return [self._passage(hit) for hit in sorted(hits[:top_k])]

    def _distinct(self, hits: Iterable[Hit], top_k: int) -> list[Passage]:
        """Return the first `top_k` passages with different texts."""
        passages: dict[str, Passage] = {}
        for hit in hits:
            passage = self._passage(hit)
            passages.setdefault(passage.text, passage)
            if len(passages) == top_k:
                break
        return list(passages.values())

    def _passage(self, hit: Hit) -> Passage:
        return msgspec.structs.replace(self.passages[hit.row], score=hit.score)
