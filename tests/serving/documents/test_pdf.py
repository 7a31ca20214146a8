"""PDFs are read page by page, or refused with a reason."""

from pathlib import Path

import pypdfium2
import pytest

from router.errors import BadDocument
from tests.serving.documents.conftest import FILES, pdf, read, unread


def pages(path: Path) -> list[tuple[int | None, str]]:
    return [(block.page, block.text.strip()) for block in read(path)[1]]


def test_pages_keep_their_numbers(tmp_path: Path) -> None:
    """Lines are kept; a short line ends a paragraph; an empty page counts as a page."""
    assert read(FILES / "lighthouse.pdf")[0] == "The lighthouse"
    assert pages(FILES / "lighthouse.pdf") == [
        (
            1,
            "The first page\n\nThe lighthouse of Krummhörn\nwas built in 1843. It is 28 "
            "metres\nhigh, and its "
            "lamp could be seen\nfor twenty miles over the sea.\nAn efficient office with a café.",
        ),
        (
            2,
            "The keeper, Jan Visser, lived\nthere until 1911. He kept three\ngoats.\n\n"
            "Year Ships\n\n1900 12\n\n1901 15",
        ),
    ]
    assert pages(pdf(tmp_path / "a.pdf", "One.", "", "Three.")) == [
        (1, "One."),
        (2, ""),
        (3, "Three."),
    ]


@pytest.mark.parametrize("title", ["Microsoft Word - draft.doc", "untitled", "final.indd", "  "])
def test_a_default_title_is_ignored(tmp_path: Path, title: str) -> None:
    """The file's name is the title."""
    assert read(pdf(tmp_path / "report.pdf", "Text.", title=title))[0] == "report"


def test_encrypted_files_are_refused() -> None:
    """A file with an empty password is read."""
    assert pages(FILES / "owned.pdf") == pages(FILES / "lighthouse.pdf")
    with pytest.raises(
        BadDocument, match=r"locked\.pdf: is encrypted; save it without its password"
    ):
        read(FILES / "locked.pdf")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    """It is not read in part."""
    content = (FILES / "lighthouse.pdf").read_bytes()
    (tmp_path / "cut.pdf").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(BadDocument, match=r"cut\.pdf: is damaged, or not a PDF"):
        read(tmp_path / "cut.pdf")


def test_a_scan_is_refused(tmp_path: Path) -> None:
    """A PDF without text needs OCR, and the message says so."""
    scan = pypdfium2.PdfDocument.new()
    scan.new_page(200, 200).close()
    scan.save(tmp_path / "scan.pdf")
    scan.close()
    with pytest.raises(BadDocument, match=r"scan\.pdf: contains no text, as if its pages were"):
        read(tmp_path / "scan.pdf")


def test_pages_without_text_are_reported(tmp_path: Path) -> None:
    """Pages with other content, such as scans, are reported; empty pages are not."""
    path = pdf(tmp_path / "a.pdf", "One.", "", "LINE", "Four.")
    drawn = path.read_text("latin-1").replace(
        "BT /F1 12 Tf 50 700 Td (LINE) Tj ET", f"{'0 0 m 9 9 l S':<35}"
    )
    path.write_text(drawn, "latin-1")
    assert [number for number, text in pages(path) if text] == [1, 4]
    assert unread(path) == "1 pages without text (3)"


def test_a_damaged_page_is_reported(tmp_path: Path) -> None:
    """The other pages are read."""
    path = pdf(tmp_path / "a.pdf", "One.", "Two.")
    path.write_text(
        path.read_text("latin-1").replace("7 0 obj\n<< /Type /Page ", "7 0 obj\n<< /Type /None "),
        "latin-1",
    )
    assert pages(path) == [(1, "One.")]
    assert unread(path) == "1 damaged pages (2)"


def test_raised_digits_are_superscripts(tmp_path: Path) -> None:
    """Anywhere in a line, also with a sign; lowered digits and those of rotated text are not."""
    path = pdf(tmp_path / "a.pdf", "TEXT")
    up = "5 Ts /F1 7 Tf"
    down = "0 Ts /F1 12 Tf"
    stream = (
        f"BT /F1 12 Tf 50 700 Td (About 10) Tj {up} (6) Tj {down} ( m in 1871) Tj {up} "
        f"(1) Tj {down} ( of H) Tj "
        f"-3 Ts /F1 7 Tf (2) Tj {down} (O at 10) Tj {up} (-3) Tj {down} (.) Tj ET BT 0 "
        "12 -12 0 30 100 Tm (x2019) Tj ET"
    )
    content = path.read_text("latin-1")
    start = content.index("<< /Length")
    end = content.index("endobj", start)
    path.write_text(
        f"{content[:start]}<< /Length {len(stream)} >> stream\n{stream}\nendstream\n"
        f"{content[end:]}",
        "latin-1",
    )
    text = " ".join(pages(path)[0][1].split())
    assert "About 10⁶ m in 1871¹ of H2O at 10⁻³" in text
    assert not set("⁰¹²³⁴⁵⁶⁷⁸⁹") & set(text.partition("10⁻³")[2])
