import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import faiss
import numpy as np
import pytest

from router.errors import BadIndex
from serving.retrieval.adopt import adopt_index
from serving.retrieval.build import build_index
from serving.retrieval.embedder import MiniLM, Vectors
from serving.retrieval.index import Index
from tests.serving.retrieval.conftest import ANIMALS


def flashrag(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    """Write rows as FlashRAG does."""
    lines = [
        {"id": number, "contents": f"{row['title']}\n{row['text']}"}
        for number, row in enumerate(rows)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return flashrag(tmp_path / "corpus.jsonl", ANIMALS)


@pytest.fixture(
    params=[
        ("Flat", faiss.METRIC_INNER_PRODUCT),
        ("Flat", faiss.METRIC_L2),
        ("HNSW16", faiss.METRIC_INNER_PRODUCT),
        ("SQ8", faiss.METRIC_INNER_PRODUCT),
    ]
)
def faiss_file(request: pytest.FixtureRequest, tmp_path: Path, embedder: MiniLM) -> Path:
    """A file with the vectors of the five animals, for four kinds of index."""
    vectors = embedder.embed([f"{row['title']}\n{row['text']}" for row in ANIMALS], queries=False)
    kind, metric = request.param
    index = faiss.index_factory(384, kind, metric)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "some.faiss"))
    return tmp_path / "some.faiss"


def test_an_adopted_index_is_searched_like_a_built_index(
    faiss_file: Path, corpus: Path, tmp_path: Path, embedder: MiniLM
) -> None:
    """For each kind of index, the nearest passages are first, with cosines as scores and all
    fields.
    """
    assert adopt_index(faiss_file, corpus, tmp_path / "index", embedder).passages == 5

    index = Index.open(tmp_path / "index", embedder, verify=True)
    ((mars, second),) = index.search(
        embedder.embed(["the red planet"], queries=True), ["the red planet"], 2
    )
    assert (mars.title, mars.document, mars.id) == ("Mars", "corpus.jsonl#4", "4")
    assert 1 > mars.score > second.score > -1


def flat(path: Path, vectors: Vectors) -> Path:
    """Write a FAISS file with these vectors."""
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    faiss.write_index(index, str(path))
    return path


@pytest.fixture
def animals_file(tmp_path: Path, embedder: MiniLM) -> Path:
    vectors = embedder.embed([f"{row['title']}\n{row['text']}" for row in ANIMALS], queries=False)
    return flat(tmp_path / "flat.faiss", vectors)


def test_files_that_do_not_belong_together_are_refused(
    animals_file: Path, corpus: Path, tmp_path: Path, embedder: MiniLM
) -> None:
    """The message says what is wrong with the rows, the file, the dimension or the vectors; nothing
    is left behind.
    """
    folder = tmp_path / "corpora"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.jsonl").write_bytes(corpus.read_bytes())
    fewer = flashrag(tmp_path / "fewer.jsonl", ANIMALS[:4])
    order = flashrag(tmp_path / "order.jsonl", ANIMALS[::-1])
    small = flat(tmp_path / "small.faiss", np.eye(5, 8, dtype=np.float32))
    broken = flat(tmp_path / "nan.faiss", np.full((5, 384), np.nan, dtype=np.float32))
    for file, rows, message in (
        (animals_file, fewer, "contains 5 vectors, but the corpus has 4 rows"),
        (animals_file, order, "computes different vectors for the rows"),
        (animals_file, folder, "contains 2 files; give the single file"),
        (fewer, fewer, "FAISS cannot read the file"),
        (small, corpus, "dimension 8, but the embedder all-MiniLM.* dimension 384"),
        (broken, corpus, "computes different vectors"),
    ):
        with pytest.raises(BadIndex, match=message):
            adopt_index(file, rows, tmp_path / "index", embedder)
        assert not (tmp_path / "index").exists()


def test_an_adopted_index_is_not_built_over(
    animals_file: Path, corpus: Path, tmp_path: Path, embedder: MiniLM
) -> None:
    """Building would replace its vectors."""
    adopt_index(animals_file, corpus, tmp_path / "index", embedder)
    with pytest.raises(BadIndex, match="build into another folder"):
        build_index([corpus], tmp_path / "index", embedder)
