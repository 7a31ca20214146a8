"""The table of a run: from its result, or from its events while it runs."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from cachetools import LRUCache

from router.table import Table, table_of
from router.table.cell_value import canonical
from router.table.completeness import Completeness, completeness
from router.table.filling import independent_discoveries
from router.trace import Event, Execution, Run
from router.trace.table import Ask, Cell, Claim, Column, Row, RowKey, Schema
from router.trace.values import Planned, Reported, RowChanged, SubQueryDispatched, TableRun


class TableEvents:
    """State of a table's run, folded from its events."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.columns: tuple[Column, ...] = ()
        self.asks: dict[Ask, int] = {}
        """Sub-query numbers by ask."""
        self.rows: dict[RowKey, Row] = {}
        self.executions: dict[int, Execution] = {}
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        """Apply an event."""
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


class RunTable:
    """A table with its asks and executions."""

    def __init__(
        self, table: Table, asks: Sequence[Ask], executions: Mapping[int, Execution]
    ) -> None:
        """`asks`: indexed by sub-query number."""
        self.table = table
        self.asks = asks
        self.executions = executions

    @cached_property
    def completeness(self) -> Completeness:
        """Counts of rows and cells by state."""
        searches = independent_discoveries(
            (self.asks[number], execution) for number, execution in self.executions.items()
        )
        return completeness(self.table, searches)


class _Fold:
    """The table of one run, updated incrementally from its new events."""

    def __init__(self) -> None:
        self._state = TableEvents()
        self._taken = 0
        self._table: RunTable | None = None

    def of(self, run: Run) -> RunTable:
        """Return the table from the run's result, or from its events while it runs."""
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

        # Numbers without an ask occur in resumed runs, and where executors have no asks.
        asks = [Ask("fill", ())] * (1 + last)
        for ask, number in state.asks.items():
            asks[number] = ask
        table = Table(Schema(state.columns), tuple(state.rows.values()))
        return RunTable(table, asks, dict(state.executions))


_FOLDS: LRUCache[int, tuple[object, _Fold]] = LRUCache(4)
"""Folds of the most recently viewed runs, by the identity of an object that belongs to the run."""


def run_table(run: Run) -> RunTable:
    """Return the table of a run. Call it only through `in_viewer`: its single thread lets all
    viewers of a run share one fold.
    """
    source = run.result if isinstance(run.result, TableRun) else next(iter(run.events), run)
    _, fold = _FOLDS.setdefault(id(source), (source, _Fold()))
    return fold.of(run)


def is_contradicted(cell: Cell, column: Column) -> bool:
    """Return whether a passage states another value than the given one."""
    stated = (claim for claim in cell.claims if claim.support == "stated")
    return cell.state == "given" and not all(is_of(claim, cell.value, column) for claim in stated)


def is_of(claim: Claim, value: str, column: Column) -> bool:
    """Return whether a claim supports this value. Any name of a row's key does, and so does the
    same date in another precision.
    """
    form = canonical(column, value)
    other = claim.canonical
    dates = column.type == "date" and (form.startswith(f"{other}-") or other.startswith(f"{form}-"))
    return column.key or form == other or dates
