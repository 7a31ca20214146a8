"""Plain text, in whatever encoding, or in several."""

import codecs
import re
from pathlib import Path

from router.errors import BadDocument
from serving.documents.document import Block, Document, read_content
from serving.documents.title import title_of

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins as that of UTF-16 does
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROL = re.compile(rb"[\x01-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_SAMPLE_BYTES = 64 << 10
_TELLING_BYTES = 8
"""Fewer bytes outside ASCII do not tell one encoding from another."""
_WIDE = ["utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le", "utf_7"]


def read_text(path: Path) -> Document:
    """A text without headings. Raises `BadDocument` where the file is not text, and `OSError`."""
    return Document(title_of(path), [Block(decode(read_content(path), path))])


def decode(content: bytes, path: Path, declared: str | None = None) -> str:
    """The text: by its mark, as UTF-8, or in the encoding `declared`; else every line that is no UTF-8 as guessed.

    Raises `BadDocument` where it is not text; `path` is for the message.
    """
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return content.decode(encoding, "replace").removeprefix("\ufeff")
    if is_binary(content):
        raise BadDocument(f"{path}: is not text; remove it, or save it as UTF-8.")
    try:
        return content.decode()
    except UnicodeDecodeError:
        return _decoded_by_line(content, declared)


def is_binary(content: bytes) -> bool:
    """Whether the bytes, which have no mark of an encoding, are anything but text."""
    if content.startswith(tuple(mark for mark, _ in _MARKS)):
        return False
    sample = content[:_SAMPLE_BYTES]
    return b"\0" in content or 10 * len(_CONTROL.findall(sample)) > len(sample)


def _decoded_by_line(content: bytes, declared: str | None) -> str:
    lines = content.split(b"\n")
    guessed = declared or _guessed(lines)
    return "\n".join(_decoded(line, guessed) for line in lines)


def _decoded(line: bytes, encoding: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode(encoding, "replace")


def _guessed(lines: list[bytes]) -> str:
    """The encoding of the lines that are no UTF-8: cp1252 unless another one fits better."""
    sample = b""
    for line in lines:
        if len(sample) < _SAMPLE_BYTES and not _is_utf8(line):
            sample += line[:_SAMPLE_BYTES] + b"\n"
    if len(re.findall(rb"[\x80-\xff]", sample)) < _TELLING_BYTES:
        return "cp1252"
    from charset_normalizer import from_bytes

    matches = from_bytes(sample, cp_exclusion=_WIDE)
    if (best := matches.best()) is None:
        return "cp1252"
    as_good = [match for match in matches if (match.chaos, match.coherence) == (best.chaos, best.coherence)]
    return "cp1252" if any("cp1252" in match.could_be_from_charset for match in as_good) else best.encoding


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
