"""The table of a run: by what the run came to, or, while it goes on, by what has been told of it."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from router.table import Table, table_of
from router.table.cell_value import canonical
from router.trace import Event, Execution, Run
from router.trace.table import Ask, Cell, Claim, Column, Row, RowKey, Schema
from router.trace.values import Planned, Reported, RowChanged, SubQueryDispatched, TableRun


class TableEvents:
    """The events that have been told of a table's run."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.columns: tuple[Column, ...] = ()
        self.asks: dict[Ask, int] = {}
        """With the numbers of their sub-queries."""
        self.rows: dict[RowKey, Row] = {}
        self.executions: dict[int, Execution] = {}
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        """Take in what happened."""
        match event:
            case Planned(columns=columns):
                self.columns = columns
            case SubQueryDispatched(index=index, ask=Ask() as ask):
                self.asks[ask] = index
            case Reported(index=index, execution=Execution() as execution):
                self.executions[index] = execution
            case RowChanged(key=key, row=Row() as row):
                self.rows[key] = row
                for alias in row.aliases:
                    self.rows.pop(alias, None)


class FoundTable(NamedTuple):
    """A table with the work behind it."""

    table: Table
    asks: Sequence[Ask]
    """By the numbers of their sub-queries."""
    executions: Mapping[int, Execution]


async def found_table(run: Run, folded: Table | None = None) -> FoundTable:
    """The table by what the run came to, or, while it goes on, by its events. `folded`: it, where it is known."""
    if isinstance(run.result, TableRun):
        # Reading takes milliseconds for each report.
        table = folded if folded is not None else await asyncio.to_thread(table_of, run.result)
        return FoundTable(table, run.result.asks, dict(enumerate(run.result.executions)))
    told = TableEvents(run.events)
    last = max((*told.asks.values(), *told.executions), default=-1)
    asks = [Ask("fill", ())] * (1 + last)  # gaps: of a run that is gone on with, or whose executors have no asks
    for ask, number in told.asks.items():
        asks[number] = ask
    return FoundTable(Table(Schema(told.columns), tuple(told.rows.values())), asks, told.executions)


def is_contradicted(cell: Cell, column: Column) -> bool:
    """True for a given value where a passage says another one of this row."""
    stated = (claim for claim in cell.claims if claim.support == "stated")
    return cell.state == "given" and not all(is_of(claim, cell.value, column) for claim in stated)


def is_of(claim: Claim, value: str, column: Column) -> bool:
    """True for a claim of this value: all names of a row are, and a date that is as precise as it, or less, or more."""
    form, other = canonical(column, value), claim.canonical
    dates = column.type == "date" and (form.startswith(f"{other}-") or other.startswith(f"{form}-"))
    return column.key or form == other or dates
