"""Read a file of JSON records. Each record becomes a block of text."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from serving.documents.document import (
    MAX_MARKUP_BYTES,
    Document,
    TextBlock,
    read_content,
    title_of,
)
from serving.documents.text import decode

_lines = msgspec.json.Decoder()
_MAX_DEPTH = 10
_MAX_FIELDS = 10_000
_MAX_NAME_CHARS = 200
"""Max characters of a field's name. The name of a nested field includes the names of the fields
around it.
"""


def read_records(path: Path) -> Document:
    """Read a file with one JSON value, or with a JSON value on each line. Each record becomes a
    block.

    A block has a text such as `name: Ada | born: 1815`. Records are the items of a list, or of the
    only list in an object. Raises `BadDocument` for a large or binary file, `ValueError` for
    invalid JSON, and `OSError`.
    """
    text = decode(read_content(path, MAX_MARKUP_BYTES), path)
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = _lines.decode_lines(text)
    lists = (
        [part for part in value.values() if isinstance(part, list)]
        if isinstance(value, dict)
        else []
    )
    others = dict[str, Any]()
    if len(lists) == 1 and any(isinstance(part, dict) for part in lists[0]):
        others = {name: part for name, part in value.items() if part is not lists[0]}
        value = lists[0]
    records = value if isinstance(value, list) else [value]
    return Document(title_of(path), _blocks(records, others))


def _blocks(records: list[Any], others: dict[str, Any]) -> Iterator[TextBlock]:
    if about := _text(others):
        yield TextBlock(about)
    for number, record in enumerate(records, 1):
        if text := _text(record):
            yield TextBlock(text, location=f"record {number}" if len(records) > 1 else "")


def _text(record: Any) -> str:
    return " | ".join(islice(_fields(record, "", 0), _MAX_FIELDS))


def _fields(value: Any, name: str, depth: int) -> Iterator[str]:
    """Yield the fields of a value as `name: value`. Fields of nested objects have names such as
    `outer.inner`.
    """
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        for key, inner in value.items():
            yield from _fields(
                inner, (f"{name}.{key}" if name else key)[:_MAX_NAME_CHARS], depth + 1
            )
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for inner in value:
            yield from _fields(inner, name, depth + 1)
    elif value not in (None, "", [], {}):
        plain = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        text = " ".join(plain.split())
        yield f"{name}: {text}" if name else text
