"""The table of a run, built from the run's result, or from its events while it is under way."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from cachetools import LRUCache

from router.frozen import Frozen
from router.table import Table, table_of
from router.table.cell_value import canonical
from router.table.completeness import Completeness, completeness
from router.table.filling import independent_discoveries
from router.table.left_out import left_out
from router.trace import Event, Execution, Run
from router.trace.table import Ask, Cell, Claim, Column, Condition, Row, RowKey, Schema
from router.trace.values import Planned, Reported, RowChanged, SubQueryDispatched, TableRun


class TableEvents:
    """State of a table's run, accumulated from the run's events."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.columns: tuple[Column, ...] = ()
        self.conditions: tuple[Condition, ...] = ()
        self.asks = dict[Ask, int]()
        """Maps each ask to the number of its sub-query. An ask is one piece of work on the table:
        to discover rows, or to fill or settle cells of a row.
        """
        self.rows = dict[RowKey, Row]()
        self.executions = dict[int, Execution]()
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        """Apply the next event to the state."""
        match event:
            case Planned(columns=columns, conditions=conditions):
                self.columns = columns
                self.conditions = conditions
            case SubQueryDispatched(index=index, ask=Ask() as ask):
                self.asks[ask] = index
            case Reported(index=index, execution=Execution() as execution):
                self.executions[index] = execution
            case RowChanged(key=key, row=Row() as row):
                self.rows[key] = row
                for alias in row.aliases:
                    self.rows.pop(alias, None)


class RunTable(Frozen, dict=True):
    """The table of a run, with the run's asks (pieces of work) and the work done on them."""

    table: Table
    asks: Sequence[Ask]
    """The ask of each sub-query, in the order of the sub-queries' numbers."""
    executions: Mapping[int, Execution]
    """The records of ended work on sub-queries, by the sub-queries' numbers."""

    @cached_property
    def completeness(self) -> Completeness:
        """Number of rows, number of cells by state, and the estimated number of all rows that
        exist.
        """
        reports = [(self.asks[number], execution) for number, execution in self.executions.items()]
        return completeness(
            self.table, independent_discoveries(reports), left_out(self.table, reports)
        )


class _Fold:
    """Cached table of one run. While the run is under way, each call of `of` applies only the
    events that have happened since the last call.
    """

    def __init__(self) -> None:
        self._state = TableEvents()
        self._taken = 0
        self._table: RunTable | None = None

    def of(self, run: Run) -> RunTable:
        """Return the table of `run`: from the run's result, or from its events if there is no
        result yet.
        """
        result = run.result
        events = run.events[self._taken :]
        if isinstance(result, TableRun):
            table = self._table or RunTable(
                table_of(result), result.asks, dict(enumerate(result.executions))
            )
        elif events or not self._table:
            self._taken += len(events)
            table = self._so_far(events)
        else:
            table = self._table
        self._table = table
        return table

    def _so_far(self, events: Iterable[Event]) -> RunTable:
        state = self._state
        for event in events:
            state.take(event)
        last = max((*state.asks.values(), *state.executions), default=-1)

        # A sub-query without a recorded ask, which resumed runs may have, gets an empty ask.
        asks = [Ask("fill", ())] * (1 + last)
        for ask, number in state.asks.items():
            asks[number] = ask
        table = Table.of(Schema(state.columns, state.conditions), state.rows.values())
        return RunTable(table, asks, dict(state.executions))


_FOLDS = LRUCache[int, tuple[object, _Fold]](4)
"""Tables of the most recently viewed runs. The key is the `id` of an object of the run. The object
is kept with the table, so that no other object can get the same `id`.
"""


def run_table(run: Run) -> RunTable:
    """Return the table of a run.

    Must be called only through `in_viewer`. All requests that look at a run share one cached table,
    and the single thread of `in_viewer` keeps them from changing it concurrently.
    """
    source = run.result if isinstance(run.result, TableRun) else next(iter(run.events), run)
    _, fold = _FOLDS.setdefault(id(source), (source, _Fold()))
    return fold.of(run)


def is_contradicted(cell: Cell, column: Column) -> bool:
    """Return True if the client gave the value of a cell, and a passage states another value for
    it.
    """
    stated = (claim for claim in cell.claims if claim.support == "stated")
    return cell.state == "given" and not all(is_of(claim, cell.value, column) for claim in stated)


def is_of(claim: Claim, value: str, column: Column) -> bool:
    """Return True if a claim (a value that a report states) agrees with the value `value` of a
    cell.

    In a key column, every claim agrees, because it is another name of the same row. Dates also
    agree if one is less precise than the other, such as a year and a day in that year.
    """
    form = canonical(column, value)
    other = claim.canonical
    dates = column.type == "date" and (form.startswith(f"{other}-") or other.startswith(f"{form}-"))
    return column.key or form == other or dates
