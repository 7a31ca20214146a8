from pathlib import Path

import pypdfium2
import pytest

from router.errors import BadDocument
from serving.documents.document import Document
from serving.documents.reading import read_document

FILES = Path(__file__).parent / "files"


def pdf(path: Path, *pages: str, title: str = "") -> Path:
    """Write a PDF with a line of text on each page."""
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {len(pages)} /Kids [{' '.join(f'{5 + 2 * n} 0 R' for n in range(len(pages)))}] >>",
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


def read(path: Path) -> tuple[Document, list[tuple[int | None, str]]]:
    document = read_document(path)
    return document, [(block.page, block.text.strip()) for block in document.blocks]


def test_pages_keep_their_numbers() -> None:
    """Lines stay as they are set; a short line ends a paragraph, so that no heading runs into a sentence."""
    document, pages = read(FILES / "lighthouse.pdf")

    assert document.title == "The lighthouse"
    assert pages == [
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


def test_an_empty_page_counts_as_a_page(tmp_path: Path) -> None:
    """A page number is the one that a reader of the file shows."""
    document, pages = read(pdf(tmp_path / "a.pdf", "One.", "", "Three."))

    assert pages == [(1, "One."), (2, ""), (3, "Three.")]
    assert document.title == "a"


@pytest.mark.parametrize("title", ["Microsoft Word - draft.doc", "untitled", "final.indd", "  "])
def test_a_title_that_no_one_gave_is_not_taken(tmp_path: Path, title: str) -> None:
    """The file's name is better."""
    assert read_document(pdf(tmp_path / "report.pdf", "Text.", title=title)).title == "report"


def test_a_locked_file_is_refused() -> None:
    """The message says why."""
    with pytest.raises(BadDocument, match=r"locked\.pdf: encrypted; save it without its password"):
        read_document(FILES / "locked.pdf")


def test_a_file_that_only_its_owner_may_change_is_read() -> None:
    """It is encrypted with an empty password, as many are."""
    assert read(FILES / "owned.pdf")[1] == read(FILES / "lighthouse.pdf")[1]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    """Nothing of it is taken for the whole."""
    content = (FILES / "lighthouse.pdf").read_bytes()
    path = tmp_path / "cut.pdf"
    path.write_bytes(content[: int(len(content) * share)])

    with pytest.raises(BadDocument, match=r"cut\.pdf: damaged, or no PDF"):
        read(path)


def test_a_scan_is_refused(tmp_path: Path) -> None:
    """A PDF without text needs OCR, and the message says so."""
    scan = pypdfium2.PdfDocument.new()
    scan.new_page(200, 200).close()
    scan.save(tmp_path / "scan.pdf")
    scan.close()

    with pytest.raises(BadDocument, match=r"scan\.pdf: holds no text, as scans do; put it through OCR"):
        read(tmp_path / "scan.pdf")
