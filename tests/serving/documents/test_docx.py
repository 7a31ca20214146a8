"""Paragraphs and tables of DOCX, and files that only look like it."""

import zipfile
from pathlib import Path
from typing import Any

import docx
import pytest

from router.errors import BadDocument
from serving.documents.document import Block
from tests.serving.documents.conftest import read


def saved(path: Path, document: Any) -> tuple[str, list[Block]]:
    document.save(str(path))
    return read(path)


@pytest.fixture
def report() -> Any:
    """A document with a heading, a table, and a text."""
    report = docx.Document()
    report.core_properties.title = ""
    report.add_paragraph("Before all.")
    report.add_heading("Staff\tin May", 1)
    table = report.add_table(2, 2)
    for number, text in enumerate(("Name", "Years", "Ann  Lee", "7")):
        table.cell(number // 2, number % 2).text = text
    report.add_paragraph("After the table.\nA second line.")
    return report


def test_paragraphs_and_tables_come_in_order(tmp_path: Path, report: Any) -> None:
    """Rows are one block each, with their cells parted; headings are those of the styles."""
    texts = ("", "Name | Years", "Ann Lee | 7", "After the table.\nA second line.")
    assert saved(tmp_path / "report.docx", report) == (
        "Staff in May",
        [Block("Before all."), *(Block(text, "Staff in May") for text in texts)],
    )


def test_the_title_is_the_property(tmp_path: Path, report: Any) -> None:
    """Unless it is one that no one gave; then it is the first heading, or the file's name."""
    for title, document, expected in (
        ("Staff report", report, "Staff report"),
        ("Word Document", report, "Staff in May"),
        ("Word Document", docx.Document(), "a"),
    ):
        document.core_properties.title = title
        assert saved(tmp_path / "a.docx", document)[0] == expected


def test_wrapped_text_is_not_lost(tmp_path: Path, report: Any) -> None:
    """Insertions under review, and content controls; deleted and moved text is not there."""
    w = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    for xml in (
        f"<w:sdt {w}><w:sdtContent><w:p><w:r><w:t>In a control.</w:t></w:r></w:p></w:sdtContent></w:sdt>",
        f"<w:p {w}><w:ins><w:r><w:t>New</w:t></w:r></w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del>"
        "<w:moveFrom><w:r><w:t>gone</w:t></w:r></w:moveFrom><w:r><w:t>.</w:t></w:r></w:p>",
    ):
        report.element.body.append(docx.oxml.parse_xml(xml))
    assert [block.text for block in saved(tmp_path / "a.docx", report)[1]][-2:] == ["In a control.", "New."]


def test_a_table_around_text_is_no_table_of_values(tmp_path: Path) -> None:
    """A single cell is a frame, and a table inside a table is read as a table."""
    report = docx.Document()
    cell = report.add_table(1, 1).cell(0, 0)
    cell.text = "Framed."
    cell.add_table(1, 2).cell(0, 1).text = "inner"
    assert [block.text for block in saved(tmp_path / "a.docx", report)[1]] == ["Framed.", " | inner"]


@pytest.mark.parametrize("content", [b"", b"no zip", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)])
def test_a_file_that_is_no_zip_is_refused(tmp_path: Path, content: bytes) -> None:
    """An empty file, a text, and the container that encrypted documents come in."""
    (tmp_path / "a.docx").write_bytes(content)
    with pytest.raises(BadDocument, match=r"a\.docx: damaged, encrypted, or no DOCX"):
        read(tmp_path / "a.docx")


@pytest.mark.parametrize(
    ("name", "megabytes", "said"),
    [
        ("xl/workbook.xml", 0, "damaged, or not what its name says"),
        ("word/document.xml", 33, "unpacks to more than"),
        ("word/media/image1.bmp", 257, "unpacks to more than"),
    ],
)
def test_a_zip_that_is_no_document_is_refused(tmp_path: Path, name: str, megabytes: int, said: str) -> None:
    """A spreadsheet by another name, and a small file that unpacks to hundreds of megabytes."""
    path = tmp_path / "a.docx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed, packed.open(name, "w") as part:
        for _ in range(megabytes):
            part.write(bytes(1 << 20))
    with pytest.raises(BadDocument, match=rf"a\.docx: {said}"):
        read(path)
