"""Escaping of untrusted text for terminals, Markdown, CSV files and spreadsheets."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any
from unicodedata import normalize

_CONTROLS = (
    *(code for code in range(0x20) if chr(code) not in "\t\n"),
    *range(0x7F, 0xA0),  # C1 controls; U+009B begins a sequence like ESC [
    *range(0x2028, 0x202F),  # line separators and bidirectional controls
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),  # surrogates, from file names that are not UTF-8
    0xFFFE,
    0xFFFF,  # not characters, and not allowed in XML
)
SHOWN = {code: f"\\u{code:04x}" for code in _CONTROLS}
"""Escape sequence for each control character. The sequences are those of JSON, so a JSON text keeps
its meaning when its control characters are escaped.
"""
_MARKUP = re.compile(
    r"[\\`*_\[\]<&|~$]|(?<=[!-~])@"
    r"|:(?=//)|/(?=/)"  # bare addresses that a renderer turns into links
    r"|(?<=\bwww)\.|\.(?=(?:[^\W\d_]{2}|com|edu|gov|net|org|biz|pro|web|xxx|aero|asia|"
    r"coop|info|museum|name|shop)\b)",
    re.IGNORECASE,
)
_MODEL_MARKUP = re.compile(r"(?<!\\)((?:\\\\)*)(<(?=\S)|!(?=\[)|&(?=#))|(?<=\])(?=[(:])")
_LEADING = (
    " \t\r\n\v\f\0\"'\u00a0\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202f\u2060\u3000\ufeff"
)
_SIGNED = re.compile(r"[+-]\d[\d., ]*(e[+-]?\d+)?%?", re.ASCII | re.IGNORECASE)


def visible(text: str) -> str:
    r"""Return `text` with control characters, except tab and newline, replaced by escape sequences
    such as `\u001b`.
    """
    # Printable texts contain no control characters, so most texts need no translation.
    return text if text.isprintable() else text.translate(SHOWN)


def markdown(text: str) -> str:
    """Return a line of Markdown that renders as the literal text, without links, images, HTML or
    emphasis. Newlines become spaces.
    """
    return _MARKUP.sub(r"\\\g<0>", visible(" ".join(text.split())))


def model_markdown(text: str) -> str:
    """Return the Markdown that a model wrote, with images, links and HTML escaped. Other Markdown
    is not changed.

    A hostile document may make a model write an image or a link whose address sends data to another
    host.
    """
    return visible("\n".join(_MODEL_MARKUP.sub(r"\1\\\2", line) for line in text.splitlines()))


def markdown_table(
    columns: Iterable[str], rows: Iterable[Sequence[str]], aligned: Sequence[str] = ()
) -> str:
    """Return a table in Markdown. `aligned`: the cells of the delimiter row, such as `---:`; if
    empty, columns have the default alignment.
    """
    head, *lines = (list(map(markdown, row)) for row in (columns, *rows))
    return "".join(
        f"| {' | '.join(line)} |\n" for line in (head, aligned or ["---"] * len(head), *lines)
    )


def place(title: str, page: int | None, location: str = "") -> str:
    """Return the title of a document, followed by the page number or the location if known: `Heat,
    p. 3`, or `Prices, row 14`. If the title ends with the name of the sheet, the location does not
    repeat it.
    """
    location = location.removeprefix(f"sheet {title.rpartition(' › ')[2]}, ")
    return ", ".join(filter(None, (title, f"p. {page}" if page else "", location)))


def source_line(citation: Any) -> str:
    """Return a line with the title, page, quoted sentence and document of a citation. `citation`: a
    `Citation` message, or an object with the same attributes.
    """
    document = f" ({citation.document})" if citation.document else ""
    where = place(citation.title, citation.page, citation.location)
    return " ".join(f"{where}: “{citation.quote}”{document}".split())


def inert(text: str) -> str:
    """Return a text to write into a cell of a CSV file, escaped so that no spreadsheet runs a part
    of it as a formula.

    An apostrophe is put before each part that a spreadsheet would treat as a formula. A part begins
    at the start of the text and after each character that may separate cells. Signed numbers and
    telephone numbers are not changed.
    """
    parts = (f"'{part}" if _is_formula(part) else part for part in re.split(r"([;\t\r\n])", text))
    return "'" * text.startswith(("\t", "\r", "\n")) + "".join(parts)


def _is_formula(text: str) -> bool:
    start = text.lstrip(_LEADING)[:1]
    return normalize("NFKC", start)[:1] in ("=", "+", "-", "@") and not _SIGNED.fullmatch(
        text.strip()
    )


def csv_text(rows: Iterable[Sequence[object]], delimiter: str = ",") -> str:
    """Return the rows as CSV (RFC 4180). Formulas are escaped by `inert`, and control characters by
    `visible`.
    """
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter)
    writer.writerows(
        [inert(visible(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return file.getvalue()
