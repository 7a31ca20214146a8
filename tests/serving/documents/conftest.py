"""The real tokenizer, and a short way from a file to its passages."""

from collections.abc import Callable
from pathlib import Path

import pytest

from router.protocol.evidence import Passage
from serving.documents.cutter import Cutter, read_passages
from serving.documents.reading import read_parts
from serving.documents.source import find_sources
from serving.retrieval.embedder import MiniLM

MAX_TOKENS = 60
ROW_TOKENS = 100

ReadAll = Callable[[Path], list[Passage]]


@pytest.fixture(scope="session")
def embedder() -> MiniLM:
    return MiniLM()


@pytest.fixture(scope="session")
def cutter(embedder: MiniLM) -> Cutter:
    return Cutter(MAX_TOKENS, ROW_TOKENS, embedder.count_tokens)


@pytest.fixture
def read_all(cutter: Cutter) -> ReadAll:
    """Everything in one file or folder, in order."""

    def read(place: Path) -> list[Passage]:
        return [
            passage
            for source in find_sources([place]).sources
            for _, passage in read_passages(source, cutter, read_parts)
        ]

    return read
