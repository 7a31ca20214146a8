"""Plain text, in whatever encoding, or in several."""

import codecs
import re
from pathlib import Path

from router.errors import BadDocument
from serving.documents.document import Block, Document, read_content, title_of

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",  # begins as that of UTF-16 does
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_CONTROL = re.compile(rb"[\x01-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_NO_ASCII = re.compile(rb"[\x80-\xff]")
_SAMPLE_BYTES, _TELLING_BYTES = 64 << 10, 8
"""Fewer bytes outside ASCII do not tell one encoding from another."""
_WIDE = ["utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le", "utf_7"]


def read_text(path: Path) -> Document:
    """A text without headings. Raises `BadDocument` where the file is not text, and `OSError`."""
    return Document(title_of(path), [Block(decode(read_content(path), path))])


def decode(content: bytes, path: Path, declared: str | None = None) -> str:
    """The text: by its mark, as UTF-8, or in the encoding `declared`; else every line that is no UTF-8 as guessed.

    Raises `BadDocument` where it is not text; `path` is for the message.
    """
    if mark := _mark(content):
        return content.decode(_MARKS[mark], "replace").removeprefix("\ufeff")
    if is_binary(content):
        raise BadDocument(f"{path}: is not text; remove it, or save it as UTF-8.")
    if (text := _utf8(content)) is not None:
        return text
    lines = [(line, _utf8(line)) for line in content.split(b"\n")]
    others = [line for line, known in lines if known is None]
    encoding = declared or _guessed(b"\n".join(line[:_SAMPLE_BYTES] for line in others))
    return "\n".join(line.decode(encoding, "replace") if known is None else known for line, known in lines)


def is_binary(content: bytes) -> bool:
    """Tell whether the bytes are anything but text: by zeros or many control characters, without a mark."""
    sample = content[:_SAMPLE_BYTES]
    return not _mark(content) and (b"\0" in content or 10 * len(_CONTROL.findall(sample)) > len(sample))


def _mark(content: bytes) -> bytes | None:
    return next((mark for mark in _MARKS if content.startswith(mark)), None)


def _utf8(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


def _guessed(content: bytes) -> str:
    """The encoding of lines that are no UTF-8: cp1252 unless another one fits better."""
    sample = content[:_SAMPLE_BYTES]
    if len(_NO_ASCII.findall(sample)) < _TELLING_BYTES:
        return "cp1252"
    from charset_normalizer import from_bytes

    matches = from_bytes(sample, cp_exclusion=_WIDE)
    if (best := matches.best()) is None:
        return "cp1252"
    as_good = [match for match in matches if (match.chaos, match.coherence) == (best.chaos, best.coherence)]
    return "cp1252" if any("cp1252" in match.could_be_from_charset for match in as_good) else best.encoding
