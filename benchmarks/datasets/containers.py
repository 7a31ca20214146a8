"""The rows of a file, whatever holds them: a JSON array, JSON lines, or a table (CSV, TSV); `.gz` of these as well."""

import codecs
import csv
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from router.errors import BadCorpus
from serving.documents.document import open_content

Row = dict[str, Any]
_FETCH = "it was cut off or damaged, so fetch it again"


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Each row and where it stands, `file:line`, or `file, item 7` of an array; one is held at a time.

    Raises `BadCorpus`, saying where, for a file that cannot be read, is cut off, or is not UTF-8.
    """
    try:
        with open_content(path) as file:
            if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
                file.seek(0)
            begin = file.tell()
            first = file.read(4096).lstrip()[:1]
            file.seek(begin)
            yield from {b"[": _array, b"{": _lines, b"": _nothing}.get(first, _table)(path, file)
    except (OSError, EOFError, zlib.error) as error:
        raise BadCorpus(f"{path}: cannot be read ({error}); name a file with questions.") from error


def _array(path: Path, file: BufferedIOBase) -> Iterator[tuple[str, Row]]:
    import ijson

    number = 0
    try:
        for row in ijson.items(file, "item", use_float=True):
            number += 1
            yield f"{path}, item {number}", _object(row, f"{path}, item {number}")
    except ijson.JSONError as error:
        said = error.args[0] if error.args else ""
        reason = (said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)).partition("\n")[0]
        raise BadCorpus(f"{path}: after item {number}: {reason}; {_FETCH}.") from None


def _lines(path: Path, file: BufferedIOBase) -> Iterator[tuple[str, Row]]:
    for number, line in _decoded(path, file):
        if line.strip():
            try:
                yield f"{path}:{number}", _object(msgspec.json.decode(line), f"{path}:{number}")
            except msgspec.DecodeError as error:
                raise BadCorpus(f"{path}:{number}: {error}; {_FETCH}, or write one JSON object a line.") from None


def _table(path: Path, file: BufferedIOBase) -> Iterator[tuple[str, Row]]:
    lines = (line for _, line in _decoded(path, file))
    header = next(lines)
    rows = csv.DictReader(chain([header], lines), delimiter="\t" if "\t" in header else ",", strict=True)
    try:
        for row in rows:
            yield f"{path}:{rows.line_num}", row
    except csv.Error as error:
        raise BadCorpus(f"{path}:{rows.reader.line_num}: {error}; {_FETCH}.") from None


def _nothing(_path: Path, _file: BufferedIOBase) -> Iterator[tuple[str, Row]]:
    return iter(())


def _decoded(path: Path, file: BufferedIOBase) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(file, 1):
        try:
            yield number, line.decode()
        except UnicodeDecodeError as error:
            where = f"{path}:{number}"
            raise BadCorpus(f"{where}: not UTF-8 at byte {error.start + 1}; save the file as UTF-8.") from None


def _object(row: Any, where: str) -> Row:
    if isinstance(row, dict):
        return row
    raise BadCorpus(f"{where}: not an object; each question is one.")
