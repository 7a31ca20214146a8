"""An index: a folder with passages, their vectors and, if asked for, their word statistics."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from router.errors import BadIndex
from router.protocol import Passage
from serving.retrieval.dense import DenseIndex, Hit
from serving.retrieval.embedder import Embedder, Vectors
from serving.retrieval.lexical import LexicalIndex
from serving.retrieval.manifest import Manifest, check_files, read_manifest
from serving.retrieval.passages import PassageStore

DEPTH = 100
"""Ranks that count: fixed, so that the order of the first hits is the same for every `top_k`."""
_HITS_A_PASSAGE = 8
"""Hits for one passage that is wanted, so that copies of one text do not crowd out others."""


def fuse(rankings: Sequence[Sequence[Hit]], top_k: int, k: int = 60) -> list[Hit]:
    """One ranking from several: a row scores the sum of 1 / (k + rank), ranks from 1; ties go
    to the lower row.
    """
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
        dense: DenseIndex,
        lexical: LexicalIndex | None,
    ) -> None:
        self.manifest = manifest
        self.passages = passages
        self.dense = dense
        self.lexical = lexical

    @classmethod
    def open(cls, folder: Path, embedder: Embedder, *, verify: bool = False) -> Self:
        """Open a finished index of this very embedder; `verify` reads every file to compare its
        SHA-256.

        Raises `BadIndex`.
        """
        manifest = read_manifest(folder)
        built = (manifest.embedder, manifest.dimension)
        given = (embedder.identity, embedder.dimension)
        if built != given:
            raise BadIndex(
                f"{folder}: built with the embedder {built[0]} (dimension {built[1]}), "
                f"opened with {given[0]} "
                f"(dimension {given[1]}); open it with the former, or build the index again."
            )
        check_files(folder, manifest, contents=verify)
        files = folder / manifest.generation
        passages = PassageStore(files)
        dense = DenseIndex.open(files)
        if not len(passages) == len(dense) == manifest.passages:
            raise BadIndex(
                f"{folder}: its files disagree on the number of passages; build the index again."
            )
        return cls(
            manifest, passages, dense, LexicalIndex.open(files) if manifest.lexical else None
        )

    def search(
        self, vectors: Vectors, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        """The `top_k` best passages of each query, best first; of passages with the same text, the
        best one only.

        `vectors` are the embedded `queries`, (batch, dimension) float32. Scores are cosines, or
        sums of reciprocal ranks where the index has word statistics. `document`: as for
        `Retriever.search`.
        """
        if document is not None:
            rows = self.passages.documents.get(document, range(0))
            return [
                self._opened(rows, vector, query, top_k)
                for vector, query in zip(vectors, queries, strict=True)
            ]
        if self.lexical is None:
            ranked = self.dense.search(vectors, top_k * _HITS_A_PASSAGE)
        else:
            by_meaning = self.dense.search(vectors, DEPTH)
            by_word = self.lexical.search(queries, DEPTH)
            ranked = [
                fuse(rankings, 2 * DEPTH) for rankings in zip(by_meaning, by_word, strict=True)
            ]
        return [self._distinct(hits, top_k) for hits in ranked]

    def _opened(self, rows: range, vector: Vectors, query: str, top_k: int) -> list[Passage]:
        hits = self.dense.within(vector, rows) if rows else []
        if self.lexical is not None and rows:
            hits = fuse([hits, *self.lexical.search([query], DEPTH, rows)], 2 * DEPTH)
        return [
            msgspec.structs.replace(self.passages[row], score=score)
            for row, score in sorted(hits[:top_k])
        ]

    def _distinct(self, hits: Iterable[Hit], top_k: int) -> list[Passage]:
        found: dict[str, Passage] = {}
        for row, score in hits:
            passage = self.passages[row]
            found.setdefault(passage.text, msgspec.structs.replace(passage, score=score))
            if len(found) == top_k:
                break
        return list(found.values())
