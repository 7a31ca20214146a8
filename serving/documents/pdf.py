"""Read PDF, page by page."""

import re
from collections.abc import Iterator
from ctypes import c_double
from itertools import pairwise
from pathlib import Path
from typing import Any

from router.errors import BadDocument
from serving.documents.document import (
    Document,
    TextBlock,
    Unread,
    encrypted,
    raised,
    read_content,
    title_of,
)
from serving.documents.metadata import metadata_of
from serving.documents.ocr import MAX_PAGES, MAX_SIDE, has_ocr, how_to_read, recognised

_PASSWORD = 4
"""PDFium's error code for a missing password."""
_HYPHEN = re.compile(r"[\ufffe\x02](?:\r?\n)?")
"""PDFium's character for a hyphen that divides a word at the end of a line, with the line break
that may follow it.
"""
_SHORT_LINE = 0.6
"""A line ends a paragraph, or is a heading, if it is shorter than this share of the page's longest
line.
"""
_MAX_SHOWN = 20
"""Max number of page numbers in a message."""
_AFTER_TEXT = re.compile(r"(?<=\S)[0-9+−-]+")
"""Matches digits and signs directly after text. They may be superscripts."""
_SAME_LINE = re.compile(r"([⁰¹²³⁴-⁹⁺⁻])\r\n(?= )")
"""Matches a wrong line break that PDFium adds after a superscript, if the line continues with a
space.
"""
_RAISED = 0.25
"""A character is a superscript if its baseline is raised by more than this share of its height."""
_MAX_SCALE = 150 / 72
"""Max scale at which scans are rendered, in pixels per point (150 dpi)."""
_UPRIGHT = 0.01
"""A character counts as not rotated if its angle is below this value, in radians."""


def read_pdf(path: Path) -> Document:
    """Read a PDF file, with a block for each page. Raises `BadDocument` for a large, encrypted or
    damaged file, and `OSError`. If the PDF has no text at all, the iterator over its blocks raises
    `BadDocument` at the end.
    """
    import pypdfium2

    try:
        pdf = pypdfium2.PdfDocument(read_content(path))
    except pypdfium2.PdfiumError as error:
        if error.err_code == _PASSWORD:
            raise encrypted(path) from error
        raise BadDocument(
            f"{path}: is damaged, or not a PDF ({error}); save it again, or leave it out."
        ) from error
    about = metadata_of({name.lower(): value for name, value in pdf.get_metadata_dict().items()})
    return Document(title_of(path, about.title), _pages(pdf, path), about)


def _pages(pdf: Any, path: Path) -> Iterator[TextBlock | Unread]:
    import pypdfium2

    has_text = False
    scans = 0
    unread = dict[str, list[str]]()
    try:
        for number in range(1, len(pdf) + 1):
            try:
                page = pdf[number - 1]
                text = _paragraphs(_HYPHEN.sub("", _text(page)))
                is_blank = next(page.get_objects(max_depth=1), None) is None
                if not (text.strip() or is_blank) and scans < MAX_PAGES and has_ocr():
                    scans += 1
                    scale = min(_MAX_SCALE, MAX_SIDE / max(*page.get_size(), 1))
                    text = recognised(page.render(scale=scale).to_pil())
                page.close()
            except pypdfium2.PdfiumError:
                unread.setdefault("damaged pages", []).append(str(number))
                continue

            if text.strip():
                has_text = True
            elif not is_blank:
                unread.setdefault("pages without text", []).append(str(number))
            yield TextBlock(text, page=number)
    finally:
        pdf.close()

    if not has_text:
        raise BadDocument(
            f"{path}: contains no text, as if its pages were scanned; {how_to_read()}."
        )
    for kind, numbers in unread.items():
        more = ", …" if len(numbers) > _MAX_SHOWN else ""
        yield Unread(f"{len(numbers)} {kind} ({', '.join(numbers[:_MAX_SHOWN])}{more})")


def _text(page: Any) -> str:
    """Return the text of a page, with superscripts as Unicode superscripts."""
    text_page = page.get_textpage()
    text: str = text_page.get_text_bounded()
    whole: str = text_page.get_text_range()
    characters = list(whole)
    is_aligned = len(characters) == text_page.count_chars()
    if is_aligned and "".join(whole.split()) == "".join(text.split()):
        for run in _AFTER_TEXT.finditer(whole):
            base, _ = _place(text_page, run.start() - 1)
            places = {index: _place(text_page, index) for index in range(*run.span())}
            above = [
                index
                for index, (level, height) in places.items()
                if level - base > _RAISED * height > 0
            ]
            superscript = raised("".join(characters[index] for index in above))
            for index, character in zip(above, superscript, strict=True):
                characters[index] = character
        text = _SAME_LINE.sub(r"\1", "".join(characters))
    text_page.close()
    return text


def _place(text_page: Any, index: int) -> tuple[float, float]:
    """Return the baseline and the height of a character, in points. The height is 0 if the
    character is rotated.
    """
    from pypdfium2 import raw

    x = c_double()
    y = c_double()
    raw.FPDFText_GetCharOrigin(text_page.raw, index, x, y)
    _, bottom, _, top = text_page.get_charbox(index)
    is_upright = abs(raw.FPDFText_GetCharAngle(text_page.raw, index)) < _UPRIGHT
    return y.value, is_upright * (top - bottom)


def _paragraphs(text: str) -> str:
    """Return the lines of `text` with a blank line after each paragraph."""
    lines = [line.strip() for line in text.splitlines()]
    short = _SHORT_LINE * max(map(len, lines), default=0)
    paragraphs = []
    for line, following in pairwise([*lines, ""]):
        is_end = len(line) < short and not following[:1].islower()
        paragraphs.append(f"{line}\n\n" if is_end else f"{line}\n")
    return "".join(paragraphs)
