"""Read DOCX: paragraphs and table rows, in order."""

import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving.documents.document import Document, TextBlock, packed_document, raised, read_archive

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_EQUATION = "{http://schemas.openxmlformats.org/officeDocument/2006/math}oMath"
_PICTURE_TEXT = "{http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing}docPr"
_DUPLICATES = (
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",
    f"{_WORD}moveFrom",
    f"{_WORD}rt",
)
"""Elements that are dropped: text boxes repeated in a form for old programs, moved text at its
former place, and pronunciations (ruby).
"""
_REPLACEMENTS = {
    f"{_WORD}p": "\n",
    f"{_WORD}tab": "\t",
    f"{_WORD}br": "\n",
    f"{_WORD}cr": "\n",
    f"{_WORD}noBreakHyphen": "-",
    _EQUATION: "[equation]",
}
_NOTES = {
    f"{_WORD}{kind}Reference": f"{_WORD}{kind}" for kind in ("footnote", "endnote", "comment")
}
_NOTE_LISTS = [f"{tag}s" for tag in _NOTES.values()]
_PARTS = frozenset(("footnotes", "endnotes", "comments", "header", "footer"))
"""A DOCX file has a body and further parts. Parts of these types are read in addition to the
body.
"""
_NOT_READ = {
    f"{_WORD}delText": "tracked deletions",
    f"{_WORD}altChunk": "embedded documents",
    "{urn:schemas-microsoft-com:office:office}OLEObject": "embedded objects",
    "{http://schemas.openxmlformats.org/drawingml/2006/picture}pic": "pictures",
    "{urn:schemas-microsoft-com:vml}imagedata": "pictures",
    "{http://schemas.openxmlformats.org/drawingml/2006/chart}chart": "charts",
    "{http://schemas.openxmlformats.org/drawingml/2006/diagram}relIds": "diagrams",
    _EQUATION: "equations",
}
_UNKNOWN = "\ufffd"
_SYMBOLS = {
    "Symbol": (
        " !∀#∃%&∋()∗+,"
        "−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼"
    )
    + 33 * _UNKNOWN
    + "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉"
    "∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪\ufffd〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭",
    "Wingdings": 76 * _UNKNOWN
    + f"●{2 * _UNKNOWN}□{8 * _UNKNOWN}☒{46 * _UNKNOWN}▪◻{54 * _UNKNOWN}←→↑↓↖↗↙↘{20 * _UNKNOWN}✗✓☒☑",
}
"""Unicode equivalents of the characters of symbol fonts, from code 32 on, by the font's name."""


def read_docx(path: Path) -> Document:
    """Read a DOCX file. Its title is the title property, or else the first heading. Raises
    `BadDocument` for a large, encrypted or damaged file, and `OSError`.
    """
    import docx

    content = read_archive(path, "DOCX")
    file = docx.Document(io.BytesIO(content))
    body = file.element.body
    others = [
        docx.oxml.parse_xml(relation.target_part.blob)
        for relation in file.part.rels.values()
        if not relation.is_external and relation.reltype.rpartition("/")[2] in _PARTS
    ]
    unread = Counter[str]()
    notes = {}
    for part in (body, *others):
        _prepare(part)
        unread.update(_NOT_READ[element.tag] for element in part.iter(*_NOT_READ))
        notes.update({(note.tag, _id(note)): note for note in part.iter(*_NOTES.values())})

    styles = {style.style_id: style.name or "" for style in file.styles}
    headings = {style for style, name in styles.items() if name.startswith(("Heading", "Title"))}
    blocks = list(_blocks(body, headings, notes))
    at_end = [
        *notes.values(),
        *(part for part in others if part.tag not in _NOTE_LISTS),
    ]
    blocks += [TextBlock(text) for text in dict.fromkeys(map(_text, at_end)) if text]
    return packed_document(path, content, blocks, unread)


def _prepare(root: Any) -> None:
    """Remove duplicate text, convert superscripts and symbols to Unicode, and end text boxes with a
    line break.
    """
    from lxml import etree

    etree.strip_elements(root, *_DUPLICATES, with_tail=False)
    for mark in root.iter(f"{_WORD}vertAlign"):
        if mark.get(f"{_WORD}val") == "superscript":
            for text in mark.getparent().getparent().iter(f"{_WORD}t"):
                text.text = raised(text.text or "")
    for box in list(root.iter(f"{_WORD}txbxContent")):
        etree.SubElement(box, f"{_WORD}p")
    for symbol in root.iter(f"{_WORD}sym"):
        characters = _SYMBOLS.get(symbol.get(f"{_WORD}font"), "").ljust(256, _UNKNOWN)
        symbol.text = characters[int(symbol.get(f"{_WORD}char", "0"), 16) % 256 - 32]


def _blocks(
    body: Any, headings: set[str], notes: dict[tuple[str, str | None], Any]
) -> Iterator[TextBlock]:
    """Yield the blocks of the text. After each block, yield the footnotes, endnotes and comments to
    which the block refers, and remove them from `notes`.
    """
    heading: str | None = None
    for element in _paragraphs_and_rows(body):
        text = _row(element) if element.tag == f"{_WORD}tr" else _text(element)
        if text.strip(" |"):
            if element.tag == f"{_WORD}p" and element.style in headings:
                heading = " ".join(text.split())
                text = ""
            yield TextBlock(text, heading)
        for reference in element.iter(*_NOTES):
            note = notes.pop((_NOTES[reference.tag], _id(reference)), None)
            if note is not None and (text := _text(note)):
                yield TextBlock(text, heading)


def _id(element: Any) -> str | None:
    value: str | None = element.get(f"{_WORD}id")
    return value


def _paragraphs_and_rows(element: Any) -> Iterator[Any]:
    """Yield the paragraphs, and the table rows that have values, below an element at any depth."""
    for child in element:
        if child.tag == f"{_WORD}p" or (child.tag == f"{_WORD}tr" and _has_values(child)):
            yield child
        else:
            yield from _paragraphs_and_rows(child)


def _has_values(row: Any) -> bool:
    """Return True if a table row has values, False if its table only arranges other content on the
    page.
    """
    return len(list(row.iter(f"{_WORD}tc"))) > 1 and next(row.iter(f"{_WORD}tbl"), None) is None


def _row(row: Any) -> str:
    return " | ".join(" ".join(_text(cell).split()) for cell in row.iter(f"{_WORD}tc"))


def _text(element: Any) -> str:
    parts = element.iter(f"{_WORD}t", f"{_WORD}sym", _PICTURE_TEXT, *_REPLACEMENTS)
    texts = (
        _REPLACEMENTS.get(part.tag) or part.text or f" {part.get('descr') or ''} " for part in parts
    )
    return "".join(texts).strip()
