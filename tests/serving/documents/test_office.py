"""Workbooks, slides, books, messages, delimited text, records: their texts, and where each is."""

import io
import json
import struct
import time
import zipfile
from collections.abc import Callable, Mapping
from datetime import date, datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from openpyxl import Workbook
from pptx import Presentation
from pptx.util import Inches

from router.errors import BadDocument, DocumentTooLarge
from serving.documents.document import TextBlock
from serving.documents.reader import DocumentReader, read_parts
from tests.serving.documents.compound import compound_file, outlook_streams
from tests.serving.documents.conftest import ReadAll, pdf, read, unread


def placed(path: Path) -> list[tuple[str, str]]:
    """Return the texts of a file with their locations."""
    return [(block.text, block.location) for block in read(path)[1] if block.text]


def packed(path: Path, files: Mapping[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def workbook(path: Path) -> Path:
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.title = "Cities"
    cells: dict[str, Any] = {
        "B1": "As of May",
        "B3": "City",
        "C3": "Founded",
        "D3": "Seen",
        "B5": "Krurou\nOld",
        "C5": 1200.0,
        "D5": datetime(2020, 1, 2),
        "C6": 0.25,
        "E6": True,
    }
    for cell, value in cells.items():
        sheet[cell] = value
    book.create_sheet("Notes")["A1"] = "Only one cell."
    book.create_sheet("Drafts").sheet_state = "hidden"
    book.create_chartsheet("Chart")
    book.save(path)
    return path


def test_a_row_carries_its_header_and_names_its_place(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx")
    assert placed(path) == [
        ("As of May", "sheet Cities, row 1"),
        ("City: Krurou Old | Founded: 1200 | Seen: 2020-01-02", "sheet Cities, row 5"),
        ("Founded: 0.25 | True", "sheet Cities, row 6"),
        ("Only one cell.", "sheet Notes, row 1"),
    ]
    assert unread(path) == "sheet Drafts (hidden), sheet Chart (ChartSheet)"


def test_a_row_is_a_passage_below_the_name_of_its_sheet(tmp_path: Path, read_all: ReadAll) -> None:
    passages = read_all(workbook(tmp_path / "prices.xlsx"))
    assert [(passage.title, passage.location) for passage in passages] == [
        ("prices › Cities", "sheet Cities, row 1"),
        ("prices › Cities", "sheet Cities, row 5"),
        ("prices › Cities", "sheet Cities, row 6"),
        ("prices › Notes", "sheet Notes, row 1"),
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("City,Year\nBel,900\n", [("City: Bel | Year: 900", "row 2")]),
        ('City;Note\n"Bel; old";"a ""b"""\n', [('City: Bel; old | Note: a "b"', "row 2")]),
        ("C\tY\nBel\t\n\nSel\t5\n", [("C: Bel", "row 2"), ("C: Sel | Y: 5", "row 4")]),
        ("Land|2019|2020\nBel|3|4\n", [("Land: Bel | 2019: 3 | 2020: 4", "row 2")]),
        ("1,2\n3,4\n", [("1 | 2", "row 1"), ("3 | 4", "row 2")]),
        ("1.5 %;x\n2.5 %;y\n", [("1.5 % | x", "row 1"), ("2.5 % | y", "row 2")]),
        ("City,Year\n", [("City | Year", "header")]),
        ("one\ntwo\n", [("one", "row 1"), ("two", "row 2")]),
        ("城市,人口\n北京,2189\n", [("城市: 北京 | 人口: 2189", "row 2")]),
        ("a,b\nc,d,e\n", [("a: c | b: d | e", "row 2")]),
    ],
)  # fmt: skip
def test_delimited_text(tmp_path: Path, content: str, expected: list[tuple[str, str]]) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    assert placed(path) == expected
    path.write_bytes(content.encode("utf-16"))
    assert placed(path) == expected


def test_slides_have_their_titles_tables_and_notes(tmp_path: Path) -> None:
    file = Presentation()
    slide = file.slides.add_slide(file.slide_layouts[5])
    slide.shapes.title.text = "Cities"
    table = slide.shapes.add_table(2, 2, Inches(1), Inches(1), Inches(4), Inches(1)).table
    for number, text in enumerate(("City", "Founded", "Krurou", "1200")):
        table.cell(number // 2, number % 2).text = text
    slide.notes_slide.notes_text_frame.text = "Said, not shown."
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "In a group."
    empty = file.slides.add_slide(file.slide_layouts[5])
    empty.shapes.title.text = "Thanks"
    slide.shapes.add_picture(io.BytesIO(_PNG), 0, 0)
    path = tmp_path / "a.pptx"
    file.save(str(path))
    title, blocks = read(path)
    assert (title, unread(path)) == ("Cities", "1 pictures")
    texts = ("City | Founded", "Krurou | 1200", "In a group.", "Said, not shown.")
    assert blocks == [
        *(TextBlock(text, "Cities", location="slide 1") for text in texts),
        TextBlock("", "Thanks", location="slide 2"),
    ]


_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)
_ODT = """<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"
 xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"
 xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0"><office:body><office:text>
<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>
<text:h text:outline-level="1">Cities</text:h>
<text:p>Krurou<text:note><text:note-citation>1</text:note-citation><text:note-body>
<text:p>A note.</text:p></text:note-body></text:note> is<text:s/>old.
<text:line-break/>Very.</text:p>
<table:table><table:table-row><table:table-cell><text:p>City</text:p></table:table-cell>
<table:table-cell><text:p>Year</text:p></table:table-cell></table:table-row></table:table>
<text:list><text:list-item><text:p>first</text:p></text:list-item></text:list>
<text:p><draw:frame><draw:image/></draw:frame></text:p>
</office:text></office:body></office:document-content>"""
_MANIFEST = {"META-INF/manifest.xml": "<manifest/>"}


def test_text_of_libreoffice(tmp_path: Path) -> None:
    """A note follows its paragraph."""
    path = packed(tmp_path / "a.odt", {"content.xml": _ODT, **_MANIFEST})
    title, blocks = read(path)
    texts = ["", "Krurou is old.\nVery.", "A note.", "City | Year", "first"]
    assert (title, [block.text for block in blocks]) == ("Cities", texts)
    assert {block.heading for block in blocks} == {"Cities"}
    assert unread(path) == "1 tracked deletions, 1 pictures"


def book(path: Path, **files: str) -> Path:
    """Write an electronic book whose second page is missing."""
    return packed(
        path,
        {
            "META-INF/container.xml": "<c xmlns='urn:oasis:names:tc:opendocument:xmlns:container'>"
            "<rootfile full-path='OEBPS/c.opf'/></c>",
            "OEBPS/c.opf": "<package xmlns='http://www.idpf.org/2007/opf' "
            "xmlns:dc='http://purl.org/dc/elements/1.1/'><dc:title>The Book</dc:title>"
            "<item id='b' href='../two.xhtml'/><item id='a' href='one%201.xhtml'/>"
            "<item id='c' href='none.xhtml'/>"
            "<itemref idref='a'/><itemref idref='b'/><itemref idref='c'/></package>",
            "OEBPS/one 1.xhtml": "<?xml version='1.0'?><html><body><h1>One</h1><p>It began."
            "</p></body></html>",
            "two.xhtml": "<html><body><h1>Two</h1><p>It ended.</p></body></html>",
            **files,
        },
    )


def test_pages_of_a_book_come_in_its_order(tmp_path: Path) -> None:
    path = book(tmp_path / "a.epub")
    title, blocks = read(path)
    assert title == "The Book"
    assert [(block.text, block.heading) for block in blocks if block.text] == [
        ("It began.", "One"),
        ("It ended.", "Two"),
    ]
    assert unread(path) == "1 pages that are not in the file"


def message(text: str = "The price is 12 euros.", kind: str = "plain") -> EmailMessage:
    mail = EmailMessage()
    mail["From"] = "Ada <ada@example.org>"
    mail["Subject"] = "Prices"
    mail.set_content(text, subtype=kind)
    return mail


def test_a_message_has_its_headers_its_text_and_its_attachments(tmp_path: Path) -> None:
    """Attachments of attached messages are read too; other kinds are named."""
    mail = message()
    mail.add_attachment("City,Year\nBel,900\n", filename="a.csv")
    mail.add_attachment(
        pdf(tmp_path / "x.pdf", "On paper.").read_bytes(),
        maintype="application",
        subtype="pdf",
        filename="../x.pdf",
    )
    mail.add_attachment(_PNG, maintype="image", subtype="png", filename="x.gif")
    mail.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="bad.pdf")
    outer = message("<p>See <b>below</b>.</p>", "html")
    outer.add_attachment(mail)
    path = tmp_path / "a.eml"
    path.write_bytes(bytes(outer))
    inner = "attachment message-1.eml"
    head = "From: Ada <ada@example.org>\nSubject: Prices"
    assert read(path)[0] == "Prices"
    assert [(text.strip(), place) for text, place in placed(path)] == [
        (head, ""),
        ("See below.", ""),
        (head, inner),
        ("The price is 12 euros.", inner),
        ("City: Bel | Year: 900", f"{inner}, attachment a.csv, row 2"),
        ("On paper.", f"{inner}, attachment x.pdf, page 1"),
    ]
    assert "attachment x.gif: is not supported" in unread(path)
    assert "attachment bad.pdf: is damaged, or not a PDF" in unread(path)
    assert str(Path("/tmp")) not in unread(path)


def test_a_message_of_outlook(tmp_path: Path) -> None:
    path = tmp_path / "a.msg"
    path.write_bytes(compound_file(outlook_streams("Prices", "The price is 12 euros.")))
    title, blocks = read(path)
    assert title == "Prices"
    assert [block.text for block in blocks] == [
        "From: <ada@example.org>\nSubject: Prices",
        "The price is 12 euros.",
    ]


def test_records_of_json(tmp_path: Path) -> None:
    """Fields of inner objects have the names of both."""
    path = tmp_path / "a.json"
    people = [{"name": "Ada", "works": [{"title": "Notes"}]}, {"name": "Bo", "tags": ["x", "y"]}]
    expected = [
        ("name: Ada | works.title: Notes", "record 1"),
        ("name: Bo | tags: x, y", "record 2"),
    ]
    path.write_text(json.dumps(people, indent=1))
    assert placed(path) == expected
    path.write_text("\n".join(map(json.dumps, people)))
    assert placed(path) == expected
    path.write_text(json.dumps({"version": 2, "people": people}))
    assert placed(path) == [("version: 2", ""), *expected]
    path.write_text('{"id": "1", "text": "A row of a corpus."}\n')
    assert [type(part).__name__ for part in read_parts(path)] == ["CorpusRow"]


@pytest.mark.timing
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("digits.csv", lambda n: f"{'1' * 7 * n}a,b\n"),
        ("short.csv", lambda n: ",".join(map(str, range(n))) + "\n" + "x,y\n" * n),
        ("marks.rst", lambda n: "`a " * n),
        ("names.json", lambda n: json.dumps({"n" * n: [{str(at): 1} for at in range(n // 10)]})),
        ("header.eml", lambda n: "To: " + "A <a@b.org>, " * n + "\n\nhi\n"),
    ],
)
def test_time_is_linear_in_a_text(tmp_path: Path, name: str, text: Callable[[int], str]) -> None:
    path = tmp_path / name
    times = []
    for count in (2000, 16000):
        path.write_text(text(count))
        runs = []
        for _ in range(3):
            begun = time.thread_time()
            list(read_parts(path))
            runs.append(time.thread_time() - begun)
        times.append(min(runs))
    assert times[1] < 24 * times[0] + 0.01


def test_messages_within_messages_are_read_to_a_depth(tmp_path: Path) -> None:
    mail = message("The innermost.")
    for _ in range(9):
        outer = message("A text.")
        outer.add_attachment(mail)
        mail = outer
    (tmp_path / "a.eml").write_bytes(bytes(mail))
    assert [text.strip() for text, _ in placed(tmp_path / "a.eml")].count("A text.") == 4
    assert unread(tmp_path / "a.eml").endswith("is not supported")


BAD = {
    "bomb.xlsx": {"xl/workbook.xml": "<a>" + "x" * (33 << 20)},
    "bomb.odt": {"content.xml": "x" * (33 << 20), **_MANIFEST},
    "bomb.epub": {"one.xhtml": "x" * (33 << 20)},
    "bomb.pptx": {"ppt/presentation.xml": "x" * (33 << 20)},
    "empty.xlsx": {},
    "empty.odt": {},
    "empty.epub": {},
    "empty.pptx": {},
    "secret.odt": {
        "content.xml": _ODT,
        "META-INF/manifest.xml": "<manifest><encryption-data/></manifest>",
    },
}


@pytest.mark.parametrize("name", BAD)
def test_bad_archives_are_named(tmp_path: Path, name: str, reader: DocumentReader) -> None:
    path = packed(tmp_path / name, BAD[name])
    with pytest.raises((BadDocument, DocumentTooLarge), match=name) as refused:
        parts = list(reader.read(path))
        assert not any(getattr(part, "text", "").strip() for part in parts[1:])
        raise BadDocument(f"{path}: no text")
    assert "root:" not in str(refused.value)


def test_no_other_file_is_read(tmp_path: Path) -> None:
    content = "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>"
    path = packed(tmp_path / "a.odt", {"content.xml": content, **_MANIFEST})
    assert placed(path) == [("&b;", "")]


@pytest.mark.parametrize("suffix", "xlsx xls ods pptx odt epub msg eml json csv rst".split())
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", _PNG])
def test_other_content_is_refused_or_has_no_text(
    tmp_path: Path, suffix: str, content: bytes, reader: DocumentReader
) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content)
    try:
        assert not any(getattr(part, "text", "").strip() for part in list(reader.read(path))[1:])
    except BadDocument as refused:
        assert str(path) in str(refused)


def test_a_cell_far_away_takes_no_more_memory_than_is_allowed(
    tmp_path: Path, reader: DocumentReader
) -> None:
    """The next file is read again."""
    sheet = (far := Workbook()).active
    assert sheet is not None
    sheet["A1"] = "near"
    sheet["XFD1048576"] = "far"
    far.save(tmp_path / "far.xlsx")
    with pytest.raises((BadDocument, DocumentTooLarge), match=r"far\.xlsx"):
        list(reader.read(tmp_path / "far.xlsx"))
    assert list(reader.read(workbook(tmp_path / "a.xlsx")))


def test_formulas_are_read_by_their_values_and_dates_as_dates(tmp_path: Path) -> None:
    book: Any = Workbook()
    book.active.append(["Day", "Sum"])
    book.active.append([date(2024, 5, 1), "=1+1"])
    book.save(tmp_path / "a.xlsx")
    assert placed(tmp_path / "a.xlsx") == [("Day: 2024-05-01", "sheet Sheet, row 2")]


def test_a_parser_that_panics_refuses_only_the_file(tmp_path: Path, reader: DocumentReader) -> None:
    """The parser of workbooks panics on a sheet of one byte; the next file is read."""
    path = tmp_path / "a.xls"
    book = struct.pack("<HHHHHHB", 0x809, 4, 0x600, 5, 0x85, 1, 0)
    path.write_bytes(compound_file({"Workbook": book}))
    with pytest.raises(BadDocument, match=r"a\.xls: is damaged, or not what its name says"):
        list(reader.read(path))
    assert len(list(reader.read(workbook(tmp_path / "b.xlsx")))) == 6


def test_an_encrypted_workbook_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    path.write_bytes(compound_file({"EncryptedPackage": bytes(8)}))
    with pytest.raises(BadDocument, match=r"a\.xlsx: is encrypted; save it without its password"):
        list(read_parts(path))


def test_a_workbook_with_a_macro_sheet_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx")
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    relations = "xl/_rels/workbook.xml.rels"
    files[relations] = files[relations].replace("/chartsheet", "/xlMacrosheet")
    packed(tmp_path / "b.xlsm", files)
    with pytest.raises(BadDocument, match="Unrecognized sheet:type: "):
        list(read_parts(tmp_path / "b.xlsm"))


def test_a_show_is_read_as_a_presentation(tmp_path: Path) -> None:
    file = Presentation()
    title = file.slides.add_slide(file.slide_layouts[0]).shapes.title
    assert title is not None
    title.text = "On air"
    file.save(str(tmp_path / "a.pptx"))
    with zipfile.ZipFile(tmp_path / "a.pptx") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    types = files["[Content_Types].xml"]
    files["[Content_Types].xml"] = types.replace(b"presentation.main", b"slideshow.main")
    with zipfile.ZipFile(tmp_path / "b.pptx", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert read(tmp_path / "b.pptx")[0] == "On air"


def test_a_tab_in_the_first_line_is_the_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('name\ttext, long, and with commas\nBel\tan "old", small town\n')
    assert placed(path) == [
        ('name: Bel | text, long, and with commas: an "old", small town', "row 2")
    ]


def test_all_parts_of_a_message_are_read(tmp_path: Path) -> None:
    """Mailing lists add a footer; forwarded parts may have parts in them."""
    path = tmp_path / "a.eml"
    path.write_text(
        "From: ada@example.org\nContent-Type: multipart/mixed; boundary=A\n\n"
        "--A\nContent-Type: text/plain\n\nThe text.\n"
        "--A\nContent-Type: multipart/digest; boundary=B\n\n"
        "--B\n\nFrom: bo@example.org\n\nA digest.\n--B--\n"
        "--A\nContent-Type: multipart/mixed; boundary=C\n\n"
        "--C\nContent-Type: text/html\n\n<p>A <b>page</b>.</p>\n"
        "--C\nContent-Type: application/x-unknown\n\nx\n--C--\n"
        "--A\nContent-Type: text/plain\n\nThe footer.\n--A--\n"
    )
    texts = [(text.strip(), place) for text, place in placed(path)]
    assert texts == [
        ("From: ada@example.org", ""),
        ("The text.", ""),
        ("From: bo@example.org", "attachment message-1.eml"),
        ("A digest.", "attachment message-1.eml"),
        ("A page.", "attachment part.html"),
        ("The footer.", "attachment part.txt"),
    ]
    assert unread(path) == "attachment part.bin: is not supported"


def test_a_message_of_outlook_in_a_chinese_code_page(tmp_path: Path) -> None:
    path = tmp_path / "a.msg"
    streams = outlook_streams("Prices", "")
    body = "價格是十二歐元。".encode("cp950")
    properties = streams["__properties_version1.0"]
    properties = properties.replace(
        struct.pack("<HH", 0x001F, 0x1000), struct.pack("<HH", 0x001E, 0x1000)
    )
    properties += struct.pack("<HHIII", 0x0003, 0x3FDE, 6, 950, 0)
    streams |= {"__properties_version1.0": properties, "__substg1.0_1000001E": body}
    path.write_bytes(compound_file(streams))
    assert "價格是十二歐元。" in [block.text for block in read(path)[1]]
