"""Requests for tables in a short form: a question, and the names of the columns. The
OpenAI-compatible server and the web pages receive such requests.

The columns are listed in a field of the request, or named in the question itself ("… with the
columns: city, founder").
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from rolegate.client.table import parse_columns
from rolegate.v1.table_service_pb2 import FillTableRequest

from router.edge.grpc.convert_table import table_request_from_proto
from router.errors import BadRequest
from router.runs import RequestOptions
from router.table import TableRequest
from router.table.schema import MAX_COLUMNS, check_number, normal_name
from router.trace import Run
from router.trace.table import Column
from router.trace.values import OnEvent

_WIDESEARCH = re.compile(r"```markdown\s+\{data_content\}\s+```[\s.。]*\Z")
"""The last lines of every question of the benchmark WideSearch."""
_NAMED = re.compile(
    r"(?:\bcolumns?\b(?![”\"'])[^\n:：.?]{0,60}|列名[^\n:：。]{0,20})(?:[:：]|(?<= as) )\s*",
    re.IGNORECASE,
)
_END = re.compile(r"\n\s*\n|。|\.\s+(?=[A-Z])")
_COMMA = re.compile(r"[,，](?![^()（）]{0,200}[)）])")
_SHARED = re.compile(
    r"\b(?:years?|months?|quarters?|seasons?|dates?|categor(?:y|ies)|subjects?|types?|"
    r"awards?|rank(?:ing)?)\b"
    r"|年|月|日期|时间|季|届|类|奖项|榜单|排名",
    re.IGNORECASE,
)
"""Matches the name of a column whose values are usually the same in many rows, such as a year. Such
a column alone does not identify a row.
"""
_MAX_PLACES = 8
_MAX_LIST_CHARS = 4000
"""Column names are looked for at no more than `_MAX_PLACES` places of a question. At each place, no
more than `_MAX_LIST_CHARS` characters are read. So the time is linear in the question's length.
"""
_MAX_COLUMNS_CHARS = 40_000
"""Max characters of all listed columns together, because they are parsed on the event loop."""


class Tables(Protocol):
    """Anything that fills tables, such as a `Gateway`."""

    async def fill_table(
        self,
        request: TableRequest,
        options: RequestOptions,
        on_event: OnEvent = lambda _event: None,
    ) -> Run:
        """Fill a table and return the stored run, whose result is a `TableRun`. See
        `Gateway.fill_table`.
        """


def is_widesearch(question: str) -> bool:
    """Return True if a question ends like the questions of the benchmark WideSearch. All of these
    request a table.
    """
    return _WIDESEARCH.search(question) is not None


def asked_table(question: str, columns: str | Sequence[str] = ()) -> TableRequest:
    """Return the request for a table.

    `columns`: the columns in the notation of `parse_columns`, such as `city*, founded:integer`. If
    empty, the columns are those that the question names. Raises `BadRequest` if the columns are
    invalid or missing.
    """
    if not columns:
        return TableRequest(question, _columns_named_in(question))
    if len("".join(columns)) > _MAX_COLUMNS_CHARS:
        raise BadRequest(
            f"columns: the list of columns is longer than {_MAX_COLUMNS_CHARS:,} characters; list "
            "fewer columns or choices."
        )
    listed = columns.split(",") if isinstance(columns, str) else columns
    check_number(listed)
    try:
        request = FillTableRequest(question=question, columns=parse_columns(listed))
    except ValueError as error:
        raise BadRequest(f"columns: {error}") from None
    return table_request_from_proto(request)


def keys_of(names: Sequence[str]) -> set[str]:
    """Choose the key columns of a table whose request marks none. Return the names of all columns
    up to the first column whose name does not match `_SHARED`. That column is included; it can
    identify a row alone.
    """
    last = next((at for at, name in enumerate(names) if not _SHARED.search(name)), 0)
    return set(names[: last + 1])


def _columns_named_in(question: str) -> tuple[Column, ...]:
    """Return the columns that a question names. Raises `BadRequest` if it names none.

    Columns whose names end with `*` are keys. If no name ends with `*`, `keys_of` chooses the keys.
    """
    for place in islice(_NAMED.finditer(question), _MAX_PLACES):
        names = _names(question[place.end() : place.end() + _MAX_LIST_CHARS])
        distinct = {normal_name(name) for name in names} - {""}
        if 1 < len(names) == len(distinct) <= MAX_COLUMNS:
            keys = {name for name in names if name.endswith("*")}
            keys = keys or keys_of(names)
            return tuple(Column(name.rstrip("* "), key=name in keys) for name in names)
    raise BadRequest(
        "the question names no columns for its table; end it with a line such as "
        "`columns: city*, founder, founded` (* marks a key column)."
    )


def _names(text: str) -> list[str]:
    """Return the column names at the start of a text. They are either all on the first line, or one
    per line up to a blank line.
    """
    first_line = _END.split(text.split("\n", maxsplit=1)[0], maxsplit=1)[0]
    if "|" in first_line:
        names = first_line.split("|")
    elif "、" in first_line:
        names = first_line.split("、")
    else:
        names = _COMMA.split(first_line, MAX_COLUMNS)
    if len(names) == 1:
        names = _END.split(text, maxsplit=1)[0].split("\n")
    stripped = (re.sub(r"^and\s+", "", name.strip()).strip().rstrip(".") for name in names)
    return [name for name in stripped if name]
