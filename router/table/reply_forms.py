"""Rows in replies that are JSON, JSON lines, or lines of names and values; and HTML tables as
Markdown.

Reading is total, and linear in the text: of what is no whole JSON, a few tries at most are made.
"""

import html
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from json import JSONDecoder
from typing import Any

from router.table.schema import MOST_COLUMNS, normal_name
from router.trace.table import Column

_START = re.compile(r"^(?:[-*] |\d{1,4}\. )?[ \t]*(?=[\[{])|[\[,:]\s*(?=[\[{])", re.MULTILINE)
_JSON = JSONDecoder(parse_float=str, parse_int=str, strict=False)
_MOST_FAILURES = 5
_MOST_DEPTH = 6
_MARKS = (
    (re.compile(r"(?i)</?(?:tr|table|thead|tbody|tfoot)\b[^<>]*>"), "\n"),
    (re.compile(r"(?i)<t[dh]\b[^<>]*>"), "|"),
    (re.compile(r"(?i)</?(?!br\b)[a-z][^<>]*>"), ""),
)


def without_html(text: str) -> str:
    """Return a text in which HTML tables are written in Markdown."""
    if "<tr" not in text.lower():
        return text
    text = " ".join(text.replace("|", "\\|").split())
    for tag, mark in _MARKS:
        text = tag.sub(mark, text)
    return html.unescape(text)


def reply_rows(text: str, columns: Sequence[Column]) -> list[list[str]]:
    """Return the rows of JSON in a text; failing that, of its lines of names and values."""
    names = [normal_name(column.name) for column in columns]
    key = next((name for name, column in zip(names, columns, strict=True) if column.key), names[0])
    records = [*_json_records(text, names, key)]
    if not records:
        pairs: list[dict[str, Any]] = [{}]
        for line in text.split("\n"):
            name, colon, value = line.strip("-* {\"'").partition(":")
            if colon and '":' not in value and (name := normal_name(name[:200])) in names:
                if name in pairs[-1]:
                    pairs.append({})
                pairs[-1][name] = value.strip(" ,*\"'")
        records = pairs if key in pairs[0] else []
    return [[_cell(record.get(name)) for name in names] for record in records]


def _json_records(text: str, names: Sequence[str], key: str) -> Iterator[dict[str, Any]]:
    text = re.sub(r",(?=\s*[\]}])", "", text)
    if "{'" in text:  # as Python writes it
        text = re.sub(r"(?<=[\[{,:\s])'|'(?=\s*[\]},:])", '"', text)
    end = failures = 0
    for start in _START.finditer(text):
        if start.end() >= end and failures < _MOST_FAILURES:
            try:
                value, end = _JSON.raw_decode(text, start.end())
                yield from _records(value, names, key)
            except (ValueError, RecursionError):
                failures += 1


def _records(
    value: Any, names: Sequence[str], key: str, depth: int = _MOST_DEPTH
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON value: of objects, by the values of their keys, of arrays, or of
    keys alone.
    """
    match value:
        case dict() if any(normal_name(name) in names for name in value):
            lists = [each for each in value.values() if isinstance(each, list)][:MOST_COLUMNS]
            rows = zip_longest(*lists) if len(lists) == len(value) else [value.values()]
            for row in rows:
                yield dict(zip(map(normal_name, value), row, strict=True))
        case dict() if depth:
            for name, each in value.items():
                above = {key: name} if isinstance(each, dict) else {}
                for record in _records(each, names, key, depth - 1):
                    yield above | record
        case [list() as header, *rows]:
            named = [normal_name(str(name)) for name in header]
            if not {*named} & {*names}:
                named = [*names]
                rows = value
            yield from (
                dict(zip(named, row, strict=False)) for row in rows if isinstance(row, list)
            )
        case list():
            for each in value:
                if isinstance(each, dict):
                    yield from _records(each, names, key, 0)
                elif normal_name(str(each)) not in names:
                    yield {key: each}


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    text = "" if value is None else str(value).replace("\\", "\\\\")
    return text.lower() if isinstance(value, bool) else text
