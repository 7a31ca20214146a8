"""Conversion of requests for tables to the gateway's values, and of tables and their events to
messages.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from rolegate.client.text import markdown_table
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import table_service_pb2 as pb

from router.amount import Amount
from router.background import in_viewer
from router.edge.grpc.convert import (
    answer_to_proto,
    event_to_proto,
    row_id,
    to_proto,
)
from router.edge.grpc.convert_request import from_proto
from router.edge.run_table import TableEvents, is_contradicted, is_of, run_table
from router.runs.archive import shortened
from router.runs.support import unblocked
from router.table import TableRequest, table_cost
from router.table.cell_value import is_mistyped
from router.trace import Event, Run
from router.trace.call import totals
from router.trace.run import RunKind
from router.trace.table import Ask, Cell, Column, Row
from router.trace.values import Reported, RowChanged, TableRun


def table_request_from_proto(request: pb.FillTableRequest | pb.StreamTableRequest) -> TableRequest:
    """Convert a request for a table. Raises `BadRequest` if an enum value is unknown."""
    rows = tuple(tuple(row.values) for row in request.rows)
    return from_proto(TableRequest, request, rows=rows)


_MAX_BYTES = 1 << 20
_MAX_ROW_BYTES = 1 << 20
"""`_MAX_BYTES`: max bytes of all rows in one message. `_MAX_ROW_BYTES`: max bytes of a single row.
A message is built and sent in one step of the event loop, so larger messages would block the loop.
"""


class EventsToProto:
    """Converts the events of one run (for an answer or a table) to messages of a stream. The events
    must be passed in their order.
    """

    def __init__(self, kind: RunKind, earlier: Iterable[Event] = ()) -> None:
        """`earlier`: the events before the first event to convert. The client already has them;
        they are needed to restore the state of a table.
        """
        self._message: Any = answer_pb.StreamAnswerResponse
        if kind == "table":
            self._message = pb.StreamTableResponse
        self._state = TableEvents(earlier)

    async def one(self, number: int, event: Event) -> Any:
        """Return the stream's message for `event`. `number`: the event's number in the run."""
        if isinstance(event, Reported) and event.execution:
            return await unblocked(event.execution, self._to_proto, number, event)
        return self._to_proto(number, event)

    async def last(self, number: int, run: Run) -> tuple[Any, Any]:
        """Return the last two messages of a finished run: its usage, with the event number
        `number`, and its answer or table, with the next number.
        """
        done: Any = await (table_to_proto(run) if run.kind == "table" else answer_to_proto(run))
        return (
            self._message(event_number=number, usage_counted={"usage": done.usage}),
            self._message(event_number=number + 1, done=done),
        )

    def _to_proto(self, number: int, event: Event) -> Any:
        state = self._state
        state.take(event)
        changed = dict[str, Any]()
        if isinstance(event, RowChanged):
            row = event.row and _row_to_proto(event.row, state.columns, state.asks)
            changed = {"row_id": row_id(event.key), "row": row}
        return event_to_proto(self._message, number, event, **changed)


async def table_to_proto(run: Run, start: int = 0, end: int | None = None) -> pb.Table:
    """Convert the table of a run, with its rows from index `start` up to but not including `end`.
    If `end` is None, all rows from `start` on are included. If the rows do not fit into a message,
    the last ones are left out.
    """
    return await in_viewer(_table_to_proto, run, start, end)


def _table_to_proto(run: Run, start: int, end: int | None) -> pb.Table:
    filled = run_table(run)
    table = filled.table
    asks = filled.asks
    cost = table_cost(table, asks, run.calls)
    numbers = {ask: number for number, ask in enumerate(asks)}
    columns = table.schema.columns
    every_row = table.every_row
    rows = list[pb.Row]()
    size = 0
    for at in range(len(every_row))[start:end]:
        row = _row_to_proto(every_row[at], columns, numbers, cost.rows[at])
        line = markdown_table((), [[cell.value for cell in row.cells]])
        size += row.ByteSize() + len(line.encode())
        if rows and size > _MAX_BYTES:
            break
        rows.append(row)
    end = start + len(rows)
    excluded = rows[max(0, len(table.rows) - start) :]
    del rows[len(rows) - len(excluded) :]
    return to_proto(
        pb.Table,
        run,
        run_id=run.id,
        outcome=run.result.outcome
        if run.status == "finished" and isinstance(run.result, TableRun)
        else None,
        columns=columns,
        rows=rows,
        excluded=excluded,
        conditions=table.schema.conditions,
        ignored_conditions=run.result.ignored if isinstance(run.result, TableRun) else None,
        completeness=to_proto(
            pb.Completeness,
            known := filled.completeness,
            missing=known.cells.get("missing"),
            not_found=known.cells.get("not_found"),
            conflicts=known.cells.get("conflict"),
        ),
        usage=totals(run.calls),
        overhead_tokens=cost.overhead.tokens,
        overhead_nano_usd=cost.overhead.nano_usd,
        markdown=markdown_table(
            (column.name for column in columns),
            ([cell.value for cell in row.cells] for row in rows),
        ),
        next_page_token=str(end) if end < len(every_row) else "",
    )


def _row_to_proto(
    row: Row,
    columns: Sequence[Column],
    numbers: Mapping[Ask, int],
    spent: Amount | None = None,
) -> pb.Row:
    """Convert a row. `numbers`: the numbers of sub-queries, by ask (the cells that a sub-query is
    about). `spent`: the tokens and the cost of the row; None for a row in an event, because its
    cost is not counted yet.

    A row that is too large for a message is sent without citations and conflicting values, and with
    shortened values.
    """
    message = to_proto(
        pb.Row,
        row_id=row_id(row.key),
        cells=[
            _cell_to_proto(cell, column, numbers)
            for cell, column in zip(row.cells, columns, strict=True)
        ],
        tokens=spent and spent.tokens,
        cost_nano_usd=spent and spent.nano_usd,
        merged_row_ids=map(row_id, row.aliases),
        checks=row.checks,
    )
    if message.ByteSize() > _MAX_ROW_BYTES:
        parts: list[pb.Cell | pb.Check] = [*message.cells, *message.checks]
        for part in parts:
            part.ClearField("citations")
            part.value = shortened(part.value, _MAX_ROW_BYTES // (4 * len(parts)))
        for cell in message.cells:
            cell.ClearField("rivals")
    return message


def _cell_to_proto(cell: Cell, column: Column, numbers: Mapping[Ask, int]) -> pb.Cell:
    own = [claim for claim in cell.claims if is_of(claim, cell.value, column)]
    rivals = [claim for claim in cell.claims if claim not in own]
    return to_proto(
        pb.Cell,
        cell,
        support=own[0].support if own else None,
        citations=dict.fromkeys(chain.from_iterable(claim.citations for claim in own)),
        rivals=[to_proto(pb.Claim, claim, sub_query_index=numbers[claim.ask]) for claim in rivals],
        contradicted=is_contradicted(cell, column),
        mistyped=cell.value != "" and is_mistyped(column, cell.value),
    )
