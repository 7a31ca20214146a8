"""The seam of dense search: an index is built and searched with another vector store than FAISS."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from router.trace.scope import NO_FILTER, DocumentFilter
from serving.retrieval.build import build_index
from serving.retrieval.dense import Hit, VectorStore
from serving.retrieval.embedder import MiniLM, Rows, Vectors
from serving.retrieval.faiss_index import FaissIndex
from serving.retrieval.index import Index
from tests.scripted_gateway import ROOT


class NumPyIndex:
    """Vectors in one array, in one file."""

    name = "NumPy"

    def __init__(self, vectors: Vectors) -> None:
        self.array = vectors
        self.dimension = vectors.shape[1]

    @classmethod
    def build(cls, folder: Path, dimension: int, batches: Iterable[Vectors]) -> Mapping[int, float]:
        np.save(folder / "vectors.npy", np.concatenate(list(batches)).reshape(-1, dimension))
        return {}

    @classmethod
    def open(cls, folder: Path) -> Self:
        return cls(np.load(folder / "vectors.npy"))

    @classmethod
    def is_complete(cls, folder: Path) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.array)

    def search(
        self,
        queries: Vectors,
        top_k: int,
        among: Rows | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Hit]]:
        rows = set(range(len(self)) if among is None else among.tolist())
        ranked = [self.within(query, range(len(self))) for query in queries]
        return [[hit for hit in hits if hit.row in rows][:top_k] for hits in ranked]

    def within(self, query: Vectors, rows: range) -> list[Hit]:
        scores = (np.float64(self.array[rows.start : rows.stop]) * np.float64(query)).sum(1)
        return sorted(map(Hit, rows, scores.round(6).tolist()), key=lambda hit: -hit.score)

    def vectors(self, rows: Rows) -> Vectors:
        vectors: Vectors = self.array[rows]
        return vectors


@pytest.mark.parametrize("store", [FaissIndex, NumPyIndex])
def test_an_index_is_built_and_searched_with_a_vector_store(
    animals: Path, tmp_path: Path, embedder: MiniLM, store: VectorStore
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
    assert ant.score == pytest.approx(
        float(vectors[0] @ index.dense.vectors(np.array([5]))[0]), abs=1e-5
    )


def test_only_the_stores_import_faiss() -> None:
    """No other file of the product mentions the library in an import."""
    files = (ROOT / "serving").rglob("*.py")
    importers = [file.name for file in files if re.search(r"import faiss", file.read_text("utf-8"))]
    assert sorted(importers) == ["approximate.py", "faiss_index.py"]
