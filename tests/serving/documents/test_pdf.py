"""PDFs are read page by page, or refused with the reason."""

from pathlib import Path

import pypdfium2
import pytest

from router.errors import BadDocument
from tests.serving.documents.conftest import FILES, pdf, read


def pages(path: Path) -> list[tuple[int | None, str]]:
    return [(block.page, block.text.strip()) for block in read(path)[1]]


def test_pages_keep_their_numbers(tmp_path: Path) -> None:
    """Lines stay as they are set; a short line ends a paragraph; an empty page counts as a page."""
    assert read(FILES / "lighthouse.pdf")[0] == "The lighthouse"
    assert pages(FILES / "lighthouse.pdf") == [
        (
            1,
            "The first page\n\nThe lighthouse of Krummhörn\nwas built in 1843. It is 28 metres\nhigh, and its "
            "lamp could be seen\nfor twenty miles over the sea.\nAn efficient office with a café.",
        ),
        (
            2,
            "The keeper, Jan Visser, lived\nthere until 1911. He kept three\ngoats.\n\n"
            "Year Ships\n\n1900 12\n\n1901 15",
        ),
    ]
    assert pages(pdf(tmp_path / "a.pdf", "One.", "", "Three.")) == [(1, "One."), (2, ""), (3, "Three.")]


@pytest.mark.parametrize("title", ["Microsoft Word - draft.doc", "untitled", "final.indd", "  "])
def test_a_title_that_no_one_gave_is_not_taken(tmp_path: Path, title: str) -> None:
    """The file's name is better."""
    assert read(pdf(tmp_path / "report.pdf", "Text.", title=title))[0] == "report"


def test_encrypted_files() -> None:
    """One with an empty password, as many have, is read; the message for another says why it is not."""
    assert pages(FILES / "owned.pdf") == pages(FILES / "lighthouse.pdf")
    with pytest.raises(BadDocument, match=r"locked\.pdf: encrypted; save it without its password"):
        read(FILES / "locked.pdf")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    """Nothing of it is taken for the whole."""
    content = (FILES / "lighthouse.pdf").read_bytes()
    (tmp_path / "cut.pdf").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(BadDocument, match=r"cut\.pdf: damaged, or no PDF"):
        read(tmp_path / "cut.pdf")


def test_a_scan_is_refused(tmp_path: Path) -> None:
    """A PDF without text needs OCR, and the message says so."""
    scan = pypdfium2.PdfDocument.new()
    scan.new_page(200, 200).close()
    scan.save(tmp_path / "scan.pdf")
    scan.close()
    with pytest.raises(BadDocument, match=r"scan\.pdf: holds no text, as scans do; put it through OCR"):
        read(tmp_path / "scan.pdf")
