"""PDF, page by page."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from router.errors import BadDocument
from serving.documents.document import Block, Document, read_content, title_of

_PASSWORD = 4
"""PDFium's number for a missing password."""
_HYPHEN = re.compile(r"[\ufffe\x02](?:\r?\n)?")
"""The mark that PDFium puts where a word was divided at the end of a line."""
_SHORT_LINE = 0.6
"""A line with less than this share of the longest one's letters ends a paragraph, or is a heading."""


def read_pdf(path: Path) -> Document:
    """Each page is a block. Raises `BadDocument`, for a PDF without any text once its pages are read, and `OSError`."""
    import pypdfium2

    try:
        pdf = pypdfium2.PdfDocument(read_content(path))
    except pypdfium2.PdfiumError as error:
        if error.err_code == _PASSWORD:
            raise BadDocument(f"{path}: encrypted; save it without its password, or leave it out.") from error
        raise BadDocument(f"{path}: damaged, or no PDF ({error}); save it again, or leave it out.") from error
    return Document(title_of(path, pdf.get_metadata_value("Title")), _pages(pdf, path))


def _pages(pdf: Any, path: Path) -> Iterator[Block]:
    empty = True
    try:
        for number in range(len(pdf)):
            page = pdf[number]
            text_page = page.get_textpage()
            text = _paragraphs(_HYPHEN.sub("", text_page.get_text_bounded()))
            text_page.close()
            page.close()
            empty = empty and not text.strip()
            yield Block(text, page=number + 1)
    finally:
        pdf.close()
    if empty:
        raise BadDocument(
            f"{path}: holds no text, as scans do; put it through OCR (ocrmypdf does that), or leave it out."
        )


def _paragraphs(text: str) -> str:
    """The lines as they are, with blank lines between paragraphs."""
    lines = [line.strip() for line in text.splitlines()]
    short = _SHORT_LINE * max(map(len, lines), default=0)
    pairs = zip(lines, [*lines[1:], ""], strict=False)
    return "".join(
        f"{line}\n\n" if len(line) < short and not following[:1].islower() else f"{line}\n" for line, following in pairs
    )
