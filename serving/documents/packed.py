"""Read ODT and EPUB, which are markup in a ZIP archive."""

import io
import posixpath
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from serving.documents.document import (
    Document,
    TextBlock,
    Unread,
    encrypted,
    packed_document,
    read_archive,
    title_of,
)
from serving.documents.markup import read_page, read_tree
from serving.documents.metadata import archive_metadata, parsed
from serving.documents.text import decode

_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_DRAW = "{urn:oasis:names:tc:opendocument:xmlns:drawing:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_OPF = "{http://www.idpf.org/2007/opf}"
_AS_HTML = {
    f"{_TEXT}h": "h1",
    f"{_TEXT}p": "p",
    f"{_TEXT}span": "span",
    f"{_TEXT}a": "a",
    f"{_TEXT}list-item": "li",
    f"{_TEXT}line-break": "br",
    f"{_TEXT}note": "aside",
    f"{_OFFICE}annotation": "aside",
    f"{_TABLE}table-row": "tr",
    f"{_TABLE}table-cell": "td",
}
"""Elements of ODT are converted to elements of HTML. The keys are names in ODT, and the values are
names in HTML.
"""
_NOT_READ = {
    f"{_TEXT}tracked-changes": "tracked deletions",
    f"{_DRAW}image": "pictures",
    f"{_DRAW}object": "embedded objects",
}


def read_odt(path: Path) -> Document:
    """Read an ODT text document. Its title is the title property, or else the first heading. Raises
    `BadDocument` for a large, encrypted or damaged file, and `OSError`.
    """
    from lxml import etree

    content = read_archive(path, "ODT")
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        if b"encryption-data" in packed.read("META-INF/manifest.xml"):
            raise encrypted(path)
        root = parsed(packed.read("content.xml"))

    unread = Counter(_NOT_READ[element.tag] for element in root.iter(*_NOT_READ))
    etree.strip_elements(root, *_NOT_READ, with_tail=False)
    for space in list(root.iter(f"{_TEXT}s", f"{_TEXT}tab", f"{_TEXT}note-citation")):
        space.text = "\t" if space.tag.endswith("tab") else " "
        space.tag = "span"
    for note in list(root.iter(f"{_TEXT}note", f"{_OFFICE}annotation")):
        _move_behind_paragraph(note)
    for element in root.iter(*_AS_HTML):
        element.tag = _AS_HTML[element.tag]

    return packed_document(path, content, read_tree(root), unread)


def _move_behind_paragraph(note: Any) -> None:
    """Move a note behind the paragraph that contains it, because the note is inside a sentence."""
    paragraph = next(note.iterancestors(f"{_TEXT}p", f"{_TEXT}h"), None)
    if paragraph is None:
        return
    before = note.getprevious()
    if before is not None:
        before.tail = (before.tail or "") + (note.tail or "")
    else:
        note.getparent().text = (note.getparent().text or "") + (note.tail or "")
    note.tail = None
    paragraph.addnext(note)


def read_epub(path: Path) -> Document:
    """Read the pages of an e-book in order. The title is the title in the book's metadata. Raises
    `BadDocument` for a large, encrypted or damaged book, and `OSError`.
    """
    content = read_archive(path, "EPUB")
    packed = zipfile.ZipFile(io.BytesIO(content))
    if (
        "META-INF/encryption.xml" in packed.namelist()
        and "META-INF/rights.xml" in packed.namelist()
    ):
        raise encrypted(path)
    container = parsed(packed.read("META-INF/container.xml"))
    root_file = next(element.get("full-path") for element in container.iter("{*}rootfile"))
    package = parsed(packed.read(root_file))
    files = {item.get("id"): item.get("href", "") for item in package.iter(f"{_OPF}item")}
    folder = posixpath.dirname(root_file)
    pages = [
        posixpath.normpath(posixpath.join(folder, unquote(files.get(item.get("idref"), ""))))
        for item in package.iter(f"{_OPF}itemref")
    ]
    about = archive_metadata(content, root_file)
    return Document(title_of(path, about.title), _pages(packed, dict.fromkeys(pages), path), about)


def _pages(
    packed: zipfile.ZipFile, pages: Iterable[str], path: Path
) -> Iterator[TextBlock | Unread]:
    missing = 0
    with packed:
        names = set(packed.namelist())
        for page in pages:
            if page in names:
                yield from read_page(decode(packed.read(page), path), path).blocks
            else:
                missing += 1
    if missing:
        yield Unread(f"{missing} pages that are not in the file")
