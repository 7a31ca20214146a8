"""Search that compares only candidates: something else proposes them, and their exact scores
decide.
"""

from collections.abc import Callable, Iterable
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
Find = Callable[[Vectors, int, Ids | None, DocumentFilter], Iterable[Ids]]
"""Function that finds candidates. Arguments: queries, the number of candidates of a query, and the
passages to search, by their ids and by the filter that they pass; see `VectorIndex.search`. It may
also return ids of other passages, or of none.
"""
_IDS = "ids.npy"
_LEAST = 100
_SAMPLE = 200
_TIE = 1e-6


class CandidateIndex(FaissIndex):
    """An exact index in a mapped file, of which a search compares only candidates."""

    def __init__(self, folder: Path, find: Find, few: int = 0) -> None:
        """`few`: number of rows up to which a search among some rows is exact."""
        super().__init__(read_faiss(folder / VECTORS))
        self._ids: Ids = np.load(folder / _IDS)
        self._order = np.argsort(self._ids)
        self._find = find
        self._few = few

    def search(
        self,
        queries: Vectors,
        top_k: int,
        among: Rows | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Hit]]:
        """See `VectorIndex.search`. At least 100 candidates are compared, so that the order of the
        first hits does not depend on `top_k`.
        """
        ids = None
        if among is not None:
            if len(among) <= self._few:
                return super().search(queries, top_k, among)
            ids = self._ids[among]
        ranked = []
        candidates = self._find(queries, max(2 * top_k, _LEAST), ids, only)
        for query, found in zip(queries, candidates, strict=True):
            places = np.searchsorted(self._ids, found, sorter=self._order) % len(self)
            rows = self._order[places]
            is_row = self._ids[rows] == found
            if among is not None:
                is_row &= np.isin(rows, among)
            ranked.append(self.scored(query, rows[is_row])[:top_k])
        return ranked

    def recall(self) -> dict[int, float]:
        """Return the recall at 3 and at 5: the share of the nearest other passages that searches
        for some of the passages find. Nothing if there are too few passages.
        """
        if len(self) <= 5:
            return {}
        rows = np.random.default_rng(0).choice(len(self), min(_SAMPLE, len(self)), replace=False)
        queries = self.vectors(rows)
        # One search for each, because a server may have a timeout for searches of usual size
        found = [self.search(query[None], 6)[0] for query in queries]
        pairs = [*zip(found, super().search(queries, 6), strict=True)]
        return {
            top_k: fmean(
                sum(hit.score > nearest[top_k].score - _TIE for hit in hits[1 : top_k + 1]) / top_k
                for hits, nearest in pairs
            )
            for top_k in (3, 5)
        }


def write_ids(folder: Path) -> Ids:
    """Write and return the ids of an index in `folder`. An id is a digest of a vector with its
    passage and metadata.
    """
    passages = PassageStore(folder)
    exact = FaissIndex.open(folder)
    ids = np.empty(len(passages), np.int64)
    for row in range(len(ids)):
        content = exact.vectors(np.array([row])).tobytes() + passages.line(row)
        ids[row] = int.from_bytes(blake2b(content, digest_size=8).digest(), signed=True)
    np.save(folder / _IDS, ids)
    return ids
