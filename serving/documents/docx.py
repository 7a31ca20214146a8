"""DOCX: paragraphs and rows of tables, in order."""

import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from router.errors import BadDocument
from serving.documents.document import (
    MAX_BYTES,
    MAX_MARKUP_BYTES,
    Block,
    Document,
    Unread,
    raised,
    read_content,
    title_of,
)

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_CHART = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
_DESCRIBED = "{http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing}docPr"
_TWICE = (
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",
    f"{_WORD}moveFrom",
    f"{_WORD}rt",
)
"""Elements whose text stands elsewhere too: text boxes for old programs, where a moved text
was, and readings.
"""
_BREAKS = {
    f"{_WORD}p": "\n",
    f"{_WORD}tab": "\t",
    f"{_WORD}br": "\n",
    f"{_WORD}cr": "\n",
    f"{_WORD}noBreakHyphen": "-",
}
_NOTES = {
    f"{_WORD}{kind}Reference": f"{_WORD}{kind}" for kind in ("footnote", "endnote", "comment")
}
_CONTAINERS = [f"{tag}s" for tag in _NOTES.values()]
_PARTS = frozenset(
    ("footnotes", "endnotes", "comments", "header", "footer", "chart", "diagramData")
)
"""Parts beside the text, by their relation to it."""
_MATHS = {"num": "({})", "den": "/({})", "sup": "^({})", "d": "({})", "rad": "√({})", "mr": "{}; "}
"""How an element of an equation is written."""
_NOT_READ = {
    f"{_WORD}delText": "tracked deletions",
    f"{_WORD}altChunk": "embedded documents",
    "{urn:schemas-microsoft-com:office:office}OLEObject": "embedded objects",
    "{http://schemas.openxmlformats.org/drawingml/2006/picture}pic": "pictures",
    "{urn:schemas-microsoft-com:vml}imagedata": "pictures",
}
_NONE = "\ufffd"
_SYMBOLS = {
    "Symbol": (
        " !∀#∃%&∋()∗+,"
        "−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼"
    )
    + 33 * _NONE
    + "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉"
    "∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪\ufffd〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭",
    "Wingdings": 76 * _NONE
    + f"●{2 * _NONE}□{8 * _NONE}☒{46 * _NONE}▪◻{54 * _NONE}←→↑↓↖↗↙↘{20 * _NONE}✗✓☒☑",
}
"""The letters of fonts of symbols, from a space on."""


def read_docx(path: Path) -> Document:
    """The title is the property of that name, or the first heading. Raises `BadDocument`, and
    `OSError`.
    """
    import docx

    content = read_content(path)
    _check_unpacked(content, path)
    file = docx.Document(io.BytesIO(content))
    relations = [relation for relation in file.part.rels.values() if not relation.is_external]
    others = [
        each.target_part.blob for each in relations if each.reltype.rpartition("/")[2] in _PARTS
    ]
    parts = [file.element.body, *map(docx.oxml.parse_xml, others)]
    for part in parts:
        _prepare(part)
    counts = Counter(_NOT_READ[element.tag] for part in parts for element in part.iter(*_NOT_READ))
    notes = {
        (note.tag, note.get(f"{_WORD}id")): note
        for part in parts
        for note in part.iter(*_NOTES.values())
    }
    headings = {
        style.style_id
        for style in file.styles
        if (style.name or "").startswith(("Heading", "Title"))
    }
    blocks: list[Block | Unread] = list(_blocks(parts[0], headings, notes))
    first = next(
        (block.heading for block in blocks if isinstance(block, Block) and block.heading), None
    )
    blocks += _at_end(
        [*notes.values(), *(part for part in parts[1:] if part.tag not in _CONTAINERS)]
    )
    if counts:
        blocks.append(Unread(", ".join(f"{count} {kind}" for kind, count in counts.items())))
    return Document(title_of(path, file.core_properties.title, first), blocks)


def _prepare(root: Any) -> None:
    """Leave out what stands there twice; write superscripts, equations and symbols as letters."""
    from lxml import etree

    etree.strip_elements(root, *_TWICE, with_tail=False)
    for mark in root.iter(f"{_WORD}vertAlign"):
        if mark.get(f"{_WORD}val") == "superscript":
            for text in mark.getparent().getparent().iter(f"{_WORD}t"):
                text.text = raised(text.text or "")
    for equation in root.iter(f"{_MATH}oMath"):
        equation.text = _equation(equation)
    for box in list(root.iter(f"{_WORD}txbxContent")):
        etree.SubElement(box, f"{_WORD}p")  # what follows begins a line
    for symbol in root.iter(f"{_WORD}sym"):
        letters = _SYMBOLS.get(symbol.get(f"{_WORD}font"), "").ljust(256, _NONE)
        symbol.text = letters[int(symbol.get(f"{_WORD}char", "0"), 16) % 256 - 32]


def _equation(element: Any) -> str:
    """Write an equation on one line: a fraction as (a)/(b), a power as a superscript or ^(n)."""
    kind = element.tag.rpartition("}")[2]
    text = element.text or "" if kind == "t" else "".join(map(_equation, element))
    if kind == "chr":
        return str(element.get(f"{_MATH}val", ""))
    if kind == "sup" and text.isdecimal():
        return raised(text)
    return _MATHS.get(kind, "{}").format(text)


def _check_unpacked(content: bytes, path: Path) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            files = packed.infolist()
    except zipfile.BadZipFile as error:
        raise BadDocument(
            f"{path}: damaged, encrypted, or no DOCX ({error}); save it again from a "
            "word processor."
        ) from error
    markup = sum(
        file.file_size for file in files if file.filename.lower().endswith((".xml", ".rels"))
    )
    if markup > MAX_MARKUP_BYTES or sum(file.file_size for file in files) > MAX_BYTES:
        raise BadDocument(
            f"{path}: unpacks to more than {MAX_MARKUP_BYTES >> 20} MB of text or "
            f"{MAX_BYTES >> 20} MB in all; "
            "split it, or leave it out."
        )


def _blocks(
    body: Any, headings: set[str], notes: dict[tuple[str, str | None], Any]
) -> Iterator[Block]:
    """The blocks of the text, each followed by the notes that it refers to."""
    heading: str | None = None
    for element in _parts(body):
        text = _row(element) if element.tag == f"{_WORD}tr" else _text(element)
        if text.strip(" |"):
            if element.tag == f"{_WORD}p" and element.style in headings:
                heading = " ".join(text.split())
                text = ""
            yield Block(text, heading)
        for reference in element.iter(*_NOTES):
            note = notes.pop((_NOTES[reference.tag], reference.get(f"{_WORD}id")), None)
            if note is not None and (text := _text(note)):
                yield Block(text, heading)


def _at_end(parts: list[Any]) -> Iterator[Block]:
    """The text of headers, footers and other notes, once each, and the words and numbers of
    charts and diagrams.
    """
    texts = [_text(part) for part in parts]
    for part in parts:
        words = part.iter(f"{_DRAWING}t", f"{_CHART}v")
        texts.append(" | ".join(word.text for word in words if word.text))
    yield from (Block(text) for text in dict.fromkeys(texts) if text.strip(" |"))


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
    found = element.iter(f"{_WORD}t", f"{_WORD}sym", f"{_MATH}oMath", _DESCRIBED, *_BREAKS)
    return "".join(
        _BREAKS.get(part.tag) or part.text or f" {part.get('descr') or ''} " for part in found
    ).strip()
