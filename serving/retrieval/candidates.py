"""Base class of approximate indexes. A search first gets candidates from a compact index or a
server, and then ranks the candidates by their exact scores.
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
"""Ids of passages. An id is 64 bits of a digest of the passage. Unlike row numbers, ids do not
change from build to build.
"""
BLOCK = 8192
"""Number of vectors to read or store at a time."""
IDS = "ids.npy"
"""Name of the file with the id of each row."""
_LEAST_CANDIDATES = 100
"""Min number of candidates of a query. With fewer candidates, the order of the first hits could
depend on `top_k`.
"""
_SAMPLE = 200
"""Max number of sample passages for measuring the recall."""
_FURTHEST = 5
_TIE = 1e-6
"""Max difference between two scores that count as equal."""


class CandidateIndex(FaissIndex, ABC):
    """An index with the exact vectors in a memory-mapped file. A search reads only the vectors of
    candidates.
    """

    few = 100_000
    """If a filter leaves at most this number of rows, a search scores all these rows, instead of
    asking for candidates.
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
        """Return the ids of about `count` candidates for each query. Ids that belong to no row, or
        to a row outside `among`, are allowed; `search` drops them. `queries`, `among` and `only`
        are as in `VectorIndex.search`.
        """

    def search(
        self,
        queries: Vectors,
        top_k: int,
        among: Rows | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Hit]]:
        """Search the candidates, as `VectorIndex.search` specifies."""
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
        """Measure the recall with searches for sample passages. The keys of the result are 3 and 5.
        A value is the share of the 3 (or 5) nearest passages that are found, as a mean over the
        searches. Empty if there are at most 5 passages.
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
    """Return the share of the `top_k` nearest hits that were found, as a mean over the queries.
    `found`: hits of the approximate search, for each query. `nearest`: hits of the exact search,
    for each query. The first hit of a query is ignored, because it is the sample passage itself.
    """
    return fmean(
        sum(hit.score > best[top_k].score - _TIE for hit in hits[1 : top_k + 1]) / top_k
        for hits, best in zip(found, nearest, strict=True)
    )


def write_ids(folder: Path) -> Ids:
    """Compute the ids of all passages in `folder`, the folder of a generation (one build of the
    index). Write the ids to the file `IDS` there, and return them in the order of the rows. An id
    is a digest of a passage, its vector and its metadata.
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
