"""The seam of dense search: an index is built and searched with another vector store than FAISS."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.retrieval.build import build_index
from serving.retrieval.dense import Hit, VectorIndex
from serving.retrieval.embedder import MiniLM, Vectors
from serving.retrieval.faiss_index import FaissIndex
from serving.retrieval.index import Index
from tests.scripted_gateway import ROOT


class NumPyIndex:
    """Vectors in one array, in one file."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors
        self.dimension = vectors.shape[1]

    @classmethod
    def build(cls, folder: Path, dimension: int, batches: Iterable[Vectors]) -> None:
        np.save(folder / "vectors.npy", np.concatenate(list(batches)).reshape(-1, dimension))

    @classmethod
    def open(cls, folder: Path) -> Self:
        return cls(np.load(folder / "vectors.npy"))

    def __len__(self) -> int:
        return len(self.vectors)

    def search(
        self, queries: Vectors, top_k: int, among: NDArray[np.int64] | None = None
    ) -> list[list[Hit]]:
        rows = set(range(len(self)) if among is None else among.tolist())
        ranked = [self.within(query, range(len(self))) for query in queries]
        return [[hit for hit in hits if hit.row in rows][:top_k] for hits in ranked]

    def within(self, query: Vectors, rows: range) -> list[Hit]:
        scores = (np.float64(self.vectors[rows.start : rows.stop]) * np.float64(query)).sum(1)
        return sorted(map(Hit, rows, scores.round(6).tolist()), key=lambda hit: -hit.score)

    def vector(self, row: int) -> Vectors:
        vector: Vectors = self.vectors[row]
        return vector


@pytest.mark.parametrize("store", [FaissIndex, NumPyIndex])
def test_an_index_is_built_and_searched_with_a_vector_store(
    animals: Path, tmp_path: Path, embedder: MiniLM, store: type[VectorIndex]
) -> None:
    """Every store gives the same passages and scores, and its vectors are reused by a build."""
    first = build_index([animals], tmp_path / "index", embedder, store=store)
    extra = tmp_path / "extra.jsonl"
    extra.write_text('{"id": "ant", "title": "Ant", "text": "Ants live in colonies."}\n')
    second = build_index([animals, extra], tmp_path / "index", embedder, store=store)
    assert (first.embedded, second.embedded) == (5, 1)

    index = Index.open(tmp_path / "index", embedder, store=store)
    vectors = embedder.embed(["Which insects live in colonies?"], queries=True)
    ((ant, bee),) = index.search(vectors, ["insects"], 2)
    assert (ant.id, bee.id) == ("ant", "bee")
    assert ant.score == pytest.approx(float(vectors[0] @ index.dense.vector(5)), abs=1e-5)


def test_only_the_store_imports_faiss() -> None:
    """No other file of the product mentions the library in an import."""
    files = (ROOT / "serving").rglob("*.py")
    importers = [file.name for file in files if re.search(r"import faiss", file.read_text("utf-8"))]
    assert importers == ["faiss_index.py"]
