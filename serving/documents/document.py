"""Types of the values that document readers return: a title and blocks of text, or the rows of a
corpus file. Also functions that several readers use.
"""

import gzip
import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from router.errors import BadDocument
from router.frozen import Frozen
from serving.documents.metadata import Metadata, StoredPassage, archive_metadata

T = TypeVar("T")
Kind = Literal[
    "text", "Markdown", "HTML", "PDF", "DOCX", "ODT", "PPTX", "EPUB", "EML", "MSG", "CSV",
    "workbook", "JSON", "image", "rows",
]  # fmt: skip

_KINDS: dict[Kind, str] = {
    "text": ".txt .text .rst",
    "Markdown": ".md .markdown",
    "HTML": ".html .htm .xhtml",
    "PDF": ".pdf",
    "DOCX": ".docx",
    "ODT": ".odt",
    "PPTX": ".pptx",
    "EPUB": ".epub",
    "EML": ".eml",
    "MSG": ".msg",
    "CSV": ".csv .tsv",
    "workbook": ".xlsx .xlsm .xls .ods",
    "JSON": ".json",
    "image": ".png .jpg .jpeg .tif .tiff .bmp .webp",
    "rows": ".jsonl .parquet",
}
_PACKED = frozenset(
    ".pdf .docx .odt .pptx .epub .msg .xlsx .xlsm .xls .ods .parquet "
    ".png .jpg .jpeg .tif .tiff .bmp .webp".split()
)
"""Suffixes of files that are not read if they are also compressed with gzip, as in `.pdf.gz`."""
_KIND_OF = {suffix: kind for kind, suffixes in _KINDS.items() for suffix in suffixes.split()} | {
    "": "text"
}
READ = (
    f"{' '.join(_KINDS.values())}, files without a suffix, and text in .gz "
    "(images with the extra `ocr`)"
)
"""List of all supported kinds of files, for messages."""
MAX_BYTES = 256 << 20
"""Max size in bytes, after unpacking, of a file that is read into memory as a whole."""
MAX_MARKUP_BYTES = 32 << 20
"""Max size of markup in bytes. The limit is low, because a parsed tree takes many times as much
memory.
"""

_MARKUP = (".xml", ".rels", ".html", ".xhtml", ".htm", ".opf")
_BATCH_ITEMS = 256
_BATCH_CHARS = 1_000_000
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
"""Matches the default titles that programs give to documents, such as `Untitled 1`."""
_COMMON_NAMES = frozenset(
    "readme license licence copying copyright changelog changes news notice index".split()
)
"""File names that are too common for a title. In a title, the name of the file's folder is put
before such a name.
"""


class Title(Frozen, tag=True):
    """The title of a document."""

    text: str
    metadata: Metadata = Metadata()


class TextBlock(Frozen, tag=True):
    """A paragraph, a row of a table, a page, or a whole text."""

    text: str
    """Text of the block with its original white space; empty if the block is only a heading."""
    heading: str | None = None
    """The heading above the text; None if there is none."""
    page: int | None = None
    """Page number, from 1; None if the document has no pages."""
    location: str = ""
    """Place in the document, such as `sheet Prices, row 14`, `slide 3` or `attachment a.txt`; empty
    for none.
    """


class Unread(Frozen, tag=True):
    """A note that a part of a document was not read."""

    text: str
    """Description of the part, such as `2 pages without text (3, 4)`."""


class CorpusRow(Frozen, tag=True):
    """A row of a corpus file (JSON lines or Parquet with one passage per row)."""

    where: str
    """File and line of the row, as `FILE:LINE`."""
    passage: StoredPassage


Part = Title | TextBlock | CorpusRow | Unread


class Document(NamedTuple):
    """The content of a document. Every file is a document, except a corpus file with rows."""

    title: str
    blocks: Iterable[TextBlock | Unread]
    """Blocks and notes on parts that were not read, in order. May be a generator."""
    metadata: Metadata = Metadata()
    """Metadata of the document. `read_passages` later sets the title and the path in it."""


def first_heading(blocks: Iterable[Part]) -> str | None:
    """Return the first heading of a document; None if it has none."""
    headings = (block.heading for block in blocks if isinstance(block, TextBlock))
    return next(filter(None, headings), None)


def unread_parts(counts: Mapping[str, int]) -> Iterator[Unread]:
    """Yield one `Unread` that lists the numbers of unread parts, or nothing if `counts` is empty.
    `counts`: number of unread parts by kind, such as `pictures`; 0 for an unknown number.
    """
    if counts:
        yield Unread(", ".join(f"{count or ''} {kind}".strip() for kind, count in counts.items()))


def packed_document(
    path: Path, content: bytes, blocks: Iterable[TextBlock], unread: Mapping[str, int]
) -> Document:
    """Return the document of a packed file (a ZIP archive). Its title is the title in the file's
    properties, or else the first heading. `unread`: number of parts that were not read, by kind.
    """
    about = archive_metadata(content)
    title = title_of(path, about.title, first_heading(blocks))
    return Document(title, [*blocks, *unread_parts(unread)], about)


def encrypted(path: Path) -> BadDocument:
    """Return the error for a document that is protected by a password."""
    return BadDocument(f"{path}: is encrypted; save it without its password, or leave it out.")


def batches(items: Iterable[T], length: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield the items in lists of at most `_BATCH_ITEMS` items and about `_BATCH_CHARS` characters.
    `length`: returns the number of characters of an item.
    """
    batch = list[T]()
    chars = 0
    for item in items:
        batch.append(item)
        chars += length(item)
        if len(batch) == _BATCH_ITEMS or chars > _BATCH_CHARS:
            yield batch
            batch = []
            chars = 0
    if batch:
        yield batch


def kind_of(path: Path) -> Kind | None:
    """Return the kind of a file according to its name; None for an unknown kind."""
    unpacked = _unpacked(path)
    suffix = unpacked.suffix.lower()
    if suffix[1:].isdecimal():  # a version, as in LGPL-2.1, or the section of a manual
        return "text"
    if unpacked != path and suffix in _PACKED:
        return None
    return _KIND_OF.get(suffix)


def title_of(path: Path, *candidates: str | None) -> str:
    """Return the first candidate that is not empty and not a program's default title, else the
    file's name.
    """
    for candidate in candidates:
        title = " ".join(cleaned(candidate or "").split())
        if title and not _NO_TITLE.fullmatch(title):
            return title

    unpacked = _unpacked(path)
    has_known_suffix = kind_of(unpacked) and not unpacked.suffix[1:].isdecimal()
    name = unpacked.stem if has_known_suffix else unpacked.name
    if path.parent.name and name.casefold() in _COMMON_NAMES:
        name = f"{path.parent.name}/{name}"
    return escaped(name)


def _unpacked(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def raised(text: str) -> str:
    """Convert the digits and signs of a superscript text to Unicode superscripts, so that 10⁶ does
    not become 106.
    """
    return text.translate(_RAISED) if any(map(str.isdecimal, text)) else text


def cleaned(text: str) -> str:
    """Return the text without control characters, and with line and page breaks as newlines."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n"))


def escaped(text: str) -> str:
    r"""Return `text` with an escape such as `\xe9` for each surrogate. In the name of a file, a
    surrogate stands for a byte that is not UTF-8.
    """
    return _SURROGATE.sub(r"\\x\1", text.encode("utf-8", "backslashreplace").decode())


def read_content(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file; `.gz` is unpacked. Raises `BadDocument` if the content is too
    large, and `OSError`.
    """
    if path.stat().st_size <= max_bytes:
        with open_content(path) as file:
            content = file.read(max_bytes + 1)
        if len(content) <= max_bytes:
            return content
    raise BadDocument(f"{path}: is larger than {max_bytes >> 20} MiB; split it, or leave it out.")


def read_archive(path: Path, kind: str) -> bytes:
    """Return the content of a ZIP archive, such as an office document. The archive's unpacked size
    is checked before anything is unpacked. `kind`: kind of the document, for messages.

    Raises `BadDocument` if the file is no archive or its unpacked size is too large, and `OSError`.
    """
    content = read_content(path)
    check_archive(content, path, kind)
    return content


def check_archive(content: bytes, path: Path, kind: str) -> None:
    """Raise `BadDocument` if content is no ZIP archive, or if its unpacked size is too large."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            sizes = {file.filename.lower(): file.file_size for file in packed.infolist()}
    except zipfile.BadZipFile as error:
        raise BadDocument(
            f"{path}: is damaged, encrypted, or no valid {kind} ({error}); save it again with the "
            "program that created it."
        ) from error
    markup = sum(size for name, size in sizes.items() if name.endswith(_MARKUP))
    if markup > MAX_MARKUP_BYTES or sum(sizes.values()) > MAX_BYTES:
        raise BadDocument(
            f"{path}: unpacks to more than {MAX_MARKUP_BYTES >> 20} MiB of text or "
            f"{MAX_BYTES >> 20} MiB in all; split it, or leave it out."
        )


def open_content(path: Path) -> BufferedIOBase:
    """Open a file for reading bytes; `.gz` is unpacked while reading."""
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")
