"""Read plain text in any encoding, or in a mixture of UTF-8 and another encoding."""

import codecs
import re
from contextlib import suppress
from pathlib import Path

from router.errors import BadDocument
from serving.documents.document import Document, TextBlock, read_content, title_of

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark is a prefix of this one
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_CONTROL = re.compile(rb"[\x01-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_NO_ASCII = re.compile(rb"[\x80-\xff]")
_SAMPLE_BYTES = 64 << 10
_MIN_BYTES = 4
"""Min number of non-ASCII bytes for guessing an encoding."""
_CP1252_SHARE = 0.6
"""The encoding cp1252 is chosen if its confidence is at least this share of the highest confidence
of all encodings.
"""
_WHOLE = frozenset(("iso2022_jp_2", "iso2022_kr", "utf-16-be", "utf-16-le"))
"""Encodings in which ASCII bytes are parts of other characters. Only texts in these encodings
contain one of the byte sequences in `_SIGNS`.
"""
_SIGNS = (b"\0", b"\x1b$")
_PAIRS = frozenset(("big5hkscs", "cp932", "cp949", "euc_jis_2004", "gb18030"))
"""Chinese, Japanese and Korean encodings. A line in one of them may be valid UTF-8 by chance."""
_NO_LETTER = re.compile("[\uf8f0-\uf8f3]")
"""Matches the private use characters that Python returns for undefined bytes of cp932."""
_ALPHABETS = "cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp866 cp874 iso8859-5 koi8-r".split()
_READ_AS = {
    "gbk": "gb18030",
    "euc_jp": "euc_jis_2004",
    "utf-16-le": "utf-8",
    "utf-16-be": "utf-8",
    "replacement": None,
    "x-user-defined": None,
}
"""Encodings to use instead of declared encodings. Some are supersets of the declared encoding.
UTF-16 is replaced by UTF-8, because a text is not in UTF-16 if its declaration could be read. None
means to ignore the declaration.
"""


def read_text(path: Path) -> Document:
    """Read a text as one block without headings. Raises `BadDocument` for a large or binary file,
    and `OSError`.
    """
    return Document(title_of(path), [TextBlock(decode(read_content(path), path))])


def web_encoding(label: str) -> str | None:
    """Return Python's name of an encoding. `label`: a name of the encoding on the web, such as
    `latin1`. None if the label is unknown.
    """
    from webencodings import lookup

    encoding = lookup(label)
    if encoding is None:
        with suppress(LookupError):
            encoding = lookup(codecs.lookup(label).name)
    name = encoding and encoding.codec_info.name
    return _READ_AS.get(name, name)


def decode(content: bytes, path: Path, declared: str | None = None) -> str:
    """Return `content` as text. The first of these encodings that applies is used: the encoding of
    the byte order mark; an encoding such as UTF-16, if the bytes look like it; UTF-8, if `content`
    is valid UTF-8; `declared`; a guess.

    Lines that are valid UTF-8 are decoded as UTF-8, even if other lines need another encoding.
    Undefined bytes become U+FFFD. Raises `BadDocument` for binary content. `path`: file to name in
    the error.
    """
    if mark := _mark(content):
        return content.decode(_MARKS[mark], "replace").removeprefix("\ufeff")
    if whole := _whole(content):
        return content.decode(whole, "replace")
    if is_binary(content):
        raise BadDocument(f"{path}: is a binary file, not text; leave it out, or save it as UTF-8.")
    if (text := _utf8(content)) is not None:
        return text
    lines = [(line, _utf8(line)) for line in content.split(b"\n")]
    others = [line for line, known in lines if known is None]
    encoding = declared or _guessed(b"\n".join(line[:_SAMPLE_BYTES] for line in others)) or "cp1252"
    like_utf8 = sum(known is not None and not known.isascii() for _, known in lines)
    if encoding in _PAIRS and like_utf8 < len(others):
        return _NO_LETTER.sub("\ufffd", content.decode(encoding, "replace"))
    return "\n".join(
        line.decode(encoding, "replace") if known is None else known for line, known in lines
    )


def is_binary(content: bytes) -> bool:
    """Return True if content is not text: it has zero bytes or many control characters, and neither
    a byte order mark nor an encoding such as UTF-16 explains them.
    """
    sample = content[:_SAMPLE_BYTES]
    has_control = b"\0" in content or 10 * len(_CONTROL.findall(sample)) > len(sample)
    return has_control and not _mark(content) and not _whole(content)


def _mark(content: bytes) -> bytes | None:
    """Return the byte order mark; None if there is none."""
    return next((mark for mark in _MARKS if content.startswith(mark)), None)


def _whole(content: bytes) -> str | None:
    """Return the most likely encoding of the content if that encoding is in `_WHOLE`, else None."""
    guessed = _guessed(content) if any(sign in content for sign in _SIGNS) else None
    return guessed if guessed in _WHOLE else None


def _utf8(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


def _guessed(content: bytes) -> str | None:
    """Return the most likely encoding of the content, or cp1252 if cp1252 is almost as likely. None
    if no encoding fits.
    """
    from chardet import detect_all

    guesses = detect_all(
        content,
        ignore_threshold=True,
        max_bytes=_SAMPLE_BYTES,
        compat_names=False,
        include_encodings=[*_ALPHABETS, *_PAIRS, *_WHOLE],
    )
    confidence = {guess["encoding"]: guess["confidence"] for guess in guesses}
    best = max(confidence, key=confidence.__getitem__)
    if best not in _WHOLE and len(_NO_ASCII.findall(content[:_SAMPLE_BYTES])) < _MIN_BYTES:
        return "cp1252"
    is_cp1252 = confidence.get("cp1252", 0) >= _CP1252_SHARE * confidence[best]
    return "cp1252" if is_cp1252 else best
