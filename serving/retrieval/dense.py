"""The seam of dense search. Each vector store is one file, such as `faiss_index.py`."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from serving.retrieval.embedder import Vectors


class Hit(NamedTuple):
    """A search result."""

    row: int
    """Row of the passage in the corpus, from 0."""
    score: float


class VectorIndex(Protocol):
    """The vectors of a corpus, one unit vector a row. Methods block and are thread-safe.

    Scores are cosines. Equal queries get equal hits, also in different batches.
    """

    @classmethod
    def build(cls, folder: Path, dimension: int, batches: Iterable[Vectors]) -> None:
        """Write an index of (batch, dimension) unit vectors, in the order of the passages.

        Raises `OSError`, and what `batches` raises.
        """

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open what `build` wrote. Raises `BadIndex`."""

    @property
    def dimension(self) -> int:
        """The length of a vector."""

    def __len__(self) -> int: ...

    def search(self, queries: Vectors, top_k: int) -> list[list[Hit]]:
        """Return the `top_k` nearest rows of each of the (batch, dimension) unit vectors, best
        first, ties by row.
        """

    def within(self, query: Vectors, rows: range) -> list[Hit]:
        """Return all of `rows`, the nearest to the unit vector (dimension,) first.

        Raises `BadIndex` if the index does not keep its vectors.
        """

    def vector(self, row: int) -> Vectors:
        """Return the vector of a row, (dimension,) float32.

        Raises `RuntimeError` if the index does not keep its vectors.
        """
