r"""Read the rows of a corpus file (JSON lines or Parquet). Each row is already a passage, so only
long rows are cut.

A row is `{"id": …, "title": …, "text": …}` or, in FlashRAG's format, `{"id": …, "contents":
"title\ntext"}`.
"""

import codecs
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from router.errors import JSON_ERRORS, BadCorpus, explained
from router.frozen import Frozen
from serving.documents.document import open_content
from serving.documents.metadata import StoredPassage, metadata_of

_MAX_LINE_BYTES = 16 << 20
_BATCH = 256


class _RawRow(Frozen):
    id: str | int
    text: str | None = None
    contents: str | None = None
    title: str | None = None
    date: Any = None
    author: Any = None
    path: Any = None
    tags: Any = None


_NEEDS = "each row needs an id and a text, and may have a title"
_decoder = msgspec.json.Decoder(_RawRow)


def read_rows(path: Path) -> Iterator[tuple[str, StoredPassage]]:
    """Yield (place, row) for each row in order; the place is `FILE:LINE`. Blank lines are skipped.

    Raises `BadCorpus`, with file and line, at the first invalid row.
    """
    rows = _parquet(path) if path.suffix.lower() == ".parquet" else _lines(path)
    is_empty = True
    for where, row in rows:
        is_empty = False
        yield where, _passage(row, where)
    if is_empty:
        raise BadCorpus(
            f'{path}: has no rows; write one {{"id": …, "title": …, "text": …}} per line.'
        )


def has_rows(path: Path) -> bool:
    """Return True if the first line of a file is a row of a corpus file (see `read_rows`)."""
    with open_content(path) as file:
        first = file.readline(_MAX_LINE_BYTES).removeprefix(codecs.BOM_UTF8)
    try:
        row = _decoder.decode(first)
    except JSON_ERRORS:
        return False
    return row.text is not None or row.contents is not None


def _lines(path: Path) -> Iterator[tuple[str, _RawRow]]:
    try:
        with open_content(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES + 1), b""), 1):
                content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if content.strip():
                    yield (
                        f"{path}:{number}",
                        _decoded(content, f"{path}:{number}"),
                    )
    except OSError as error:
        raise BadCorpus(
            f"{path}: cannot be read ({error.strerror or error}); name a file of JSON lines."
        ) from error


def _decoded(line: bytes, where: str) -> _RawRow:
    if len(line) > _MAX_LINE_BYTES:
        raise BadCorpus(
            f"{where}: is longer than {_MAX_LINE_BYTES >> 20} MiB; write one JSON object per line."
        )
    if line.lstrip().startswith(b"["):
        raise BadCorpus(
            f"{where}: is a list, not an object; write one JSON object per line (`jq -c '.[]'`)."
        )
    try:
        line.decode()
        return _decoder.decode(line)
    except JSON_ERRORS as error:
        raise BadCorpus(f"{where}: {explained(error)}; {_NEEDS}.") from error


def _parquet(path: Path) -> Iterator[tuple[str, _RawRow]]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        names = file.schema_arrow.names
        if "id" not in names or not {"text", "contents"} & set(names):
            raise BadCorpus(
                f"{path}: its columns are {', '.join(names)}; rename two to id and text, or to "
                "id and contents."
            )
        columns = [name for name in _RawRow.__struct_fields__ if name in names]
        batches = file.iter_batches(_BATCH, columns=columns)
        rows = chain.from_iterable(batch.to_pylist() for batch in batches)
        for number, row in enumerate(rows, 1):
            where = f"{path}:{number}"
            try:
                yield where, msgspec.convert(row, _RawRow)
            except msgspec.ValidationError as error:
                raise BadCorpus(f"{where}: {explained(error)}; {_NEEDS}.") from error


def _passage(row: _RawRow, where: str) -> StoredPassage:
    title = row.title or ""
    text = row.text
    if text is None and row.contents is not None:
        # The first line is the title, unless it is the only line
        first_line, _, text = row.contents.partition("\n")
        title = first_line.strip().strip('"')
        if not text.strip():
            title = ""
            text = row.contents
    if text is None:
        raise BadCorpus(f"{where}: lacks the required field `text`; {_NEEDS}.")
    for name, value in (("id", str(row.id)), ("text", text)):
        if not value.strip():
            raise BadCorpus(f"{where}: {name} is empty; fill it in or remove the row.")
    about = metadata_of({**msgspec.structs.asdict(row), "title": title})
    return StoredPassage(str(row.id), title, text, metadata=about)
