"""Rows of the training data as a Parquet file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from executor_sft.row import Row
from router.errors import BadConfig
from serving.files import replacing

_COLUMNS = ("prompt_ids", "completion_ids", "turn", "trajectory")


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the file whole, or leave it as it was and raise `OSError`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: [getattr(row, name) for row in rows] for name in _COLUMNS}
    with replacing(path) as unfinished:
        pq.write_table(pa.table(columns, schema=_schema()), unfinished)


def read_rows(path: Path) -> list[Row]:
    """The rows in order. Raises `BadConfig` where it is no such file, or a row has nothing to learn."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, schema=_schema())
    except (OSError, pa.ArrowException) as error:
        raise BadConfig(f"{path}: {error}; make the data set again.") from None
    columns = (table[name].to_pylist() for name in _COLUMNS)
    rows = [Row(tuple(prompt), tuple(turn), *numbers) for prompt, turn, *numbers in zip(*columns, strict=True)]
    if empty := sum(not row.completion_ids for row in rows):
        raise BadConfig(f"{path}: {empty} of {len(rows)} rows have no token to learn; make the data set again.")
    if not rows:
        raise BadConfig(f"{path}: has no rows; make the data set again.")
    return rows


def _schema() -> Any:
    import pyarrow as pa

    ids, number = pa.list_(pa.int32()), pa.int32()
    return pa.schema(list(zip(_COLUMNS, (ids, ids, number, number), strict=True)))
