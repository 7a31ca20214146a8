"""Text from outside as it is shown or written: one function for each format, so that it stays
text there.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any
from unicodedata import normalize

_OBEYED = (
    *(code for code in range(0x20) if chr(code) not in "\t\n"),
    *range(0x7F, 0xA0),  # among them U+009B, which begins a sequence as ESC [ does
    *range(0x2028, 0x202F),  # separators of lines, and what turns the direction of writing
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),  # of names that are not UTF-8, and cannot be printed
)
SHOWN = {code: f"\\u{code:04x}" for code in _OBEYED}
"""As JSON writes them, so that JSON stays the same JSON."""
_MARKUP = re.compile(
    r"[\\`*_\[\]<&|~$]|(?<=[!-~])@"
    r"|:(?=//)|/(?=/)"  # addresses that a renderer would make links of
    r"|(?<=\bwww)\.|\.(?=(?:[^\W\d_]{2}|com|edu|gov|net|org|biz|pro|web|xxx|aero|asia|"
    r"coop|info|museum|name|shop)\b)",
    re.IGNORECASE,
)
_OF_MODELS = re.compile(r"(?<!\\)((?:\\\\)*)(<(?=\S)|!(?=\[)|&(?=#))|(?<=\])(?=[(:])")
_LEADING = (
    " \t\r\n\v\f\0\"'\u00a0\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202f\u2060\u3000\ufeff"
)
_SIGNED = re.compile(r"[+-]\d[\d., ]*(e[+-]?\d+)?%?", re.ASCII | re.IGNORECASE)


def visible(text: str) -> str:
    r"""Return the text with `\u001b` for the escape character, and so on for all that terminals
    obey but tab and newline.
    """
    # Of these characters, none is printable
    return text if text.isprintable() else text.translate(SHOWN)


def markdown(text: str) -> str:
    """Return one line of Markdown that shows the text as it stands: no link, image, HTML or
    emphasis comes of it.
    """
    return _MARKUP.sub(r"\\\g<0>", visible(" ".join(text.split())))


def model_markdown(text: str) -> str:
    """Return a model's Markdown without images, links and HTML, which may be copied from a document
    and carry what was found to another host. They are shown as they were written; all other
    Markdown stays.
    """
    return visible("\n".join(_OF_MODELS.sub(r"\1\\\2", line) for line in text.splitlines()))


def markdown_table(
    columns: Iterable[str], rows: Iterable[Sequence[str]], aligned: Sequence[str] = ()
) -> str:
    """Return a table in Markdown. `aligned`: the dashes below each column's name."""
    head, *lines = (list(map(markdown, row)) for row in (columns, *rows))
    return "".join(
        f"| {' | '.join(line)} |\n" for line in (head, aligned or ["---"] * len(head), *lines)
    )


def place(title: str, page: int | None) -> str:
    """Title and page for a reader: `Heat, p. 3`."""
    return f"{title}, p. {page}" if page else title


def source_line(citation: Any) -> str:
    """Title and page, the quoted sentence, and the document, of a message or of a value with
    the same fields.
    """
    document = f" ({citation.document})" if citation.document else ""
    return " ".join(f"{place(citation.title, citation.page)}: “{citation.quote}”{document}".split())


def inert(text: str) -> str:
    """Return the text with an apostrophe before whatever a spreadsheet would take for a formula: at
    its start, and behind what may part cells elsewhere. Plain signed numbers and telephone numbers
    stay as they are.
    """
    parts = (f"'{part}" if _is_formula(part) else part for part in re.split(r"([;\t\r\n])", text))
    return "'" * text.startswith(("\t", "\r", "\n")) + "".join(parts)


def _is_formula(text: str) -> bool:
    start = text.lstrip(_LEADING)[:1]
    return normalize("NFKC", start)[:1] in ("=", "+", "-", "@") and not _SIGNED.fullmatch(
        text.strip()
    )


def csv_text(rows: Iterable[Sequence[object]], delimiter: str = ",") -> str:
    """Return the rows as CSV (RFC 4180) without formulas and without characters that terminals
    obey.
    """
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter)
    writer.writerows(
        [inert(visible(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return file.getvalue()
