"""Rows in a file that `datasets.load_dataset` reads: JSON lines or Parquet."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from router.trace.export import ExportRow

Write = Callable[[ExportRow], None]
_GROUP_CHARS = 32_000_000
"""Of the traces of a row group, which is held in memory."""
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T][\d:.]*(Z|[+-][\d:]+)?)?")


def _opened(path: Path) -> BinaryIO:
    """An empty file, its owner's alone as the store is: it holds the same texts."""
    file = path.open("wb")
    os.fchmod(file.fileno(), 0o600)
    return file


@contextmanager
def _json_lines(path: Path) -> Iterator[Write]:
    with _opened(path) as file:

        def write(row: ExportRow) -> None:
            texts = {name: f"{text} " for name, text in msgspec.structs.asdict(row).items() if _is_moment(text)}
            file.write(msgspec.json.encode(msgspec.structs.replace(row, **texts)) + b"\n")

        yield write


def _is_moment(value: object) -> bool:
    """Whether Arrow would take a text for a time, and a column of such texts for a column of times. A space behind it
    keeps it from that.
    """
    return isinstance(value, str) and _MOMENT.fullmatch(value) is not None


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    types = {str: pa.string(), int: pa.int64(), int | None: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    fields = msgspec.structs.fields(ExportRow)
    schema = pa.schema([pa.field(field.name, types[field.type], field.type == int | None) for field in fields])
    rows: list[dict[str, Any]] = []
    chars = 0
    with _opened(path) as opened, ParquetWriter(opened, schema) as file:

        def write_group() -> None:
            nonlocal chars
            file.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()
            chars = 0

        def write(row: ExportRow) -> None:
            nonlocal chars
            rows.append(msgspec.structs.asdict(row))
            chars += len(row.trace)
            if chars > _GROUP_CHARS:
                write_group()

        yield write
        if rows:
            write_group()


FORMATS: dict[str, Callable[[Path], AbstractContextManager[Write]]] = {".jsonl": _json_lines, ".parquet": _parquet}
"""What opens a new file to be written row by row, by the end of its name."""
