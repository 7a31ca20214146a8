"""Approximate search with a compact FAISS index in memory, such as `HNSW32,SQ8`. The compact index
finds candidates. Their exact scores are then computed from the vectors on disk.

A build appends new passages to the compact index. HNSW cannot remove entries. So the entries of
removed passages stay in the compact index, with ids that belong to no passage. The cost of a build
depends only on what has changed. When at most half of the entries still belong to passages, a new
compact index is trained and filled. An interrupted build continues from the last copy on disk.
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from router.errors import BadIndex
from router.trace.scope import DocumentFilter
from serving.config.config import FACTORY
from serving.retrieval.candidates import BLOCK, CandidateIndex, Ids, write_ids
from serving.retrieval.embedder import Rows, Vectors
from serving.retrieval.faiss_index import FaissIndex, read_faiss, write_faiss
from serving.retrieval.passages import PassageStore

_COPY_S = 60.0
"""Min seconds between two copies to disk while the compact index is being filled."""
_PQ_CENTROIDS = 256
_LEAST_PER_CENTROID = 39
"""Min number of passages per list (IVF) or centroid (PQ). FAISS requires it for training."""
_LEAST_HNSW = 1000
_TRAINING = 64
"""Number of training vectors per list (IVF) or centroid (PQ)."""
_LEAST_TRAINING = 65_536
_HNSW_BREADTH = 128


class ApproximateStore:
    """The `VectorStore` for compact indexes. Their types are FAISS index factory strings, such as
    `HNSW32,SQ8`.
    """

    def __init__(self, factory: str, memory_gb: float = 4.0, breadth: int | None = None) -> None:
        """`factory`: FAISS index factory string that matches `FACTORY`. `memory_gb`: max memory of
        a build in GiB. `breadth`: effort of a search (see `IndexConfig.breadth`).
        """
        shape = FACTORY.fullmatch(factory)
        assert shape is not None
        links, lists, self._code_bytes = (int(number or 0) for number in shape.groups())
        self.name = factory
        self._file = f"{factory}.faiss"
        self._memory_bytes = memory_gb * 2**30
        self._links_bytes = 8 * links
        self._centroids = max(lists, _PQ_CENTROIDS if self._code_bytes else 0)
        self._breadth = breadth or int(2 * lists**0.5) or _HNSW_BREADTH

    def build(
        self, folder: Path, dimension: int, batches: Iterable[Vectors]
    ) -> Mapping[int, float]:
        """Write a new index, as `VectorStore.build` specifies. If there are too few passages to
        train the compact index, only the exact index is written, and searches use the exact index.
        """
        passages = len(PassageStore(folder))
        is_small = passages < (_LEAST_PER_CENTROID * self._centroids or _LEAST_HNSW)
        # FAISS copies an index when it grows, so the index temporarily takes twice its size
        entry_bytes = (self._code_bytes or dimension) + self._links_bytes + 24
        needed = 2 * passages * entry_bytes
        if needed > self._memory_bytes and not is_small:
            raise BadIndex(
                f"{self.name}: {passages:,} passages take {needed / 2**30:.3g} GiB of memory while "
                f"they are added, but retrieval.memory_gb is {self._memory_bytes / 2**30:g}; raise "
                "it, or set retrieval.vectors to a type that takes less, such as IVF4096,PQ48."
            )
        FaissIndex.build(folder, dimension, batches)
        if is_small:
            return {}
        self._fill(folder, write_ids(folder), FaissIndex.open(folder))
        return ApproximateIndex(folder, self._file, self._breadth).recall()

    def open(self, folder: Path) -> FaissIndex:
        """Open the index, as `VectorStore.open` specifies."""
        if not (folder / self._file).exists():
            return FaissIndex.open(folder)
        return ApproximateIndex(folder, self._file, self._breadth)

    def is_complete(self, folder: Path) -> bool:
        """Return True, because no database is used that could lose vectors."""
        return True

    def _fill(self, folder: Path, ids: Ids, exact: FaissIndex) -> None:
        """Write the compact index to `folder`. `ids`: the id of each row. `exact`: the index with
        the exact vectors of the rows.
        """
        copy = folder.parent / f".{self._file}"
        index, known = self._start([copy, *folder.parent.glob(f"*/{self._file}")], ids, exact)
        missing = np.flatnonzero(~np.isin(ids, known))
        copied_at = 0.0  # so that a copy is made after the first block
        for first in range(0, len(missing), BLOCK):
            rows = missing[first : first + BLOCK]
            index.add_with_ids(exact.vectors(rows), ids[rows])
            if time.monotonic() - copied_at > _COPY_S:
                write_faiss(index, copy)
                copied_at = time.monotonic()
        write_faiss(index, folder / self._file)

    def _start(self, files: Iterable[Path], ids: Ids, exact: FaissIndex) -> tuple[Any, Ids]:
        """Return a compact index, and the ids of its entries. The caller adds the missing passages
        to the index. The index is loaded from the first of `files` in which more than half of the
        entries belong to passages. If there is no such file, the index is newly trained and empty.
        """
        import faiss

        for file in files:
            if file.exists():
                index: Any = faiss.read_index(str(file))
                known = faiss.vector_to_array(index.id_map)
                if 2 * np.count_nonzero(np.isin(known, ids)) > len(known):
                    return index, known
        factory = f"IDMap,{self.name}"
        index = faiss.index_factory(exact.dimension, factory, faiss.METRIC_INNER_PRODUCT)
        inner = faiss.downcast_index(index.index)
        if hasattr(inner, "do_polysemous_training"):
            inner.do_polysemous_training = False  # takes minutes, and is not used in these searches
        wanted = max(_TRAINING * self._centroids, _LEAST_TRAINING)
        fitting = int(self._memory_bytes / (8 * exact.dimension))
        size = min(wanted, fitting, len(exact))
        rows = np.random.default_rng(0).choice(len(exact), size, replace=False)
        index.train(exact.vectors(np.sort(rows)))
        return index, ids[:0]


class ApproximateIndex(CandidateIndex):
    """The opened `VectorIndex` of an `ApproximateStore`."""

    def __init__(self, folder: Path, file: str, breadth: int) -> None:
        """`file`: name of the compact index's file in `folder`. `breadth`: effort of a search (see
        `IndexConfig.breadth`).
        """
        super().__init__(folder)
        self._small = read_faiss(folder / file)
        self._breadth = breadth

    def candidates(
        self, queries: Vectors, count: int, among: Rows | None, only: DocumentFilter
    ) -> Iterable[Ids]:
        """Return candidates from the compact index, as `CandidateIndex.candidates` specifies."""
        import faiss

        untyped: Any = faiss
        rows = len(self) if among is None else len(among)
        widening = self._small.ntotal / rows
        options = dict[str, Any]()
        if among is None:
            count = int(count * widening)  # some candidates are removed passages
        else:
            options["sel"] = untyped.IDSelectorBatch(self.ids[among])
        breadth = int(self._breadth * widening)
        if "HNSW" in type(faiss.downcast_index(self._small.index)).__name__:
            parameters = untyped.SearchParametersHNSW(efSearch=breadth, **options)
        else:
            parameters = untyped.SearchParametersIVF(nprobe=breadth, **options)
        ids: Iterable[Ids] = self._small.search(queries, count, params=parameters)[1]
        return ids
