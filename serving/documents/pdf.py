"""PDF, page by page."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from router.errors import BadDocument
from serving.documents.document import Block, Document, Unread, read_content, title_of

_PASSWORD = 4
"""PDFium's error code for a missing password."""
_HYPHEN = re.compile(r"[\ufffe\x02](?:\r?\n)?")
"""The mark that PDFium sets where a word is divided at the end of a line."""
_SHORT_LINE = 0.6
"""Share of the longest line below which a line ends a paragraph, or is a heading."""
_MAX_SHOWN = 20
"""Max pages whose numbers are shown."""


def read_pdf(path: Path) -> Document:
    """Read a file, a block for each page.

    Raises `BadDocument`, for a PDF without any text after its last page, and `OSError`.
    """
    import pypdfium2

    try:
        pdf = pypdfium2.PdfDocument(read_content(path))
    except pypdfium2.PdfiumError as error:
        if error.err_code == _PASSWORD:
            raise BadDocument(
                f"{path}: encrypted; save it without its password, or leave it out."
            ) from error
        raise BadDocument(
            f"{path}: damaged, or no PDF ({error}); save it again, or leave it out."
        ) from error
    return Document(title_of(path, pdf.get_metadata_value("Title")), _pages(pdf, path))


def _pages(pdf: Any, path: Path) -> Iterator[Block | Unread]:
    import pypdfium2

    has_text = False
    unread: dict[str, list[str]] = {}
    try:
        for number in range(1, len(pdf) + 1):
            try:
                page = pdf[number - 1]
                text = _paragraphs(_HYPHEN.sub("", page.get_textpage().get_text_bounded()))
                is_blank = next(page.get_objects(max_depth=1), None) is None
                page.close()
            except pypdfium2.PdfiumError:
                unread.setdefault("damaged pages", []).append(str(number))
                continue

            if text.strip():
                has_text = True
            elif not is_blank:
                unread.setdefault("pages without text", []).append(str(number))
            yield Block(text, page=number)
    finally:
        pdf.close()

    if not has_text:
        raise BadDocument(
            f"{path}: contains no text, like a scan; run OCR on it (such as ocrmypdf), or leave it "
            "out."
        )
    for kind, numbers in unread.items():
        more = ", …" if len(numbers) > _MAX_SHOWN else ""
        yield Unread(f"{len(numbers)} {kind} ({', '.join(numbers[:_MAX_SHOWN])}{more})")


def _paragraphs(text: str) -> str:
    """Keep the lines, and put blank lines between paragraphs."""
    lines = [line.strip() for line in text.splitlines()]
    short = _SHORT_LINE * max(map(len, lines), default=0)
    paragraphs = []
    for line, following in pairwise([*lines, ""]):
        is_end = len(line) < short and not following[:1].islower()
        paragraphs.append(f"{line}\n\n" if is_end else f"{line}\n")
    return "".join(paragraphs)
