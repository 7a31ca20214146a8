"""Reading of rows from replies in JSON, in JSON lines, or in lines of names and values; and
conversion of HTML tables to Markdown.

The functions never raise, and take time that is linear in the text.
"""

import html
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from json import JSONDecoder, dumps
from typing import Any

from router.table.schema import MAX_COLUMNS, normal_name
from router.trace.table import Column

_START = re.compile(r"^(?:[-*] |\d{1,4}\. )?[ \t]*(?=[\[{])|[\[,:]\s*(?=[\[{])", re.MULTILINE)
_JSON = JSONDecoder(parse_float=str, parse_int=str, strict=False)
_LOOSE = re.compile(
    r"""("(?:[^"\\\n]|\\.)*+"?)|(?<!\w)'((?:[^'\\\n]|\\.)*+)'?"""
    r"|((?<=[{,\s])[^\W\d]\w*+(?=\s*:)|\b(?:True|False)\b)|\bNone\b"
)
"""Matches strings of JSON, and the notations of Python and JSON5 that JSON lacks: strings in single
quotes, names without quotes, and the constants True, False and None.
"""
_ITEM = re.compile(r"[\s*+•{\"'-]*(?:\d{1,4}[.)][\s*{\"'-]+)?")
"""Matches the bullet, the number and the punctuation before a name."""
_MAX_FAILURES = 5
"""Max positions in a text at which the parsing of JSON may fail. After that, the rest of the text
is not parsed.
"""
_MAX_DEPTH = 6
"""Max levels of objects that may enclose the rows."""
_MARKS = (
    (re.compile(r"(?i)</?(?:tr|table|thead|tbody|tfoot)\b[^<>]*>"), "\n"),
    (re.compile(r"(?i)<t[dh]\b[^<>]*>"), "|"),
    (re.compile(r"(?i)</?(?!br\b)[a-z][^<>]*>"), ""),
)


def without_html(text: str) -> str:
    """Return `text` with its HTML tables converted to Markdown."""
    if "<tr" not in text.lower():
        return text
    text = " ".join(text.replace("|", "\\|").split())
    for tag, mark in _MARKS:
        text = tag.sub(mark, text)
    return html.unescape(text)


def reply_rows(text: str, columns: Sequence[Column]) -> list[list[str]]:
    """Return the rows in the JSON values of `text`. If there are none, return the rows in lines
    such as `City: Bel`. Each row has a text for each column, which is empty if the row has no value
    for the column.
    """
    names = [normal_name(column.name) for column in columns]
    key = next((name for name, column in zip(names, columns, strict=True) if column.key), names[0])
    strict = [*_json_records(text, names, key)]
    loose = [*_json_records(_LOOSE.sub(_as_json, text), names, key)]
    # If the rows are in Python's notation, strict parsing may find only a list inside a cell
    records = max(strict, loose, key=lambda rows: len(rows[0]) if rows else 0)
    records = records or _line_records(text, names, key)
    return [[_cell(record.get(name)) for name in names] for record in records]


def _as_json(written: re.Match[str]) -> str:
    """Return a match of `_LOOSE` as a JSON string. Python's `None` becomes an empty string."""
    return written[1] or dumps((written[2] or written[3] or "").replace("\\'", "'"))


def _line_records(
    text: str,
    names: Sequence[str],
    key: str,
) -> list[dict[str, Any]]:
    """Return the rows in lines such as `- **City:** Bel`. When a name occurs again, the next row
    begins.
    """
    records: list[dict[str, Any]] = [{}]
    for line in text.split("\n"):
        name, colon, value = _ITEM.sub("", line, count=1).partition(":")
        if colon and '":' not in value and (name := normal_name(name[:200])) in names:
            if name in records[-1]:
                records.append({})
            records[-1][name] = value.strip(" ,*\"'")
    return records if key in records[0] else []


def _json_records(
    text: str,
    names: Sequence[str],
    key: str,
) -> Iterator[dict[str, Any]]:
    text = re.sub(r",(?=\s*[\]}])", "", text)
    end = 0
    failures = 0
    for start in _START.finditer(text):
        if start.end() >= end and failures < _MAX_FAILURES:
            try:
                value, end = _JSON.raw_decode(text, start.end())
                yield from _records(value, names, key)
            except (ValueError, RecursionError):
                failures += 1


def _records(
    value: Any,
    names: Sequence[str],
    key: str,
    depth: int = _MAX_DEPTH,
) -> Iterator[dict[str, Any]]:
    """Yield the rows in a JSON value. It may be an object or a list of objects (one per row), an
    object that maps keys to rows, an object with one list per column, a list of lists, or a list of
    keys.
    """
    match value:
        case dict() if any(normal_name(name) in names for name in value):
            lists = [cells for cells in value.values() if isinstance(cells, list)][:MAX_COLUMNS]
            rows = zip_longest(*lists) if len(lists) == len(value) else [value.values()]
            for row in rows:
                yield dict(zip(map(normal_name, value), row, strict=True))
        case dict() if depth:
            for name, child in value.items():
                above = {key: name} if isinstance(child, dict) else {}
                for record in _records(child, names, key, depth - 1):
                    yield above | record
        case [list() as first, *rows]:
            header = [normal_name(str(name)) for name in first]
            if set(header).isdisjoint(names):
                header = [*names]
                rows = value
            arrays = (row for row in rows if isinstance(row, list))
            yield from (dict(zip(header, row, strict=False)) for row in arrays)
        case list():
            for child in value:
                if isinstance(child, dict):
                    yield from _records(child, names, key, 0)
                elif normal_name(str(child)) not in names:
                    yield {key: child}


def _cell(value: Any) -> str:
    """Return a JSON value as the text of a cell."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value).replace("\\", "\\\\")
