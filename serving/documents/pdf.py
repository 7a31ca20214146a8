"""PDF, page by page."""

import re
from collections.abc import Iterator
from ctypes import c_double
from pathlib import Path
from typing import Any

from router.errors import BadDocument
from serving.documents.document import Block, Document, Unread, raised, read_content, title_of

_PASSWORD = 4
"""PDFium's number for a missing password."""
_HYPHEN = re.compile(r"[\ufffe\x02](?:\r?\n)?")
"""The mark that PDFium puts where a word was divided at the end of a line."""
_SHORT_LINE = 0.6
"""A line with less than this share of the longest one's letters ends a paragraph, or is a
heading.
"""

_MAX_SHOWN = 20
"""The most pages whose numbers are shown."""
_AFTER_TEXT = re.compile(r"(?<=\S)[0-9+−-]+")
_SAME_LINE = re.compile(r"([⁰¹²³⁴-⁹⁺⁻])\r\n(?= )")
"""A new line that PDFium sees after a superscript, where the line goes on with a space."""
_RAISED = 0.25
"""A digit that stands higher by this share of its height is a superscript."""
_UPRIGHT = 0.01
"""The largest angle of a letter that is not turned, in radians."""


def read_pdf(path: Path) -> Document:
    """Each page is a block. Raises `BadDocument`, for a PDF without any text once its pages are
    read, and `OSError`.
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

    read = 0
    unread: dict[str, list[str]] = {}
    try:
        for number in range(1, len(pdf) + 1):
            try:
                page = pdf[number - 1]
                text = _paragraphs(_HYPHEN.sub("", _text(page)))
                is_blank = next(page.get_objects(max_depth=1), None) is None
                page.close()
            except pypdfium2.PdfiumError:
                unread.setdefault("damaged pages", []).append(str(number))
                continue
            if text.strip():
                read += 1
            elif not is_blank:
                unread.setdefault("pages without text", []).append(str(number))
            yield Block(text, page=number)
    finally:
        pdf.close()
    if not read:
        raise BadDocument(
            f"{path}: holds no text, as scans do; put it through OCR (ocrmypdf does "
            "that), or leave it out."
        )
    for kind, numbers in unread.items():
        more = ", …" if len(numbers) > _MAX_SHOWN else ""
        yield Unread(f"{len(numbers)} {kind} ({', '.join(numbers[:_MAX_SHOWN])}{more})")


def _text(page: Any) -> str:
    """The text of a page; digits that stand higher than what is before them are superscripts."""
    text_page = page.get_textpage()
    text: str = text_page.get_text_bounded()
    whole: str = text_page.get_text_range()
    letters = list(whole)
    if len(letters) == text_page.count_chars() and "".join(whole.split()) == "".join(text.split()):
        for run in _AFTER_TEXT.finditer(whole):
            base, _ = _place(text_page, run.start() - 1)
            places = {index: _place(text_page, index) for index in range(*run.span())}
            above = [
                index
                for index, (level, height) in places.items()
                if level - base > _RAISED * height > 0
            ]
            for index, letter in zip(
                above, raised("".join(letters[index] for index in above)), strict=True
            ):
                letters[index] = letter
        text = _SAME_LINE.sub(r"\1", "".join(letters))
    text_page.close()
    return text


def _place(text_page: Any, index: int) -> tuple[float, float]:
    """How high a letter stands, and its own height; 0 where it is turned."""
    from pypdfium2 import raw

    x = c_double()
    y = c_double()
    raw.FPDFText_GetCharOrigin(text_page.raw, index, x, y)
    _, bottom, _, top = text_page.get_charbox(index)
    is_upright = abs(raw.FPDFText_GetCharAngle(text_page.raw, index)) < _UPRIGHT
    return y.value, is_upright * (top - bottom)


def _paragraphs(text: str) -> str:
    """The lines as they are, with blank lines between paragraphs."""
    lines = [line.strip() for line in text.splitlines()]
    short = _SHORT_LINE * max(map(len, lines), default=0)
    pairs = zip(lines, [*lines[1:], ""], strict=False)
    return "".join(
        f"{line}\n\n" if len(line) < short and not following[:1].islower() else f"{line}\n"
        for line, following in pairs
    )
