"""Dense search: every query against every vector, exactly, by inner product (FAISS)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from router.errors import BadIndex
from serving.retrieval.embedder import Vectors
from serving.retrieval.hit import Hit

VECTORS = "dense.faiss"


class DenseIndex:
    """The vectors of a corpus, in memory."""

    def __init__(self, vectors: Any) -> None:
        self._vectors = vectors

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read the vectors. Raises `BadIndex`."""
        import faiss

        try:
            return cls(faiss.read_index(str(folder / VECTORS)))
        except RuntimeError as error:
            raise BadIndex(f"{folder / VECTORS}: FAISS cannot read it; build the index again.") from error

    def __len__(self) -> int:
        return int(self._vectors.ntotal)

    def search(self, queries: Vectors, top_k: int) -> list[list[Hit]]:
        """The `top_k` nearest rows of each of the (batch, dimension) unit vectors, best first; scores are cosines."""
        scores, rows = self._vectors.search(queries, min(top_k, len(self)))
        return [
            [Hit(row, score) for row, score in zip(*found, strict=True)]
            for found in zip(rows.tolist(), scores.tolist(), strict=True)
        ]


def write_dense(folder: Path, dimension: int, batches: Iterable[Vectors]) -> None:
    """Write the (batch, dimension) unit vectors, in order."""
    import faiss

    vectors = faiss.IndexFlatIP(dimension)
    for batch in batches:
        vectors.add(batch)
    faiss.write_index(vectors, str(folder / VECTORS))
