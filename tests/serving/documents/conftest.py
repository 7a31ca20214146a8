"""The real tokenizer, and helpers that read a file to its passages."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.documents.cutter import Cutter, read_passages
from serving.documents.document import TextBlock, Title, Unread
from serving.documents.metadata import StoredPassage
from serving.documents.reader import DocumentReader, read_parts
from serving.documents.source import find_sources
from serving.retrieval.embedder import MiniLM

MAX_TOKENS = 60
ROW_TOKENS = 100
FILES = Path(__file__).parent / "files"

ReadAll = Callable[[Path], list[StoredPassage]]


def read(path: Path) -> tuple[str, list[TextBlock]]:
    """Return the title and blocks of a document."""
    title, *blocks = read_parts(path)
    assert isinstance(title, Title)
    return title.text, [block for block in blocks if isinstance(block, TextBlock)]


def unread(path: Path) -> str:
    """Return the parts of a document that were not read."""
    return "; ".join(part.text for part in read_parts(path) if isinstance(part, Unread))


def pdf(path: Path, *pages: str, title: str = "") -> Path:
    """Write a PDF with a line of text on each page."""
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        (
            f"<< /Type /Pages /Count {len(pages)} /Kids "
            f"[{' '.join(f'{5 + 2 * n} 0 R' for n in range(len(pages)))}] >>"
        ),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Title ({title}) >>",
    ]
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 50 700 Td ({text}) Tj ET" if text else ""
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {6 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>",
            f"<< /Length {len(stream)} >> stream\n{stream}\nendstream",
        ]
    body = "".join(f"{number} 0 obj\n{text}\nendobj\n" for number, text in enumerate(objects, 1))
    path.write_text(f"%PDF-1.4\n{body}trailer << /Root 1 0 R /Info 4 0 R >>\n%%EOF\n", "latin-1")
    return path


@pytest.fixture(scope="session")
def embedder() -> MiniLM:
    return MiniLM()


@pytest.fixture(scope="session")
def cutter(embedder: MiniLM) -> Cutter:
    return Cutter(MAX_TOKENS, ROW_TOKENS, embedder.count_tokens)


@pytest.fixture
def read_all(cutter: Cutter) -> ReadAll:
    """Return a function that reads all passages of a file or folder, in order."""

    def read_place(place: Path) -> list[StoredPassage]:
        sources = find_sources([place]).sources
        return [
            passage
            for source in sources
            for _, passage in read_passages(source, cutter, read_parts)
        ]

    return read_place


@pytest.fixture
def reader() -> Iterator[DocumentReader]:
    with DocumentReader() as reader:
        yield reader
