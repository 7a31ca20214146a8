"""A real embedder, small corpora and an index of one of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from serving.retrieval.build import build_index
from serving.retrieval.embedder import MiniLM
from serving.retrieval.index import Index

ANIMALS = (
    {
        "id": "cat",
        "title": "Cat",
        "text": "The cat is a small carnivorous mammal that people keep to catch mice.",
    },
    {
        "id": "whale",
        "title": "Blue whale",
        "text": "The blue whale is the largest animal known to have lived.",
    },
    {
        "id": "bee",
        "title": "Honey bee",
        "text": "Honey bees live in colonies and turn nectar into honey.",
    },
    {
        "id": "zx81",
        "title": "ZX81",
        "text": "The ZX81 was a home computer made by Sinclair Research in Dundee.",
    },
    {
        "id": "mars",
        "title": "Mars",
        "text": "Mars is the fourth planet from the Sun and looks red.",
    },
)

WriteCorpus = Callable[[Sequence[Mapping[str, str]]], Path]


@pytest.fixture(scope="session")
def embedder() -> MiniLM:
    return MiniLM()


@pytest.fixture
def write_corpus(tmp_path: Path) -> WriteCorpus:
    def write(rows: Sequence[Mapping[str, str]]) -> Path:
        path = tmp_path / "corpus.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture
def animals(write_corpus: WriteCorpus) -> Path:
    """A corpus of five passages."""
    return write_corpus(ANIMALS)


@pytest.fixture
def index_folder(animals: Path, tmp_path: Path, embedder: MiniLM) -> Path:
    """A dense index of the five passages."""
    build_index([animals], tmp_path / "index", embedder)
    return tmp_path / "index"


@pytest.fixture
def index(index_folder: Path, embedder: MiniLM) -> Index:
    return Index.open(index_folder, embedder)
