"""Dense search: every query against every vector, exactly, by inner product (FAISS)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from router.errors import BadIndex
from serving.retrieval.embedder import Vectors
from serving.retrieval.hit import Hit

VECTORS = "dense.faiss"
_L2 = 1
"""FAISS's number for Euclidean distance, squared; of unit vectors it is 2 - 2 · cosine."""


class DenseIndex:
    """The vectors of a corpus, in memory."""

    def __init__(self, vectors: Any) -> None:
        self._vectors = vectors

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

        Scores are cosines.
        """
        scores, rows = self._vectors.search(queries, min(top_k, len(self)))
        if self.metric == "l2":
            scores = 1 - scores / 2
        ranked = [
            [Hit(row, score) for row, score in zip(*found, strict=True) if row >= 0]  # -1: found fewer
            for found in zip(rows.tolist(), scores.tolist(), strict=True)
        ]
        return [sorted(hits, key=lambda hit: (-hit.score, hit.row)) for hits in ranked]

    def vector(self, row: int) -> Vectors:
        """The vector of a row, (dimension,) float32. Raises `RuntimeError` where this kind of index keeps none."""
        vector: Vectors = self._vectors.reconstruct(row)
        return vector


def write_dense(folder: Path, dimension: int, batches: Iterable[Vectors]) -> None:
    """Write the (batch, dimension) unit vectors, in order."""
    import faiss

    vectors = faiss.IndexFlatIP(dimension)
    for batch in batches:
        vectors.add(batch)
    faiss.write_index(vectors, str(folder / VECTORS))
