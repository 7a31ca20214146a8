"""Search an index. An index is a folder with passages, their vectors and, optionally, word
statistics for BM25.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from router.errors import BadIndex
from router.frozen import Frozen
from router.protocol import Passage
from router.search.indexes import fused
from router.trace.scope import NO_FILTER, DocumentFilter
from serving.retrieval.dense import Hit, VectorIndex, VectorStore
from serving.retrieval.embedder import Embedder, Vectors
from serving.retrieval.faiss_index import FaissIndex
from serving.retrieval.lexical import LexicalIndex
from serving.retrieval.manifest import Manifest, check_files, read_manifest
from serving.retrieval.passages import PassageStore

DEPTH = 100
"""When the rankings by vectors and by words are merged, at most this number of hits of each ranking
is used. The number is constant, so that the order of the first hits does not depend on `top_k`.
"""
_HITS_PER_PASSAGE = 8
"""A search by vectors alone requests `top_k` times this number of hits, because several hits may
have the same text, and only one of them is returned.
"""


def fuse(rankings: Sequence[Sequence[Hit]], top_k: int) -> list[Hit]:
    """Merge rankings by reciprocal rank fusion, and return the `top_k` best rows. Rows near the top
    of several rankings come first. Rows with equal scores are in the order of their numbers.
    """
    scores = fused([[hit.row for hit in ranking[:DEPTH]] for ranking in rankings])
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [Hit(row, score) for row, score in best[:top_k]]


class Index(Frozen):
    """An opened index. Its methods block."""

    manifest: Manifest
    passages: PassageStore
    dense: VectorIndex
    lexical: LexicalIndex | None

    @classmethod
    def open(
        cls,
        folder: Path,
        embedder: Embedder,
        *,
        verify: bool = False,
        store: VectorStore = FaissIndex,
    ) -> Self:
        """Open the index in `folder`, which must have been built with the same embedder and store.

        `verify`: read all files and compare their SHA-256 with the manifest. Raises `BadIndex` if
        the index was built with another embedder, or if files are missing or damaged.
        """
        manifest = read_manifest(folder)
        built = (manifest.embedder, manifest.dimension)
        given = (embedder.identity, embedder.dimension)
        if built != given:
            raise BadIndex(
                f"{folder}: the index was built with the embedder {built[0]} (dimension "
                f"{built[1]}), but the configured embedder is {given[0]} (dimension {given[1]}); "
                f"configure {built[0]}, or run `rolegate index build` again."
            )
        check_files(folder, manifest, contents=verify)
        files = folder / manifest.generation
        passages = PassageStore(files)
        dense = store.open(files)
        if not len(passages) == len(dense) == manifest.passages:
            raise BadIndex(
                f"{folder}: the files of this index disagree on the number of passages; "
                "run `rolegate index build` again."
            )
        lexical = LexicalIndex.open(files) if manifest.lexical else None
        return cls(manifest, passages, dense, lexical)

    def search(
        self,
        vectors: Vectors,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        """Return the `top_k` best passages for each query, best first. If several passages have the
        same text, only the best of these is returned.

        `vectors`: vectors of the `queries`, an array of float32 of the shape (batch, dimension).
        `document`: name of the only document to search; its passages are returned in document
        order. None to search all documents. `only`: properties that the documents must have. Scores
        are cosines, or sums of reciprocal ranks if the index has word statistics.
        """
        among = None if only == NO_FILTER else self.passages.admitted(only)
        if document is not None:
            rows = self.passages.documents.get(document, range(0))
            if among is not None and rows.start not in among:
                return [[] for _ in queries]
            return [
                self._open_document(rows, vector, query, top_k)
                for vector, query in zip(vectors, queries, strict=True)
            ]
        if self.lexical is None:
            ranked = self.dense.search(vectors, top_k * _HITS_PER_PASSAGE, among, only)
        else:
            by_meaning = self.dense.search(vectors, DEPTH, among, only)
            by_word = self.lexical.search(queries, DEPTH, among)
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
        """Return the `top_k` best passages of a document, in document order. `rows`: row numbers of
        the document's passages. `vector`: vector of the `query`.
        """
        if not rows:
            return []
        hits = self.dense.within(vector, rows)
        if self.lexical is not None:
            hits = fuse([hits, *self.lexical.search([query], DEPTH, rows)], 2 * DEPTH)
        return [self._passage(hit) for hit in sorted(hits[:top_k])]

    def _distinct(self, hits: Iterable[Hit], top_k: int) -> list[Passage]:
        """Return passages of `hits`, in order, until there are `top_k`. If several passages have
        the same text, only the first of these is returned.
        """
        passages = dict[str, Passage]()
        for hit in hits:
            passage = self._passage(hit)
            passages.setdefault(passage.text, passage)
            if len(passages) == top_k:
                break
        return list(passages.values())

    def _passage(self, hit: Hit) -> Passage:
        return msgspec.structs.replace(self.passages[hit.row], score=hit.score)
