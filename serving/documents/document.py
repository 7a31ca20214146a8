"""A document as it is read: its kind and title, and blocks of text that know their heading and
page; or rows.
"""

import gzip
import re
from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import msgspec

from router.errors import BadDocument
from router.protocol import Passage

T = TypeVar("T")
Kind = Literal["text", "HTML", "Markdown", "PDF", "DOCX", "rows"]

_KINDS: dict[Kind, str] = {
    "text": ".txt .text .rst",
    "Markdown": ".md .markdown",
    "HTML": ".html .htm .xhtml",
    "PDF": ".pdf",
    "DOCX": ".docx",
    "rows": ".jsonl .json .parquet",
}
_KIND_OF = {suffix: kind for kind, suffixes in _KINDS.items() for suffix in suffixes.split()} | {
    "": "text"
}
READ = f"{' '.join(_KINDS.values())}, files without a suffix, and text in .gz"
"""All kinds, for people."""
MAX_BYTES = 256 << 20
"""The largest file that is read at once, unpacked."""
MAX_MARKUP_BYTES = 32 << 20
"""The same for markup, whose tree takes many times its size."""

_ITEMS = 256
_CHARS = 1_000_000
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\u00ad\ufeff\ufffe\ud800-\udfff]")
_RAISED = str.maketrans("0123456789+-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻")
_SURROGATE = re.compile(r"\\udc([89a-f][0-9a-f])")
_NO_TITLE = re.compile(
    r"Microsoft (Word|PowerPoint|Excel) - .*|.+\.(docx?|pptx?|xlsx?|od[tps]|rtf|tex|dvi|"
    r"indd|pdf|html?|txt)|[\W_]*|"
    r"([\W\d_]*(untitled|unnamed|anonymous|unknown|unspecified|none|null|no title|title|"
    r"index|default|home ?page|"
    r"new (?=page|document|presentation)|(book|sheet)(?=\d)|page(?=\W*\d)|document|"
    r"presentation|powerpoint|microsoft|"
    r"word|slide|template|unbenannt|ohne titel|dokument|präsentation|"
    r"folie|titre|sans|diapositive|présentation|sin título|documento|diapositiva|senza "
    r"titolo|sem título|"
    r"без названия|без имени|документ|слайд|презентация|bez názvu|bez tytułu|naamloos|"
    r"无标题|無標題|未命名|无题|無題|文档|文件|文書|演示文稿|簡報|幻灯片|投影片|名称未設定|タイトルなし|スライド|ドキュメント|"
    r"제목 없음|문서|슬라이드|프레젠테이션))+[\W\d_]*",
    re.I,
)
"""Titles that programs write where nobody gave one."""
_EVERYWHERE = frozenset(
    "readme license licence copying copyright changelog changes news notice index".split()
)
"""Names that tell nothing without their folder's."""


class Title(msgspec.Struct, frozen=True, tag=True):
    """The title of a document."""

    text: str


class Block(msgspec.Struct, frozen=True, tag=True):
    """A paragraph, a row of a table, a page, or a whole text."""

    text: str
    """White space in it is the document's own; empty under a heading that has no text."""
    heading: str | None = None
    """The heading that it stands under."""
    page: int | None = None
    """Its page, from 1."""


class Unread(msgspec.Struct, frozen=True, tag=True):
    """A part of a document that was not read."""

    text: str
    """Its kind and size, for people: `2 pages without text (3, 4)`."""


class Row(msgspec.Struct, frozen=True, tag=True):
    """A passage of a file of rows."""

    where: str
    """Its file and line."""
    passage: Passage


Part = Title | Block | Row | Unread


class Document(NamedTuple):
    """The content of a file that holds no rows."""

    title: str
    blocks: Iterable[Block | Unread]
    """In order, with what was not read; may be read as they are asked for, and only once."""


def batches(items: Iterable[T], length: Callable[[T], int]) -> Iterator[list[T]]:
    """The items in lists short enough to be held in memory; `length` gives the characters of
    one.
    """
    batch: list[T] = []
    chars = 0
    for item in items:
        batch.append(item)
        chars += length(item)
        if len(batch) == _ITEMS or chars > _CHARS:
            yield batch
            batch = []
            chars = 0
    if batch:
        yield batch


def kind_of(path: Path) -> Kind | None:
    """The kind of a file by its name; None for one that has no reader."""
    packed = path.suffix.lower() == ".gz"
    suffix = (path.with_suffix("") if packed else path).suffix.lower()
    if suffix[1:].isdecimal():  # no kind but a version, as of LGPL-2.1, or a manual's section
        return "text"
    return None if packed and suffix in (".pdf", ".docx", ".parquet") else _KIND_OF.get(suffix)


def title_of(path: Path, *candidates: str | None) -> str:
    """The first of the candidates that a person may have given, else the file's name without
    its suffix.
    """
    titles = (" ".join(cleaned(candidate or "").split()) for candidate in candidates)
    if title := next((title for title in titles if title and not _NO_TITLE.fullmatch(title)), None):
        return title
    unpacked = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    name = (
        unpacked.stem
        if kind_of(unpacked) and not unpacked.suffix[1:].isdecimal()
        else unpacked.name
    )
    return escaped(
        f"{path.parent.name}/{name}"
        if path.parent.name and name.casefold() in _EVERYWHERE
        else name
    )


def raised(text: str) -> str:
    """Write the digits of a superscript as such: 10⁶ must not become 106."""
    return text.translate(_RAISED) if any(map(str.isdecimal, text)) else text


def cleaned(text: str) -> str:
    """The text without control characters, with new lines and new pages in one way."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n"))


def escaped(text: str) -> str:
    r"""A file's name, or a text with one, in which each byte that is not UTF-8 is shown as `\xe9`:
    it can be printed, stored and sent.
    """
    return _SURROGATE.sub(r"\\x\1", text.encode("utf-8", "backslashreplace").decode())


def read_content(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The whole file; `.gz` is unpacked. Raises `BadDocument` where it is too large, and
    `OSError`.
    """
    if path.stat().st_size <= max_bytes:
        with open_content(path) as file:
            content = file.read(max_bytes + 1)
        if len(content) <= max_bytes:
            return content
    raise BadDocument(f"{path}: larger than {max_bytes >> 20} MB; split it, or leave it out.")


def open_content(path: Path) -> BufferedIOBase:
    """The file, open; `.gz` is unpacked as it is read."""
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")
