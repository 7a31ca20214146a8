"""The table of a run: by what the run came to, or, while it goes on, by what has been told of
it.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from cachetools import LRUCache

from router.table import Table, table_of
from router.table.cell_value import canonical
from router.table.completeness import Completeness, completeness
from router.table.filling import occasions
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


class FoundTable:
    """A table with the work behind it."""

    def __init__(
        self, table: Table, asks: Sequence[Ask], executions: Mapping[int, Execution]
    ) -> None:
        """`asks`: by the numbers of their sub-queries."""
        self.table = table
        self.asks = asks
        self.executions = executions

    @cached_property
    def completeness(self) -> Completeness:
        """Its state, in counts."""
        looked = occasions(
            (self.asks[number], execution) for number, execution in self.executions.items()
        )
        return completeness(self.table, looked)


class _Fold:
    """The table of one run as far as it was looked at: what happens later is added to it."""

    def __init__(self) -> None:
        self._told = TableEvents()
        self._taken = 0
        self._found: FoundTable | None = None

    def of(self, run: Run) -> FoundTable:
        """The table by what the run came to, or, while it goes on, by its events."""
        result = run.result
        events = run.events[self._taken :]
        if isinstance(result, TableRun):
            found = self._found or FoundTable(
                table_of(result), result.asks, dict(enumerate(result.executions))
            )
        elif events or not self._found:
            self._taken += len(events)
            found = self._so_far(events)
        else:
            found = self._found
        self._found = found
        return found

    def _so_far(self, events: Iterable[Event]) -> FoundTable:
        told = self._told
        for event in events:
            told.take(event)
        last = max((*told.asks.values(), *told.executions), default=-1)
        # Gaps: of a run that is gone on with, or whose executors have no asks
        asks = [Ask("fill", ())] * (1 + last)
        for ask, number in told.asks.items():
            asks[number] = ask
        table = Table(Schema(told.columns), tuple(told.rows.values()))
        return FoundTable(table, asks, dict(told.executions))


_FOLDS: LRUCache[int, tuple[object, _Fold]] = LRUCache(4)
"""Those of the runs that were looked at last, each with what tells its run from others."""


def found_table(run: Run) -> FoundTable:
    """Return the table of a run. To be called by `in_viewer` alone: so there is one fold at a time,
    which all who look at the run share.
    """
    source = run.result if isinstance(run.result, TableRun) else next(iter(run.events), run)
    _, fold = _FOLDS.setdefault(id(source), (source, _Fold()))
    return fold.of(run)


def is_contradicted(cell: Cell, column: Column) -> bool:
    """True for a given value where a passage says another one of this row."""
    stated = (claim for claim in cell.claims if claim.support == "stated")
    return cell.state == "given" and not all(is_of(claim, cell.value, column) for claim in stated)


def is_of(claim: Claim, value: str, column: Column) -> bool:
    """True for a claim of this value: all names of a row are, and a date that is as precise as
    it, or less, or more.
    """
    form = canonical(column, value)
    other = claim.canonical
    dates = column.type == "date" and (form.startswith(f"{other}-") or other.startswith(f"{form}-"))
    return column.key or form == other or dates
