"""Paragraphs and tables of DOCX, and files that are no DOCX."""

import zipfile
from pathlib import Path
from typing import Any

import docx
import pytest
from docx.opc.packuri import PackURI
from docx.opc.part import Part

from router.errors import BadDocument
from serving.documents.document import TextBlock
from tests.serving.documents.conftest import read, unread


def saved(path: Path, document: Any) -> tuple[str, list[TextBlock]]:
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
    """Each row is a block, with its cells separated; headings are known by their styles."""
    texts = ("", "Name | Years", "Ann Lee | 7", "After the table.\nA second line.")
    assert saved(tmp_path / "report.docx", report) == (
        "Staff in May",
        [TextBlock("Before all."), *(TextBlock(text, "Staff in May") for text in texts)],
    )


def test_the_title_is_the_property(tmp_path: Path, report: Any) -> None:
    """A default title is ignored; then the first heading, or the file's name, is the title."""
    for title, document, expected in (
        ("Staff report", report, "Staff report"),
        ("Word Document", report, "Staff in May"),
        ("Word Document", docx.Document(), "a"),
    ):
        document.core_properties.title = title
        assert saved(tmp_path / "a.docx", document)[0] == expected


def test_wrapped_text_is_not_lost(tmp_path: Path, report: Any) -> None:
    """Insertions under review and content controls are read; deleted and moved text is not."""
    w = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    for xml in (
        (
            f"<w:sdt {w}><w:sdtContent><w:p><w:r><w:t>In a "
            "control.</w:t></w:r></w:p></w:sdtContent></w:sdt>"
        ),
        "<w:p "
        f"{w}><w:ins><w:r><w:t>New</w:t></w:r></w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del>"
        "<w:moveFrom><w:r><w:t>gone</w:t></w:r></w:moveFrom><w:r><w:t>.</w:t></w:r></w:p>",
    ):
        report.element.body.append(docx.oxml.parse_xml(xml))
    assert [block.text for block in saved(tmp_path / "a.docx", report)[1]][-2:] == [
        "In a control.",
        "New.",
    ]


def test_a_table_around_text_is_no_table_of_values(tmp_path: Path) -> None:
    """A single cell is a frame, and a nested table is read as a table."""
    report = docx.Document()
    cell = report.add_table(1, 1).cell(0, 0)
    cell.text = "Framed."
    cell.add_table(1, 2).cell(0, 1).text = "inner"
    assert [block.text for block in saved(tmp_path / "a.docx", report)[1]] == [
        "Framed.",
        " | inner",
    ]


NAMESPACES = {
    "w": "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "m": "http://schemas.openxmlformats.org/officeDocument/2006/math",
    "c": "http://schemas.openxmlformats.org/drawingml/2006/chart",
    "o": "urn:schemas-microsoft-com:office:office",
    "pic": "http://schemas.openxmlformats.org/drawingml/2006/picture",
    "wp": "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing",
}
RELATION = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"


def element(tag: str, inner: str) -> str:
    """Return an element with all namespaces declared."""
    declared = " ".join(f'xmlns:{prefix}="{name}"' for prefix, name in NAMESPACES.items())
    return f"<{tag} {declared}>{inner}</{tag}>"


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def attach(report: Any, kind: str, xml: str) -> None:
    """Add a part to the document, as its notes are."""
    name = PackURI(f"/word/{kind}.xml")
    report.part.relate_to(
        Part(name, "application/xml", xml.encode(), report.part.package), f"{RELATION}{kind}"
    )


@pytest.mark.parametrize(
    ("xml", "text", "missing"),
    [
        (run("10") + run("6", '<w:vertAlign w:val="superscript"/>') + run(" m"), "10⁶ m", ""),
        (run("H") + run("2", '<w:vertAlign w:val="subscript"/>') + run("O"), "H2O", ""),
        (
            "<w:r><w:ruby><w:rt><w:r><w:t>とうきょう</w:t></w:r></w:rt><w:rubyBase><w:r><w:t>東京</w:t></w:r>"
            "</w:rubyBase></w:ruby></w:r>" + run("都"),
            "東京都",
            "",
        ),
        (
            run("x ") + '<w:r><w:sym w:font="Symbol" w:char="F0A3"/></w:r>' + run(" 5"),
            "x ≤ 5",
            "",
        ),
        (
            run("A = ") + "<m:oMath><m:r><m:t>π</m:t></m:r></m:oMath>" + run("."),
            "A = [equation].",
            "1 equations",
        ),
        (
            run("a") + "<w:r><w:drawing><c:chart/></w:drawing></w:r>" + run("b"),
            "ab",
            "1 charts",
        ),
        (
            run("a")
            + "<w:r><w:txbxContent><w:p><w:r><w:t>box</w:t></w:r></w:p></w:txbxContent></w:r>"
            + run("b"),
            "a\nbox\nb",
            "",
        ),
        (
            '<w:r><w:drawing><wp:docPr id="1" name="x" descr="A bee"/><pic:pic/></w:drawing></w:r>'
            + run("b"),
            "A bee b",
            "1 pictures",
        ),
        (
            run("a")
            + "<w:del><w:r><w:delText>b</w:delText></w:r></w:del><w:r><w:object><o:OLEObject/></w:object></w:r>",
            "a",
            "1 tracked deletions, 1 embedded objects",
        ),
    ],
)
def test_other_content_is_read_as_text_or_reported(
    tmp_path: Path, xml: str, text: str, missing: str
) -> None:
    """Superscripts, text boxes and descriptions of pictures are read; the rest is reported."""
    report = docx.Document()
    report.element.body.append(docx.oxml.parse_xml(element("w:p", xml)))
    assert [block.text for block in saved(tmp_path / "a.docx", report)[1]] == [text]
    assert unread(tmp_path / "a.docx") == missing


def test_notes_follow_the_text_that_refers_to_them(tmp_path: Path) -> None:
    """Headers and footers come at the end, once each."""
    report = docx.Document()
    report.add_heading("Bees", 1)
    for kind in ("footnote", "endnote"):
        attach(
            report,
            f"{kind}s",
            element(
                f"w:{kind}s", f'<w:{kind} w:id="2"><w:p>{run(f"The {kind}.")}</w:p></w:{kind}>'
            ),
        )
        reference = f'{run("Text")}<w:r><w:{kind}Reference w:id="2"/></w:r>{run(" goes on.")}'
        report.add_paragraph()._p.addnext(docx.oxml.parse_xml(element("w:p", reference)))
    comment = report.add_comment(report.add_paragraph("Remarked.").runs, "The comment.")
    assert comment.comment_id == 0
    report.add_section()
    for section in report.sections:
        section.header.is_linked_to_previous = False
        section.header.paragraphs[0].text = "The header."
    _, blocks = saved(tmp_path / "a.docx", report)
    texts = (
        "",
        "Text goes on.",
        "The footnote.",
        "Text goes on.",
        "The endnote.",
        "Remarked.",
        "The comment.",
    )
    assert blocks == [
        *(TextBlock(text, "Bees") for text in texts),
        TextBlock("The header."),
    ]


@pytest.mark.parametrize(
    "content", [b"", b"no zip", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)]
)
def test_a_file_that_is_no_zip_is_refused(tmp_path: Path, content: bytes) -> None:
    """An empty file, a text, and the container of an encrypted document are refused."""
    (tmp_path / "a.docx").write_bytes(content)
    with pytest.raises(BadDocument, match=r"a\.docx: is damaged, encrypted, or no valid DOCX"):
        read(tmp_path / "a.docx")


@pytest.mark.parametrize(
    ("name", "megabytes", "message"),
    [
        ("xl/workbook.xml", 0, "is damaged, or not what its name says"),
        ("word/document.xml", 33, "unpacks to more than"),
        ("word/media/image1.bmp", 257, "unpacks to more than"),
    ],
)
def test_a_zip_that_is_no_document_is_refused(
    tmp_path: Path, name: str, megabytes: int, message: str
) -> None:
    """A spreadsheet, and a small file that unpacks to hundreds of megabytes, are refused."""
    path = tmp_path / "a.docx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed, packed.open(name, "w") as part:
        for _ in range(megabytes):
            part.write(bytes(1 << 20))
    with pytest.raises(BadDocument, match=rf"a\.docx: {message}"):
        read(path)
