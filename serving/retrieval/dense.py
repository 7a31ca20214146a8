"""Protocols for dense search, which is search by vectors. A `VectorStore` writes and opens the
vectors of an index, and a `VectorIndex` searches them. Each implementation is a module, such as
`faiss_index`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from router.trace.scope import NO_FILTER, DocumentFilter
from serving.retrieval.embedder import Rows, Vectors


class Hit(NamedTuple):
    """One passage in the result of a search."""

    row: int
    """Row number of the passage in the index, from 0."""
    score: float
    """Score of the passage for the query; a higher score is better."""


class VectorIndex(Protocol):
    """The vectors of an index, one unit vector per passage (row). Methods block and are
    thread-safe.

    Scores are cosines. The hits of a query do not depend on other queries in the same batch.
    """

    @property
    def dimension(self) -> int:
        """Number of components of a vector."""

    def __len__(self) -> int: ...

    def search(
        self,
        queries: Vectors,
        top_k: int,
        among: Rows | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Hit]]:
        """Return the `top_k` nearest rows for each query, best first. Rows with equal scores are in
        the order of their numbers.

        `queries`: unit vectors, an array of the shape (batch, dimension). `among`: numbers of the
        rows to search, sorted; None for all rows. `only`: the filter from which the caller has
        computed `among`. Databases such as Milvus apply the filter themselves.
        """

    def within(self, query: Vectors, rows: range) -> list[Hit]:
        """Return a hit for each of `rows`, the row nearest to `query` first. `query`: a unit vector
        of the shape (dimension,).

        Raises `BadIndex` if the index does not store the original vectors.
        """

    def vectors(self, rows: Rows) -> Vectors:
        """Return the stored vectors of `rows` as an array of the shape (rows, dimension).

        Raises `RuntimeError` if the index does not store the original vectors.
        """


class VectorStore(Protocol):
    """A way to store the vectors of an index and to search them, such as a FAISS file or Milvus.
    Methods block.
    """

    name: str
    """Name of the store. A build writes it to the manifest of the index. If the manifest has
    another name, the next build stores the vectors again.
    """

    def build(
        self, folder: Path, dimension: int, batches: Iterable[Vectors]
    ) -> Mapping[int, float]:
        """Write a new index to `folder`, which already contains the passages. `batches`: unit
        vectors in the order of the passages, as arrays of the shape (batch, dimension).

        Return the recall of searches: the keys are values of `top_k`, and the values are the mean
        share of the `top_k` nearest passages that a search finds. Empty if searches are exact.
        Raises `BadIndex` if the settings do not suit the vectors, `OSError` if writing fails, and
        the errors that iterating over `batches` raises.
        """

    def open(self, folder: Path) -> VectorIndex:
        """Open the index that `build` wrote to `folder`. Raises `BadIndex` if the index cannot be
        read.
        """

    def is_complete(self, folder: Path) -> bool:
        """Return True if the store has all vectors of the index in `folder`, False if a database
        has lost some of them. Raises `UpstreamUnavailable` if the database cannot be reached.
        """
