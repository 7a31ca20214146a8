"""Base of the approximate stores. A smaller index or a server proposes candidates, and these are
ranked by their exact scores.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from statistics import fmean

import numpy as np

from router.trace.scope import NO_FILTER, DocumentFilter
from serving.retrieval.dense import Hit
from serving.retrieval.embedder import Rows, Vectors
from serving.retrieval.faiss_index import VECTORS, FaissIndex, read_faiss
from serving.retrieval.passages import PassageStore

Ids = Rows
"""Ids of passages: 64 bits of a digest. Unlike row numbers, they stay the same in every build."""
BLOCK = 8192
"""Number of vectors that are read, or stored, together."""
IDS = "ids.npy"
"""File of the ids, by row."""
_LEAST_CANDIDATES = 100
"""Min number of candidates, so that the order of the first hits does not depend on `top_k`."""
_SAMPLE = 200
_FURTHEST = 5
_TIE = 1e-6
"""Difference of scores up to which a hit counts as near as another."""


class CandidateIndex(FaissIndex, ABC):
    """An exact index in a mapped file. A search computes the scores of the candidates only."""

    few = 100_000
    """Max number of rows in `among` for which all scores are computed, without candidates."""

    def __init__(self, folder: Path) -> None:
        super().__init__(read_faiss(folder / VECTORS))
        self.ids: Ids = read_ids(folder)
        """The id of each row."""
        self._order = np.argsort(self.ids)

    @abstractmethod
    def candidates(
        self, queries: Vectors, count: int, among: Rows | None, only: DocumentFilter
    ) -> Iterable[Ids]:
        """Return the ids of about `count` candidates for each query. `search` drops ids that belong
        to no row, or to a row outside `among`.
        """

    def search(
        self,
        queries: Vectors,
        top_k: int,
        among: Rows | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Hit]]:
        """See `VectorIndex.search`."""
        if among is not None and len(among) <= self.few:
            return super().search(queries, top_k, among)
        count = max(2 * top_k, _LEAST_CANDIDATES)
        ranked = []
        candidates = self.candidates(queries, count, among, only)
        for query, ids in zip(queries, candidates, strict=True):
            places = np.searchsorted(self.ids, ids, sorter=self._order) % len(self)
            rows = self._order[places]
            rows = rows[self.ids[rows] == ids]
            if among is not None:
                rows = rows[np.isin(rows, among)]
            ranked.append(self.scored(query, rows)[:top_k])
        return ranked

    def recall(self) -> dict[int, float]:
        """Return the recall at 3 and at 5: of the 3 and 5 passages nearest to a passage, the share
        that a search for it finds, as a mean over a sample. Empty if there are too few passages.
        """
        if len(self) <= _FURTHEST:
            return {}
        rows = np.random.default_rng(0).choice(len(self), min(_SAMPLE, len(self)), replace=False)
        queries = self.vectors(rows)
        # One search for each, because a server may have a timeout for searches of usual size
        found = [self.search(query[None], _FURTHEST + 1)[0] for query in queries]
        nearest = FaissIndex.search(self, queries, _FURTHEST + 1)
        return {top_k: _recall(top_k, found, nearest) for top_k in (3, _FURTHEST)}


def _recall(top_k: int, found: Sequence[Sequence[Hit]], nearest: Sequence[Sequence[Hit]]) -> float:
    """Return the mean share of the `top_k` nearest hits that are in `found`. The first hit of a
    query, the passage itself, does not count.
    """
    return fmean(
        sum(hit.score > best[top_k].score - _TIE for hit in hits[1 : top_k + 1]) / top_k
        for hits, best in zip(found, nearest, strict=True)
    )


def write_ids(folder: Path) -> Ids:
    """Write and return the ids of an index in `folder`. An id is a digest of a vector with its
    passage and metadata.
    """
    passages = PassageStore(folder)
    exact = FaissIndex.open(folder)
    ids = np.empty(len(passages), np.int64)
    for start in range(0, len(ids), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(ids)))
        for row, vector in zip(rows.tolist(), exact.vectors(rows), strict=True):
            digest = blake2b(vector.tobytes() + passages.line(row), digest_size=8)
            ids[row] = int.from_bytes(digest.digest(), signed=True)
    np.save(folder / IDS, ids)
    return ids


def read_ids(folder: Path) -> Ids:
    """Return the ids that `write_ids` wrote to `folder`."""
    ids: Ids = np.load(folder / IDS)
    return ids
