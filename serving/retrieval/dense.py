"""Protocol of a vector store for dense search. Each implementation is one module, such as
`faiss_index`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from serving.retrieval.embedder import Vectors


class Hit(NamedTuple):
    """One result of a search: a row and its score."""

    row: int
    """Row number of the passage in the corpus, from 0."""
    score: float


class VectorIndex(Protocol):
    """The vectors of a corpus, one unit vector per passage (row). Methods block and are
    thread-safe.

    Scores are cosines. A query gets the same hits in every batch.
    """

    @classmethod
    def build(cls, folder: Path, dimension: int, batches: Iterable[Vectors]) -> None:
        """Write a new index to `folder`. `batches`: unit vectors in the order of the passages, as
        arrays of the shape (batch, dimension).

        Raises `OSError` if writing fails, and the errors that iterating over `batches` raises.
        """

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the index that `build` wrote to `folder`. Raises `BadIndex`."""

    @property
    def dimension(self) -> int:
        """Number of components of a vector."""

    def __len__(self) -> int: ...

    def search(
        self, queries: Vectors, top_k: int, among: NDArray[np.int64] | None = None
    ) -> list[list[Hit]]:
        """Return the `top_k` nearest rows for each query, best first. Rows with equal scores are in
        the order of their numbers.

        `queries`: unit vectors, an array of the shape (batch, dimension). `among`: numbers of the
        rows to search, sorted; None for all rows.
        """

    def within(self, query: Vectors, rows: range) -> list[Hit]:
        """Return all of `rows` with their scores, the nearest to `query` first. `query`: a unit
        vector of the shape (dimension,).

        Raises `BadIndex` if the index does not keep its vectors.
        """

    def vector(self, row: int) -> Vectors:
        """Return the stored vector of a row, an array of float32 of the shape (dimension,).

        Raises `RuntimeError` if the index does not keep its vectors.
        """
