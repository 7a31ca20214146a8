"""Tables asked for where a request carries little more than a question.

The columns are listed separately, or else on the last line of the question ("columns: city*,
founder").
"""

from collections.abc import Sequence
from typing import Protocol

from rolegate.client.table import parse_columns
from rolegate.v1.table_service_pb2 import FillTableRequest

from router.edge.grpc.convert_table import table_request_from_proto
from router.errors import BadRequest
from router.runs import RequestOptions
from router.table import TableRequest
from router.table.schema import MAX_COLUMNS
from router.trace import Run
from router.trace.values import OnEvent

_MAX_CHARS = 4000
"""Max length of columns, which are read on the event loop."""


class Tables(Protocol):
    """Fills tables; a `Gateway` does."""

    async def fill_table(
        self,
        request: TableRequest,
        options: RequestOptions,
        on_event: OnEvent = lambda _event: None,
    ) -> Run:
        """Fill a table. The run's result is a `TableRun`."""


def asked_table(question: str, columns: str | Sequence[str] = ()) -> TableRequest:
    """Return the request for a table. `columns`: as `parse_columns` reads them, such as
    `city*, founded:integer`; if empty, the last line of the question names them. Without a `*`, the
    first column is the key. Raises `BadRequest`.
    """
    columns = columns or _named_in(question)
    if len(columns) > _MAX_CHARS:
        raise BadRequest(f"columns is longer than {_MAX_CHARS}; name at most {MAX_COLUMNS}.")
    try:
        parsed = parse_columns(columns)
    except ValueError as error:
        raise BadRequest(str(error)) from None
    if not any(column.key for column in parsed):
        parsed[0].key = True
    return table_request_from_proto(FillTableRequest(question=question, columns=parsed))


def _named_in(question: str) -> str:
    """Return what follows `columns:` on the question's last line. Raises `BadRequest`."""
    line = question.strip().rpartition("\n")[2].replace("：", ":", 1)
    label, _, columns = line.partition(":")
    if label.strip().lower() not in ("columns", "列名") or not columns.strip():
        raise BadRequest(
            "the question names no columns for its table; end it with a line such as "
            "`columns: city*, founder, founded` (a * marks a key)."
        )
    return columns.replace("，", ",")
