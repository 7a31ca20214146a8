"""Dense search: every query against every vector, exactly, by inner product (FAISS)."""

from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from router.errors import BadIndex
from serving.retrieval.embedder import Vectors

VECTORS = "dense.faiss"
_DECIMALS = 6
_NOISE = 1e-5
_MORE = 8
"""The last bits of a score in single precision depend on how many queries are searched together. So
whatever may be among the best is scored again in double precision, and scores are given out with
fewer decimals than may differ.
"""
_DEEPEST = 4096


class Hit(NamedTuple):
    """A row that was found; rows count from 0, in the order of the corpus."""

    row: int
    score: float


class DenseIndex:
    """The vectors of a corpus, in memory."""

    def __init__(self, vectors: Any) -> None:
        import faiss

        # Else it reads all rows anew for each query of a small batch
        faiss.cvar.distance_compute_blas_threshold = 2
        self._vectors = vectors
        self._exact = isinstance(vectors, faiss.IndexFlatIP)
        self.metric: Literal["l2", "inner_product"] = (
            "l2" if vectors.metric_type == faiss.METRIC_L2 else "inner_product"
        )

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read the vectors. Raises `BadIndex`."""
        import faiss

        try:
            # Mapped where FAISS can do it: processes share the memory, and opening takes no time.
            return cls(faiss.read_index(str(folder / VECTORS), faiss.IO_FLAG_MMAP_IFC))
        except RuntimeError as error:
            raise BadIndex(
                f"{folder / VECTORS}: FAISS cannot read it; build the index again."
            ) from error

    def __len__(self) -> int:
        return int(self._vectors.ntotal)

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return int(self._vectors.d)

    def search(self, queries: Vectors, top_k: int) -> list[list[Hit]]:
        """The `top_k` nearest rows of each of the (batch, dimension) unit vectors, best first, ties
        by row.

        Scores are cosines, with six decimals.
        """
        top_k = min(top_k, len(self))
        depth = min(top_k + _MORE, len(self)) if self._exact else top_k
        scores, rows = self._vectors.search(queries, depth)
        while self._exact and depth < min(len(self), _DEEPEST) and _cut(scores, top_k):
            depth = min(4 * depth, len(self))
            scores, rows = self._vectors.search(queries, depth)
        if self.metric == "l2":  # squared; of unit vectors it is 2 - 2 · cosine
            scores = 1 - scores / 2
        found = rows >= 0  # -1: found fewer
        return [
            self._ranked(query, each[there], score[there])[:top_k]
            for query, each, score, there in zip(queries, rows, scores, found, strict=True)
        ]

    def within(self, query: Vectors, rows: range) -> list[Hit]:
        """All of these rows, the nearest to the unit vector (dimension,) first, with cosines.
        Raises `BadIndex` where this kind of index keeps no vectors.
        """
        try:
            vectors = self._vectors.reconstruct_batch(np.array(rows, dtype=np.int64))
        except RuntimeError as error:
            raise BadIndex(
                "This kind of FAISS index keeps no vectors, so no document of it can be opened."
            ) from error
        scores = (np.float64(vectors) * np.float64(query)).sum(1).round(_DECIMALS)
        return sorted(map(Hit, rows, scores.tolist()), key=lambda hit: (-hit.score, hit.row))

    def vector(self, row: int) -> Vectors:
        """The vector of a row, (dimension,) float32. Raises `RuntimeError` where this kind of
        index keeps none.
        """
        vector: Vectors = self._vectors.reconstruct(row)
        return vector

    def _ranked(
        self, query: Vectors, rows: NDArray[np.int64], scores: NDArray[np.float64]
    ) -> list[Hit]:
        if self._exact:
            scores = (np.float64(self._vectors.reconstruct_batch(rows)) * np.float64(query)).sum(1)
        hits = map(Hit, rows.tolist(), scores.astype(np.float64).round(_DECIMALS).tolist())
        return sorted(hits, key=lambda hit: (-hit.score, hit.row))


def _cut(scores: Vectors, top_k: int) -> bool:
    """Tell whether rows that were not found may be as good as one of the `top_k`."""
    return bool((scores[:, -1] >= scores[:, top_k - 1] - _NOISE).any())


def new_vectors(dimension: int) -> Any:
    """An empty index of FAISS; its `add` takes (batch, dimension) unit vectors, in the order of
    the passages.
    """
    import faiss

    return faiss.IndexFlatIP(dimension)


def write_dense(folder: Path, vectors: Any) -> None:
    """Write the index. Raises `OSError`."""
    import faiss

    unstubbed: Any = faiss
    with (folder / VECTORS).open("wb") as file:  # of a full disk FAISS says nothing, or no OSError
        faiss.write_index(vectors, unstubbed.PyCallbackIOWriter(file.write))
