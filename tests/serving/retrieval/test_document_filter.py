"""Searches among documents with some properties only."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from router.errors import UpstreamRefused
from router.search import Indexes
from router.trace.scope import NO_FILTER, DocumentFilter
from serving.retrieval.build import build_index
from serving.retrieval.embedder import Vectors
from serving.retrieval.faiss_index import VECTORS, FaissIndex
from serving.retrieval.index import Index
from serving.retrieval.searcher import IndexSearcher
from tests.router.retriever import FixedRetriever
from tests.serving.retrieval.test_services import remote

DOCUMENTS: dict[str, dict[str, Any]] = {
    "ada": {"title": "Notes", "author": "Ada Lovelace", "date": "1843-09-05", "tags": ["a", "b"]},
    "bob": {"title": "Minutes", "author": "Bob", "date": "1843-10-01", "path": "minutes/1843.txt"},
    "cyd": {"title": "Other notes", "date": "1901-01-01", "tags": ["b"]},
    "dan": {},
}
"""Metadata of rows by id."""


class Digits:
    """An embedder that computes vectors from the lengths of texts."""

    identity = "digits"
    dimension = 4
    max_tokens = 256

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        angles = np.array([[len(text) % 7, 1.0, 2.0, 3.0] for text in texts], np.float32)
        unit: Vectors = angles / np.linalg.norm(angles, axis=1, keepdims=True)
        return unit


def index_with_metadata(folder: Path, *, lexical: bool = False) -> Index:
    """Return an index of four rows with metadata."""
    rows = [
        {"id": name, "title": f"Row {name}", "text": f"The notes of {name} are here.", **metadata}
        for name, metadata in DOCUMENTS.items()
    ]
    corpus = folder / "rows.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    build_index([corpus], folder / "index", Digits(), lexical=lexical)
    return Index.open(folder / "index", Digits())


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (NO_FILTER, {"ada", "bob", "cyd", "dan"}),
        (DocumentFilter(title="NOTES"), {"ada", "cyd"}),
        (DocumentFilter(title="row"), {"dan"}),
        (DocumentFilter(author="lovelace"), {"ada"}),
        (DocumentFilter(from_date="1843-10"), {"bob", "cyd"}),
        (DocumentFilter(to_date="1843-09"), {"ada"}),
        (DocumentFilter(from_date="1843", to_date="1843"), {"ada", "bob"}),
        (DocumentFilter(path_prefix="minutes/"), {"bob"}),
        (DocumentFilter(path_prefix="rows.jsonl"), {"ada", "cyd", "dan"}),
        (DocumentFilter(tags=("b",)), {"ada", "cyd"}),
        (DocumentFilter(tags=("a", "b")), {"ada"}),
        (DocumentFilter(tags=("a",), author="Bob"), set()),
    ],
)
@pytest.mark.parametrize("lexical", [False, True])
def test_only_documents_with_the_properties_are_found(
    tmp_path: Path, only: DocumentFilter, names: set[str], lexical: bool
) -> None:
    """All of them are found, and none of the others, by vectors and by words."""
    index = index_with_metadata(tmp_path, lexical=lexical)
    (found,) = index.search(Digits().embed(["notes"], queries=True), ["notes"], 4, None, only)
    assert {passage.id for passage in found} == names
    for name in DOCUMENTS:
        (opened,) = index.search(
            Digits().embed(["?"], queries=True), ["?"], 4, f"rows.jsonl#{name}", only
        )
        assert [passage.id for passage in opened] == [name] * (name in names)


def test_an_inverted_file_is_searched_among_the_documents(tmp_path: Path) -> None:
    """Adopted indexes of other kinds can be filtered, too."""
    index = index_with_metadata(tmp_path)
    lists = faiss.index_factory(4, "IVF1,Flat", faiss.METRIC_INNER_PRODUCT)
    vectors = index.dense.vectors(np.arange(4))
    lists.train(vectors)
    lists.add(vectors)
    folder = tmp_path / "ivf"
    folder.mkdir()
    faiss.write_index(lists, str(folder / VECTORS))
    inverted = Index(index.manifest, index.passages, FaissIndex.open(folder), None)
    query = Digits().embed(["notes"], queries=True)
    (found,) = inverted.search(query, ["notes"], 4, None, DocumentFilter(tags=("b",)))
    assert {passage.id for passage in found} == {"ada", "cyd"}


async def test_a_retrieval_server_filters_documents(tmp_path: Path) -> None:
    """Results of a query with a filter are not returned for the same query without it."""
    searcher = IndexSearcher(index_with_metadata(tmp_path), Digits())
    async with remote(Indexes({"default": searcher})) as retriever:
        (ada,) = await retriever.search(["notes"], 4, None, DocumentFilter(author="Ada"))
        (every,) = await retriever.search(["notes"], 4)
        (again,) = await retriever.search(["notes"], 4, None, DocumentFilter(author="Ada"))
    await searcher.close()
    assert [passage.id for passage in ada] == [passage.id for passage in again] == ["ada"]
    assert len(every) == 4


async def test_a_retriever_that_cannot_filter_refuses_to(tmp_path: Path) -> None:
    """Otherwise it would return passages of other documents."""
    async with remote(FixedRetriever({})) as retriever:
        with pytest.raises(UpstreamRefused, match="cannot filter documents"):
            await retriever.search(["notes"], 1, None, DocumentFilter(author="Ada"))
