"""Read email messages (EML, and Outlook's MSG) with their attachments."""

import codecs
import io
import tempfile
from collections.abc import Callable, Iterator
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from itertools import chain
from mimetypes import guess_extension
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from router.errors import RolegateError
from serving.documents.document import (
    Document,
    TextBlock,
    Unread,
    read_content,
    title_of,
)
from serving.documents.markup import read_page
from serving.documents.metadata import metadata_of

ReadFile = Callable[[Path], Document | None]
"""Function that reads a file, whose kind follows from its name. It returns None if that kind is not
supported.
"""

_MAX_ATTACHMENTS = 100
_MAX_HEADER_CHARS = 5000
_HEADERS = ("From", "To", "Cc", "Date", "Subject", "Keywords")


class _Policy(policy.EmailPolicy):
    """Parsing policy that cuts long headers, because parsing takes more than linear time in a
    header's length.
    """

    def header_source_parse(self, sourcelines: Any) -> tuple[str, str]:
        """Parse a header as `email.policy.Policy` specifies, and cut its value to
        `_MAX_HEADER_CHARS`.
        """
        name, value = super().header_source_parse(sourcelines)
        return name, value[:_MAX_HEADER_CHARS]


def read_eml(path: Path, read_file: ReadFile) -> Document:
    """Read an email message: its main headers, its text, and its attachments. `read_file`: reads an
    attachment. Raises `BadDocument` for a large file, `ValueError` for a file without headers, and
    `OSError`.
    """
    message: Any = BytesParser(_class=EmailMessage, policy=_Policy()).parsebytes(read_content(path))
    if not message.keys():
        raise ValueError("has no email headers")
    headers = [(name, str(message[name])) for name in _HEADERS if message[name]]
    body = message.get_body(("plain", "html"))
    text = [] if body is None else _body(body.get_content(), body.get_content_subtype(), path)
    files = chain.from_iterable(map(_files, message.iter_attachments()))
    return _document(path, headers, text, files, read_file)


def read_msg(path: Path, read_file: ReadFile) -> Document:
    """Read a message of Outlook: its main headers, its text, and its attachments. `read_file`:
    reads an attachment. Raises `BadDocument` for a large file, and `OSError`.
    """
    import oxmsg

    codecs.register(_windows)
    message = oxmsg.Message.load(io.BytesIO(read_content(path)))
    people = "; ".join(f"{person.name} <{person.email_address}>" for person in message.recipients)
    headers = [
        ("From", message.sender or ""),
        ("To", people),
        ("Date", str(message.sent_date or "")),
        ("Subject", message.subject or ""),
    ]
    text = _body(message.body, "plain", path)
    if not text and message.html_body:
        text = _body(message.html_body, "html", path)
    files = ((item.file_name or "", item.file_bytes) for item in message.attachments)
    return _document(path, headers, text, files, read_file)


def _windows(name: str) -> codecs.CodecInfo | None:
    """Return Python's codec for a code page such as `windows-950`; None for other names."""
    page = name.removeprefix("windows_")
    return codecs.lookup(f"cp{page}") if page.isdecimal() else None


def _body(content: str | None, kind: str, path: Path) -> list[TextBlock | Unread]:
    if not content or not content.strip():
        return []
    return list(read_page(content, path).blocks) if kind == "html" else [TextBlock(content)]


def _files(part: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of an attachment, or of each part of a multipart attachment."""
    kind = part.get_content_type()
    if kind.startswith("multipart/"):
        yield from chain.from_iterable(map(_files, part.iter_parts()))
        return
    default = "" if kind.startswith("message/") else f"part{guess_extension(kind) or '.bin'}"
    name = part.get_filename() or default
    content = part.get_content()
    if isinstance(content, EmailMessage):
        yield name, content.as_bytes()
    else:
        yield name, content.encode() if isinstance(content, str) else bytes(content)


def _document(
    path: Path,
    headers: list[tuple[str, str]],
    text: list[TextBlock | Unread],
    files: Iterator[tuple[str, bytes | None]],
    read_file: ReadFile,
) -> Document:
    fields = {name.lower(): value for name, value in headers}
    title = title_of(path, fields.pop("subject", None))
    shown = "\n".join(f"{name}: {' '.join(value.split())}" for name, value in headers if value)
    blocks = [TextBlock(shown), *text]
    return Document(title, _with_attachments(blocks, files, read_file), metadata_of(fields))


def _with_attachments(
    blocks: list[TextBlock | Unread],
    files: Iterator[tuple[str, bytes | None]],
    read_file: ReadFile,
) -> Iterator[TextBlock | Unread]:
    """Yield the blocks of a message, and then the blocks of its attachments. The location of an
    attachment's block begins with the attachment's name.
    """
    yield from blocks
    for number, (given, content) in enumerate(files, 1):
        if number > _MAX_ATTACHMENTS:
            yield Unread(f"attachments after the first {_MAX_ATTACHMENTS}")
            return
        name = Path(given.replace("\\", "/")).name or f"message-{number}.eml"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, name[-100:])
            try:
                file.write_bytes(content or b"")
                document = None if content is None else read_file(file)
                parts = list(document.blocks) if document else [Unread("is not supported")]
            except (RolegateError, OSError, ValueError) as error:
                parts = [Unread(str(error).replace(str(file), "").strip(": "))]
        for part in parts:
            if isinstance(part, Unread):
                yield Unread(f"attachment {name}: {part.text}")
            else:
                where = f"page {part.page}" if part.page else part.location
                place = ", ".join(filter(None, (f"attachment {name}", where)))
                yield replace(part, page=None, location=place)
