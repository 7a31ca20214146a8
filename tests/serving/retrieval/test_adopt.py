import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import faiss
import numpy as np
import pytest

from router.errors import BadIndex
from serving.retrieval.adopt import adopt_index
from serving.retrieval.build import build_index
from serving.retrieval.embedder import MiniLM
from serving.retrieval.index import Index
from tests.serving.retrieval.conftest import ANIMALS


def flashrag(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    """The rows in FlashRAG's shape."""
    lines = [{"id": number, "contents": f"{row['title']}\n{row['text']}"} for number, row in enumerate(rows)]
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
    """The vectors of the five animals, as four kinds of index keep them."""
    vectors = embedder.embed([f"{row['title']}\n{row['text']}" for row in ANIMALS], queries=False)
    kind, metric = request.param
    index = faiss.index_factory(384, kind, metric)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "some.faiss"))
    return tmp_path / "some.faiss"


def test_it_is_searched_like_one_of_ours(faiss_file: Path, corpus: Path, tmp_path: Path, embedder: MiniLM) -> None:
    """Whatever kind of index it is: the nearest come first, with cosines as scores and the rows' titles."""
    assert adopt_index(faiss_file, corpus, tmp_path / "index", embedder).passages == 5

    index = Index.open(tmp_path / "index", embedder, verify=True)
    ((mars, second),) = index.search(embedder.embed(["the red planet"], queries=True), ["the red planet"], 2)
    assert (mars.title, mars.document, mars.id) == ("Mars", "corpus.jsonl#4", "4")
    assert 1 > mars.score > second.score > -1


@pytest.fixture
def flat(tmp_path: Path, embedder: MiniLM) -> Path:
    index = faiss.IndexFlatIP(384)
    index.add(embedder.embed([f"{row['title']}\n{row['text']}" for row in ANIMALS], queries=False))
    faiss.write_index(index, str(tmp_path / "flat.faiss"))
    return tmp_path / "flat.faiss"


def test_what_does_not_belong_together_is_refused(flat: Path, tmp_path: Path, embedder: MiniLM) -> None:
    """Another number of rows, another order of rows, no FAISS file: each is said, and nothing is left behind."""
    out = tmp_path / "index"
    cases = {
        "5 vectors for 4 rows": flashrag(tmp_path / "fewer.jsonl", ANIMALS[:4]),
        "gives other vectors for the passages": flashrag(tmp_path / "order.jsonl", ANIMALS[::-1]),
    }
    for said, corpus in cases.items():
        with pytest.raises(BadIndex, match=said):
            adopt_index(flat, corpus, out, embedder)
        assert not out.exists()
    with pytest.raises(BadIndex, match="FAISS cannot read it"):
        adopt_index(cases["5 vectors for 4 rows"], cases["5 vectors for 4 rows"], out, embedder)


def test_another_dimension_is_refused(corpus: Path, tmp_path: Path, embedder: MiniLM) -> None:
    """With both dimensions."""
    index = faiss.IndexFlatIP(8)
    index.add(np.eye(5, 8, dtype=np.float32))
    faiss.write_index(index, str(tmp_path / "small.faiss"))

    with pytest.raises(BadIndex, match=r"dimension 8, but all-MiniLM.* gives 384"):
        adopt_index(tmp_path / "small.faiss", corpus, tmp_path / "index", embedder)


def test_an_adopted_index_is_not_built_over(flat: Path, corpus: Path, tmp_path: Path, embedder: MiniLM) -> None:
    """Building would embed it all again, which nobody asked for."""
    adopt_index(flat, corpus, tmp_path / "index", embedder)

    with pytest.raises(BadIndex, match="was adopted here; build into another folder"):
        build_index([corpus], tmp_path / "index", embedder)


def test_vectors_that_are_no_numbers_are_refused(corpus: Path, tmp_path: Path, embedder: MiniLM) -> None:
    """They are like no passage's."""
    index = faiss.IndexFlatIP(384)
    index.add(np.full((5, 384), np.nan, dtype=np.float32))
    faiss.write_index(index, str(tmp_path / "nan.faiss"))

    with pytest.raises(BadIndex, match="gives other vectors"):
        adopt_index(tmp_path / "nan.faiss", corpus, tmp_path / "index", embedder)


def test_a_folder_of_several_files_is_no_corpus(flat: Path, corpus: Path, tmp_path: Path, embedder: MiniLM) -> None:
    """Nobody knows the order of its rows."""
    folder = tmp_path / "corpora"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.jsonl").write_bytes(corpus.read_bytes())

    with pytest.raises(BadIndex, match="holds 2 files; name the one"):
        adopt_index(flat, folder, tmp_path / "index", embedder)
