"""Vectors in a FAISS file. An index that rolegate builds uses exact search by inner product. An
adopted index may be of any kind that FAISS can read.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from router.errors import BadIndex
from router.trace.scope import NO_FILTER, DocumentFilter
from serving.files import replacing
from serving.retrieval.dense import Hit
from serving.retrieval.embedder import Rows, Vectors

VECTORS = "dense.faiss"
_DECIMALS = 6
_NOISE = 1e-5
_MORE = 8
"""FAISS is asked for this number of rows in addition to `top_k`. FAISS computes scores in single
precision, and the last bits of a score depend on the batch. So the returned rows are scored again
in double precision, and scores are rounded to `_DECIMALS` places. `_NOISE` is an upper bound of the
error of FAISS's scores.
"""
_MAX_DEPTH = 4096
"""When FAISS has returned this number of rows, it is not asked for more, even if scores are almost
equal.
"""


def read_faiss(path: Path) -> Any:
    """Open a FAISS file, and return the index in it. Raises `BadIndex` if FAISS cannot read it."""
    import faiss

    try:
        # Memory-mapped if FAISS supports it for this kind of index. Then processes share the
        # memory, and opening takes no time.
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise BadIndex(
            f"{path}: FAISS cannot read the file; run `rolegate index build` again."
        ) from error


def write_faiss(index: Any, path: Path) -> None:
    """Write a FAISS index to the file `path`, which is replaced atomically."""
    import faiss

    untyped: Any = faiss
    # Write through a Python file, because FAISS itself does not report a full disk as `OSError`
    with replacing(path) as new, new.open("wb") as file:
        faiss.write_index(index, untyped.PyCallbackIOWriter(file.write))


class FaissIndex:
    """Implementation of `VectorIndex` with FAISS. The class itself (not an instance) is the
    `VectorStore` for exact search.
    """

    name = "Flat"

    def __init__(self, vectors: Any) -> None:
        """`vectors`: an opened FAISS index."""
        import faiss

        # For batches of this number of queries or more, FAISS uses BLAS. For smaller batches, it
        # reads all rows again for each query.
        faiss.cvar.distance_compute_blas_threshold = 2
        self._vectors = vectors
        self._is_exact = isinstance(vectors, faiss.IndexFlatIP)
        is_l2 = vectors.metric_type == faiss.METRIC_L2
        self.metric: Literal["inner_product", "l2"] = "l2" if is_l2 else "inner_product"
        self.dimension = int(vectors.d)

    @classmethod
    def build(cls, folder: Path, dimension: int, batches: Iterable[Vectors]) -> Mapping[int, float]:
        """Write a new index, as `VectorStore.build` specifies. Only one batch is in memory at a
        time.
        """
        import faiss

        # Write the format of a Flat index: a header, with the number of rows in its bytes 8 to 15
        # and the number of floats in its last 8 bytes, and then the floats
        header = bytearray(faiss.serialize_index(faiss.IndexFlatIP(dimension)))
        rows = 0
        with (folder / VECTORS).open("wb") as file:
            file.write(header)
            for batch in batches:
                file.write(np.ascontiguousarray(batch, dtype=np.float32).tobytes())
                rows += len(batch)
            header[8:16] = rows.to_bytes(8, "little")
            header[-8:] = (rows * dimension).to_bytes(8, "little")
            file.seek(0)
            file.write(header)
        return {}

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the index, as `VectorStore.open` specifies."""
        return cls(read_faiss(folder / VECTORS))

    @classmethod
    def is_complete(cls, folder: Path) -> bool:
        """Return True, because no database is used that could lose vectors."""
        return True

    def __len__(self) -> int:
        return int(self._vectors.ntotal)

    def search(
        self,
        queries: Vectors,
        top_k: int,
        among: Rows | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Hit]]:
        """Search all rows or the rows `among`, as `VectorIndex.search` specifies."""
        size = len(self) if among is None else len(among)
        if not size:
            return [[] for _ in queries]
        selection = None if among is None else self._among(among)
        top_k = min(top_k, size)
        depth = min(top_k + _MORE, size) if self._is_exact else top_k
        scores, rows = self._vectors.search(queries, depth, params=selection)
        while self._is_exact and depth < min(size, _MAX_DEPTH) and _is_cut(scores, top_k):
            depth = min(4 * depth, size)
            scores, rows = self._vectors.search(queries, depth, params=selection)
        if self.metric == "l2":  # for unit vectors, the squared distance is 2 - 2 · cosine
            scores = 1 - scores / 2

        ranked = []
        for query, query_rows, query_scores in zip(queries, rows, scores, strict=True):
            is_hit = query_rows >= 0  # FAISS pads missing hits with -1
            if self._is_exact:
                hits = self.scored(query, query_rows[is_hit])
            else:
                hits = _sorted(query_rows[is_hit].tolist(), query_scores[is_hit])
            ranked.append(hits[:top_k])
        return ranked

    def within(self, query: Vectors, rows: range) -> list[Hit]:
        """Return a hit for each of `rows`, as `VectorIndex.within` specifies."""
        try:
            return self.scored(query, np.array(rows, dtype=np.int64))
        except RuntimeError as error:
            raise BadIndex(
                "this kind of FAISS index does not store the original vectors, so executors cannot "
                "open its documents; build the index of these documents with rolegate"
            ) from error

    def vectors(self, rows: Rows) -> Vectors:
        """Return the stored vectors of `rows`, as `VectorIndex.vectors` specifies."""
        vectors: Vectors = self._vectors.reconstruct_batch(rows)
        return vectors

    def scored(self, query: Vectors, rows: Rows) -> list[Hit]:
        """Return a hit with the exact score for each of `rows`, the row nearest to `query`
        first.
        """
        return _sorted(rows.tolist(), self._cosines(query, rows))

    def _among(self, rows: Rows) -> Any:
        """Return FAISS's parameters for a search that is limited to `rows`. The parameters can be
        used for all kinds of indexes, because kinds other than IVF ignore `nprobe`.
        """
        import faiss

        untyped: Any = faiss
        nprobe = getattr(self._vectors, "nprobe", 1)
        return untyped.SearchParametersIVF(sel=untyped.IDSelectorBatch(rows), nprobe=nprobe)

    def _cosines(self, query: Vectors, rows: Rows) -> NDArray[np.float64]:
        vectors = np.float64(self.vectors(rows))
        cosines: NDArray[np.float64] = (vectors * np.float64(query)).sum(1)
        return cosines


def _is_cut(scores: Vectors, top_k: int) -> bool:
    """Return True if FAISS must be asked for more rows, because rows that it has not returned may
    belong to the `top_k` best rows. `scores`: FAISS's scores for each query, best first.
    """
    return bool((scores[:, -1] >= scores[:, top_k - 1] - _NOISE).any())


def _sorted(rows: Iterable[int], scores: NDArray[np.float64]) -> list[Hit]:
    """Return hits for rows and their scores, rounded to `_DECIMALS` places. The best hit is first;
    hits with equal scores are in the order of their rows.
    """
    hits = map(Hit, rows, scores.astype(np.float64).round(_DECIMALS).tolist())
    return sorted(hits, key=lambda hit: (-hit.score, hit.row))
