"""Dense search: every query against every vector, exactly, by inner product (FAISS)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from router.errors import BadIndex
from serving.retrieval.embedder import Vectors


class Hit(NamedTuple):
    """Rows count from 0, in the order of the corpus."""

    row: int
    score: float


Rows: TypeAlias = NDArray[np.int64]
VECTORS = "dense.faiss"
_DECIMALS, _NOISE, _MORE = 6, 1e-5, 8
"""The last bits of a score in single precision depend on how many queries are searched together. So whatever may be
among the best is scored again in double precision, and scores are given out with fewer decimals than may differ."""
_BLOCK, _PIECE = 1 << 17, 1 << 12
"""Rows that all queries of a batch go over together: their scores fit into memory, and the rows into a core's cache."""
_L2 = 1
"""FAISS's number for Euclidean distance, squared; of unit vectors it is 2 - 2 · cosine."""


class DenseIndex:
    """The vectors of a corpus, in memory."""

    def __init__(self, vectors: Any) -> None:
        self._vectors, self._bytes = vectors, _bytes(vectors)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read the vectors. Raises `BadIndex`."""
        import faiss

        try:
            # Mapped where FAISS can do it: processes share the memory, and opening takes no time.
            return cls(faiss.read_index(str(folder / VECTORS), faiss.IO_FLAG_MMAP_IFC))
        except RuntimeError as error:
            raise BadIndex(f"{folder / VECTORS}: FAISS cannot read it; build the index again.") from error

    def __len__(self) -> int:
        return int(self._vectors.ntotal)

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return int(self._vectors.d)

    @property
    def metric(self) -> str:
        """`l2` or `inner_product`."""
        return "l2" if self._vectors.metric_type == _L2 else "inner_product"

    def search(self, queries: Vectors, top_k: int) -> list[list[Hit]]:
        """The `top_k` nearest rows of each of the (batch, dimension) unit vectors, best first, ties by row.

        Scores are cosines, with six decimals.
        """
        top_k = min(top_k, len(self))
        if self._bytes is None:
            return [hits[:top_k] for hits in self._found(queries, top_k)]
        candidates = self._scanned(queries, top_k) if len(queries) > 1 else self._probed(queries, top_k)
        return [self._ranked(*found)[:top_k] for found in zip(queries, candidates, strict=True)]

    def _ranked(self, query: Vectors, rows: Rows) -> list[Hit]:
        vectors = np.float64(self._vectors.reconstruct_batch(rows))
        return _hits(rows, (vectors * np.float64(query)).sum(1))

    def _probed(self, query: Vectors, top_k: int) -> list[Rows]:
        """What may be among the best for one query, (1, dimension)."""
        scores, rows = self._vectors.search(query, min(top_k + _MORE, len(self)))
        if rows.shape[1] < len(self) and scores[0, -1] >= scores[0, top_k - 1] - _NOISE:
            return self._scanned(query, top_k)  # there may be more that are as good
        return [rows[0]]

    def _scanned(self, queries: Vectors, top_k: int) -> list[Rows]:
        """What may be among the best for each query. FAISS would read all rows anew for each of them; as a product of
        matrices it takes a tenth of the time.
        """
        candidates: list[list[Rows]] = [[] for _ in queries]
        for first in range(0, len(self), _BLOCK):
            scores = self._products(queries, first, min(first + _BLOCK, len(self)))
            depth = min(top_k, scores.shape[1])
            least = np.partition(scores, -depth, axis=1)[:, -depth] - _NOISE
            for rows, found, limit in zip(candidates, scores, least, strict=True):
                rows.append(first + np.flatnonzero(found >= limit))
        return [np.concatenate(rows) for rows in candidates]

    def _products(self, queries: Vectors, first: int, end: int) -> Vectors:
        """With the rows from `first` to before `end`, (batch, rows) float32."""
        assert self._bytes is not None
        products = np.empty((len(queries), end - first), dtype=np.float32)
        piece = np.empty((_PIECE, self.dimension), dtype=np.float32)  # in a file, they begin at any byte
        for start in range(first, end, _PIECE):
            rows = min(_PIECE, end - start)
            piece.view(np.uint8)[:rows] = self._bytes[start : start + rows]
            np.matmul(queries, piece[:rows].T, out=products[:, start - first : start - first + rows])
        return products

    def _found(self, queries: Vectors, top_k: int) -> list[list[Hit]]:
        """What FAISS finds in an index of another kind, as it scores it."""
        scores, rows = self._vectors.search(queries, top_k)
        if self.metric == "l2":
            scores = 1 - scores / 2
        return [
            _hits(found[found >= 0], each[found >= 0].astype(np.float64))  # -1: found fewer
            for found, each in zip(rows, scores, strict=True)
        ]

    def vector(self, row: int) -> Vectors:
        """The vector of a row, (dimension,) float32. Raises `RuntimeError` where this kind of index keeps none."""
        vector: Vectors = self._vectors.reconstruct(row)
        return vector


def _hits(rows: Rows, scores: NDArray[np.float64]) -> list[Hit]:
    hits = map(Hit, rows.tolist(), scores.round(_DECIMALS).tolist())
    return sorted(hits, key=lambda hit: (-hit.score, hit.row))


def _bytes(vectors: Any) -> NDArray[np.uint8] | None:
    """All vectors, (rows, 4 · dimension), where they are kept as they are."""
    import faiss

    if not isinstance(vectors, faiss.IndexFlatIP):
        return None
    numbers = faiss.rev_swig_ptr(vectors.get_xb(), vectors.ntotal * vectors.d)
    whole: NDArray[np.uint8] = numbers.view(np.uint8).reshape(-1, 4 * vectors.d)
    return whole


def write_dense(folder: Path, dimension: int, batches: Iterable[Vectors]) -> None:
    """Write the (batch, dimension) unit vectors, in order."""
    import faiss

    unstubbed: Any = faiss
    vectors = faiss.IndexFlatIP(dimension)
    for batch in batches:
        vectors.add(batch)
    with (folder / VECTORS).open("wb") as file:  # of a full disk FAISS says nothing, or no OSError
        faiss.write_index(vectors, unstubbed.PyCallbackIOWriter(file.write))
