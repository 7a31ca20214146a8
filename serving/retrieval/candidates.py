"""Base class of approximate indexes. A compact index or a server proposes candidates, which are
then ranked by their exact scores.
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
"""Ids of passages: 64 bits of a digest. Unlike row numbers, they do not change from build to build.
"""
BLOCK = 8192
"""Number of vectors that are read or stored at a time."""
IDS = "ids.npy"
"""Name of the file with the id of each row."""
_LEAST_CANDIDATES = 100
"""Min number of candidates, so that the order of the first hits does not depend on `top_k`."""
_SAMPLE = 200
_FURTHEST = 5
_TIE = 1e-6
"""Max difference of scores that count as equal."""


class CandidateIndex(FaissIndex, ABC):
    """An exact index in a memory-mapped file. A search computes exact scores of the candidates
    only.
    """

    few = 100_000
    """If a search is limited to at most this number of rows, all of them are scored, without
    candidates.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(read_faiss(folder / VECTORS))
        self.ids: Ids = read_ids(folder)
        """The id of each row."""
        self._order = np.argsort(self.ids)

    @abstractmethod
    def candidates(
        self, queries: Vectors, count: int, among: Rows | None, only: DocumentFilter
    ) -> Iterable[Ids]:
        """Return the ids of about `count` candidates for each query. The ids may belong to no row,
        or to a row outside `among`; `search` drops these.
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
        """Return the recall at 3 and at 5, as a mean over sample passages: the share of the 3 or 5
        nearest passages that a search finds. Empty if there are too few passages.
        """
        if len(self) <= _FURTHEST:
            return {}
        rows = np.random.default_rng(0).choice(len(self), min(_SAMPLE, len(self)), replace=False)
        queries = self.vectors(rows)
        # Search one by one, because a server's timeout may be too short for one large search
        found = [self.search(query[None], _FURTHEST + 1)[0] for query in queries]
        nearest = FaissIndex.search(self, queries, _FURTHEST + 1)
        return {top_k: _recall(top_k, found, nearest) for top_k in (3, _FURTHEST)}


def _recall(top_k: int, found: Sequence[Sequence[Hit]], nearest: Sequence[Sequence[Hit]]) -> float:
    """Return the mean share of the `top_k` nearest hits that were found. The first hit of each
    query, which is the passage itself, is ignored.
    """
    return fmean(
        sum(hit.score > best[top_k].score - _TIE for hit in hits[1 : top_k + 1]) / top_k
        for hits, best in zip(found, nearest, strict=True)
    )


def write_ids(folder: Path) -> Ids:
    """Compute the ids of an index's passages, write them to `folder`, and return them. An id is a
    digest of the passage with its vector and metadata.
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
