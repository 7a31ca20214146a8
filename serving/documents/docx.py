"""DOCX: paragraphs and rows of tables, in order."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from router.errors import BadDocument
from serving.documents.document import MAX_BYTES, MAX_MARKUP_BYTES, Block, Document, read_content, title_of

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_TWICE = ("{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback", f"{_WORD}moveFrom")
"""Elements whose text stands elsewhere too: text boxes for old programs, and where a moved text was."""
_BREAKS = {f"{_WORD}p": "\n", f"{_WORD}tab": "\t", f"{_WORD}br": "\n", f"{_WORD}cr": "\n", f"{_WORD}noBreakHyphen": "-"}


def read_docx(path: Path) -> Document:
    """The title is the property of that name, or the first heading. Raises `BadDocument`, and `OSError`."""
    import docx
    from lxml import etree

    content = read_content(path)
    _check_unpacked(content, path)
    file = docx.Document(io.BytesIO(content))
    etree.strip_elements(file.element.body, *_TWICE, with_tail=False)
    headings = {style.style_id for style in file.styles if (style.name or "").startswith(("Heading", "Title"))}
    blocks = list(_blocks(file.element.body, headings))
    first = next((block.heading for block in blocks if block.heading), None)
    return Document(title_of(path, file.core_properties.title, first), blocks)


def _check_unpacked(content: bytes, path: Path) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            files = packed.infolist()
    except zipfile.BadZipFile as error:
        raise BadDocument(
            f"{path}: damaged, encrypted, or no DOCX ({error}); save it again from a word processor."
        ) from error
    markup = sum(file.file_size for file in files if file.filename.lower().endswith((".xml", ".rels")))
    if markup > MAX_MARKUP_BYTES or sum(file.file_size for file in files) > MAX_BYTES:
        raise BadDocument(
            f"{path}: unpacks to more than {MAX_MARKUP_BYTES >> 20} MB of text or {MAX_BYTES >> 20} MB in all; "
            "split it, or leave it out."
        )


def _blocks(body: Any, headings: set[str]) -> Iterator[Block]:
    heading: str | None = None
    for element in _parts(body):
        text = _row(element) if element.tag == f"{_WORD}tr" else _text(element)
        if not text.strip(" |"):
            continue
        if element.tag == f"{_WORD}p" and element.style in headings:
            heading, text = " ".join(text.split()), ""
        yield Block(text, heading)


def _parts(element: Any) -> Iterator[Any]:
    """The paragraphs and plain rows below an element, wherever they are wrapped."""
    for child in element:
        if child.tag == f"{_WORD}p" or (child.tag == f"{_WORD}tr" and _is_plain(child)):
            yield child
        else:
            yield from _parts(child)


def _is_plain(row: Any) -> bool:
    """Tell a row of values from a frame around a part of the document."""
    return len(list(row.iter(f"{_WORD}tc"))) > 1 and next(row.iter(f"{_WORD}tbl"), None) is None


def _row(row: Any) -> str:
    return " | ".join(" ".join(_text(cell).split()) for cell in row.iter(f"{_WORD}tc"))


def _text(element: Any) -> str:
    found = element.iter(f"{_WORD}t", *_BREAKS)
    return "".join(_BREAKS.get(part.tag) or part.text or "" for part in found).strip()
