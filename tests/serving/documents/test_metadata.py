"""Metadata of documents: where it comes from, its form, and its bounds."""

import io
import json
import zipfile
from datetime import datetime
from email.message import EmailMessage
from pathlib import Path

import docx
import pptx
import pyarrow as pa
import pytest
from openpyxl import Workbook
from pyarrow import parquet

from serving.documents.metadata import Metadata, metadata_of
from serving.retrieval.build import build_index
from serving.retrieval.embedder import MiniLM
from serving.retrieval.passages import PassageStore
from tests.serving.documents.conftest import ReadAll, read

FRONT = """---
title: On lamps
authors: [Ann Lee, Bo Ek]
date: 2020-01-31
tags:
  - Light, Oil
  - oil
  - Light
---
"""


def archive(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return path


def word(path: Path) -> Path:
    file = docx.Document()
    file.add_paragraph("Text.")
    set_properties(file.core_properties)
    file.save(str(path))
    return path


def slides(path: Path) -> Path:
    file = pptx.Presentation()
    file.slides.add_slide(file.slide_layouts[0]).shapes.title.text = "Text."
    set_properties(file.core_properties)
    file.save(str(path))
    return path


def sheet(path: Path) -> Path:
    book = Workbook()
    book.worksheets[0]["A1"] = "Text."
    book.properties.creator = "Ann Lee"
    book.properties.created = datetime(2020, 1, 31)
    book.properties.keywords = "Light; Oil"
    book.save(path)
    return path


def set_properties(properties: object) -> None:
    values = {"author": "Ann Lee", "created": datetime(2020, 1, 31), "keywords": "Light, Oil"}
    for name, value in values.items():
        setattr(properties, name, value)


def odt(path: Path) -> Path:
    text = '<t:p xmlns:t="urn:oasis:names:tc:opendocument:xmlns:text:1.0">Text.</t:p>'
    meta = (
        '<m xmlns:x="x"><x:initial-creator>Ann Lee</x:initial-creator><x:creator>Bo</x:creator>'
        "<x:creation-date>2020-01-31T10:00:00</x:creation-date><x:date>2021-01-01</x:date>"
        "<x:keyword>Light</x:keyword><x:keyword>Oil</x:keyword></m>"
    )
    files = {"META-INF/manifest.xml": "<m/>", "content.xml": f"<o>{text}</o>"}
    return archive(path, {**files, "Object 1/meta.xml": "<m/>", "meta.xml": meta})


def epub(path: Path) -> Path:
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" xmlns:d="http://purl.org/dc/elements/1.1/">'
        "<metadata><d:creator>Ann Lee</d:creator><d:date>2020-01-31</d:date>"
        "<d:subject>Light</d:subject><d:subject>Oil</d:subject></metadata>"
        '<manifest><item id="a" href="a.xhtml"/></manifest><spine><itemref idref="a"/></spine>'
        "</package>"
    )
    container = '<c><rootfile full-path="p.opf"/></c>'
    page = "<html><body>Text.</body></html>"
    return archive(path, {"META-INF/container.xml": container, "p.opf": package, "a.xhtml": page})


def mail(path: Path) -> Path:
    message = EmailMessage()
    message["From"] = "Ann Lee <ann@lee.example>"
    message["Date"] = "Fri, 31 Jan 2020 23:00:00 -0500"
    message["Keywords"] = "Light, Oil"
    message.set_content("Text.")
    path.write_bytes(message.as_bytes())
    return path


def page(path: Path) -> Path:
    path.write_text(
        '<meta name=Author content="Ann Lee"><meta name=date content="January 31, 2020">'
        '<meta name=keywords content="Light,Oil,,"><p>Text.'
    )
    return path


def printed(path: Path) -> Path:
    path.write_text(
        "%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n"
        "2 0 obj\n<< /Type /Pages /Count 1 /Kids [3 0 R] >>\nendobj\n"
        "3 0 obj\n<< /Type /Page /Parent 2 0 R /MediaBox [0 0 99 99] /Contents 4 0 R /Resources "
        "<< /Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>\nendobj\n"
        "4 0 obj\n<< /Length 36 >> stream"
        "\nBT /F 12 Tf 9 9 Td (Some text.) Tj ET\nendstream\nendobj\n"
        "5 0 obj\n<< /Author (Ann Lee) /CreationDate (D:20200131235959+01'00') "
        "/Keywords (Light, Oil) >>\nendobj\ntrailer << /Root 1 0 R /Info 5 0 R >>\n%%EOF\n"
    )
    return path


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (word, "a.docx"),
        (slides, "a.pptx"),
        (sheet, "a.xlsx"),
        (odt, "a.odt"),
        (epub, "a.epub"),
        (mail, "a.eml"),
        (page, "a.html"),
        (printed, "a.pdf"),
    ],
)
def test_the_properties_of_a_document_are_kept_with_each_passage(
    tmp_path: Path, read_all: ReadAll, write: object, name: str
) -> None:
    assert callable(write)
    passages = read_all(write(tmp_path / name))
    metadata = passages[0].metadata
    assert metadata.path == passages[0].document == name
    assert (metadata.author.partition(" <")[0], metadata.date, metadata.tags) == (
        "Ann Lee",
        "2020-01-31",
        ("Light", "Oil"),
    )


def test_front_matter_of_markdown_is_metadata(tmp_path: Path, read_all: ReadAll) -> None:
    (tmp_path / "a.md").write_text(f"{FRONT}# Lamps\n\nThey burn.\n")
    (passage,) = read_all(tmp_path / "a.md")
    assert passage.metadata == Metadata(
        "On lamps", "2020-01-31", "Ann Lee; Bo Ek", "a.md", ("Light", "Oil", "oil")
    )
    assert passage.text == "They burn."


@pytest.mark.parametrize(
    "front",
    [
        "title: [a\ndate: 2020-01-31",
        "Only a sentence.",
        "- a\n- b",
        "a: &x [*x]",
        "[" * 5000,
        "? [a]\n: b",
        'a: "\\U00110000"',
        f"a: {'b' * 70_000}",
        "a: *b",
    ],
)
def test_malformed_front_matter_is_text(tmp_path: Path, front: str) -> None:
    """No part of the document is lost, and no entity or alias is expanded."""
    path = tmp_path / "a.md"
    path.write_text(f"---\n{front}\n---\n\n# Lamps\n\nThey burn.\n")
    blocks = read(path)[1]
    texts = "".join(f"{block.heading} {block.text}" for block in blocks)
    assert "They burn." in texts
    assert front.rsplit(maxsplit=1)[-1][:50].strip("*-") in texts


def test_aliases_of_front_matter_do_not_multiply(tmp_path: Path, read_all: ReadAll) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    (tmp_path / "a.md").write_text("\n".join(["---", *lines, "tags: *a29", "---", "Text."]))
    assert read_all(tmp_path / "a.md")[0].metadata.tags == ()


@pytest.mark.parametrize(
    ("given", "day"),
    [
        ("2020-01-31T23:00:00Z", "2020-01-31"),
        ("20200131", "2020-01-31"),
        ("2020/01/31", "2020-01-31"),
        ("D:20200131120000Z", "2020-01-31"),
        ("31 January 2020", "2020-01-31"),
        (datetime(2020, 1, 31, 23), "2020-01-31"),
        ("2020", ""),
        ("2020-02-31", ""),
        ("1510123100", ""),
        ("last week", ""),
        (1580428800, ""),
        ("x" * 10_000, ""),
        (["2020-01-31"], "2020-01-31"),
        ({"day": 1}, ""),
    ],
)
def test_a_date_is_a_day_of_iso_8601_or_is_left_out(given: object, day: str) -> None:
    assert metadata_of({"date": given}).date == day


def test_metadata_is_bounded_and_printable() -> None:
    metadata = metadata_of(
        {
            "title": "a" * 1000,
            "author": ["b\x00\ud800\nc"] * 1000,
            "tags": [str(number) * 300 for number in range(100)],
        }
    )
    assert metadata.title == "a" * 200
    assert metadata.author.startswith("b c; b c; ")
    assert len(metadata.author) == 200
    assert len(metadata.tags) == 20
    assert max(map(len, metadata.tags)) == 200


def test_rows_bring_their_metadata(tmp_path: Path, read_all: ReadAll) -> None:
    """Fields of other types are no error: corpora have fields of these names for other purposes."""
    row = {"id": "a", "title": "Lamps", "text": "They burn.", "date": datetime(2020, 1, 31)}
    row |= {"author": "Ann Lee", "path": "wiki/lamps.html", "tags": ["Light", "Oil"]}
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    others = {"id": "b", "text": "Text.", "date": 2020, "author": {"a": 1}, "tags": [1]}
    lines = [json.dumps({**row, "date": "2020-01-31"}), json.dumps(others)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    lamps = Metadata("Lamps", "2020-01-31", "Ann Lee", "wiki/lamps.html", ("Light", "Oil"))
    rows = [row.metadata for row in read_all(tmp_path / "a.jsonl")]
    assert rows == [lamps, Metadata(path="a.jsonl")]
    assert [row.metadata for row in read_all(tmp_path / "a.parquet")] == [lamps]


def test_damaged_properties_do_not_make_a_document_unreadable(tmp_path: Path) -> None:
    content = io.BytesIO(sheet(tmp_path / "a.xlsx").read_bytes())
    with zipfile.ZipFile(content) as packed:
        files = {name: packed.read(name).decode() for name in packed.namelist()}
    path = archive(tmp_path / "b.xlsx", {**files, "docProps/core.xml": "\x00<"})
    assert [block.text for block in read(path)[1]] == ["Text."]


def test_the_index_keeps_metadata_over_updates(tmp_path: Path, embedder: MiniLM) -> None:
    """A file that has not changed is copied from the previous build with its metadata."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text(f"{FRONT}They burn.\n")
    build_index([docs], tmp_path / "index", embedder)
    (docs / "b.md").write_text("Other text.\n")
    built = build_index([docs], tmp_path / "index", embedder)
    passages = PassageStore(tmp_path / "index" / built.manifest.generation)
    assert built.documents_read == 1
    assert [passages.stored(row).metadata.author for row in range(2)] == ["Ann Lee; Bo Ek", ""]
    assert [passages.stored(row).metadata.path for row in range(2)] == ["docs/a.md", "docs/b.md"]
