"""The values of a table: its columns, its rows, and the asks that fill it. An ask is one piece of
work for one executor: to find rows, or to look up cells of a row.
"""

from typing import Any, Literal, get_args

from router.frozen import Frozen
from router.trace.citation import Citation

ColumnType = Literal["text", "integer", "number", "date", "url", "boolean", "choice"]
AskKind = Literal["discover", "fill", "settle"]
Operator = Literal["equals", "one_of", "before", "after", "at_least", "at_most", "contains"]
"""Comparison of a row's value with the condition's value. `before` and `after` are not met by the
condition's value itself: after 1990 means 1991 or later.
"""
CheckState = Literal["met", "contradicted", "not_checked"]
RowKey = tuple[str, ...]
"""Canonical values of a row's key columns, in the order of the columns."""


class Column(Frozen, gc=False):
    """A column of a table, as requested by the client and completed by the delegator."""

    name: str
    type: ColumnType = "text"
    key: bool = False
    """True for a key column. The values of all key columns together identify a row."""
    about: str = ""
    """Description of the column's values, for models."""
    ask: str = ""
    """Template of the question for one cell, with names of key columns in braces: "When was {city}
    founded?". Empty for a plain question made of the column's name and the row's key.
    """
    choices: tuple[str, ...] = ()
    """All possible values, if `type` is `choice`."""
    unit: str = ""
    hidden: bool = False
    """True for a column that is only looked up to check conditions, and is not in the table."""


class Condition(Frozen, gc=False):
    """A condition that a row must meet to belong to the table."""

    column: Column
    """The column whose value is compared. For a condition in the form of a yes/no question, this is
    a hidden column of the type boolean.
    """
    operator: Operator = "equals"
    values: tuple[str, ...] = ()
    """The value to compare with; several for `one_of`."""

    @property
    def text(self) -> str:
        """The condition in words, such as `founded after 1990`."""
        name = self.column.name
        if name == self.column.ask:
            return name
        return f"{name} {self.operator.replace('_', ' ')} {', '.join(self.values)}"


class Schema(Frozen):
    """The columns of a table, in order, hidden ones last; and the conditions for its rows.
    `router.table.schema` and `router.table.conditions` check that they are valid.
    """

    columns: tuple[Column, ...]
    conditions: tuple[Condition, ...] = ()

    @property
    def shown(self) -> tuple[Column, ...]:
        """The columns of the table itself: all except hidden ones."""
        return tuple(column for column in self.columns if not column.hidden)

    @property
    def keys(self) -> tuple[Column, ...]:
        """The key columns."""
        return tuple(column for column in self.columns if column.key)


class Ask(Frozen, gc=False):
    """An ask: one piece of work on a table, for one executor. Two equal asks are the same piece of
    work.
    """

    kind: AskKind
    """`discover`: find rows. `fill`: look up cells of a row. `settle`: get a second opinion on
    cells of a row.
    """
    columns: tuple[str, ...]
    """Names of the columns whose cells are wanted."""
    row: RowKey | None = None
    """Key of the row. None for a discovery, and for all asks of a table that a model wrote itself
    (a baseline of the benchmarks).
    """
    discovery: int = 0
    """Number of an ask of the kind `discover`, from 1, in the order in which the delegator wrote
    such asks. 0 for other kinds of asks, and for all asks of a table that a model wrote itself.
    """
    attempt: int = 1
    """The number of the attempt, from 1. Attempts are counted per discovery, and per cell of a row.
    """
    manager: str = ""
    """Name of the manager that works on the ask; empty if there are no managers."""

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sort key of asks. It depends on the ask alone. Discoveries come first, in the order in
        which they were written, then fills, then asks that settle cells. Of two equal asks, the
        earlier attempt comes first.
        """
        kind = get_args(AskKind).index(self.kind)
        return kind, self.discovery, self.attempt, self.row or (), self.columns, self.manager


TableOutcome = Literal[
    "filled",
    "rounds_exhausted",
    "rows_exhausted",
    "tasks_exhausted",
    "time_exhausted",
    "budget_exhausted",
    "delegation_failed",
    "no_search",
    "out_of_scope",
]
"""Reason why the filling of a table ended. `filled`: the delegator wanted no more rows, and nothing
was left to look up. The other outcomes name the limit or the failure that ended the run.
"""
CellState = Literal["missing", "given", "single", "agreed", "conflict", "not_found"]
Support = Literal["stated", "value_only", "unsupported"]


class Claim(Frozen, gc=False):
    """A value that a report states for a cell."""

    value: str
    canonical: str
    """The value's canonical form. Claims with the same form state the same value."""
    ask: Ask
    """The ask that led to the report."""
    support: Support
    """Support by the passages that the executor was shown. `stated`: a sentence states the value
    for the row. `value_only`: a sentence contains the value, but the row is not named nearby.
    `unsupported`: neither.
    """
    citations: tuple[Citation, ...]
    """Citations of the value, one sentence from each passage that contains it."""


class Cell(Frozen, gc=False):
    """A cell of a table: its value, and all claims about it."""

    value: str
    state: CellState
    """State of the value. `missing`: there is no value yet, or only values without support.
    `given`: the client gave it. `single`: one report, or one document, states it. `agreed`: at
    least two reports state it, from different documents. `conflict`: another value is supported
    equally well. `not_found`: the allowed number of executors found no value.
    """
    claims: tuple[Claim, ...] = ()
    """All claims about the cell, best supported first; claims that state the cell's value come
    before all others. Claims do not change a value that the client gave.
    """


class Check(Frozen, gc=False):
    """Result of checking a condition for a row."""

    state: CheckState
    """`met`: the value meets the condition. `contradicted`: the value does not meet it, and a
    sentence about the row states the value, or the client gave it. `not_checked`: no sentence about
    the row states a value, stated values are in conflict, or the value is too vague to compare.
    """
    cell: Cell
    """The row's cell in the column of the condition."""

    @property
    def value(self) -> str:
        """The value that was compared."""
        return self.cell.value

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The sentences that state the value."""
        return self.cell.claims[0].citations if self.cell.claims and self.value else ()


class Row(Frozen, gc=False):
    """A row of a table, with one cell for each column that is not hidden."""

    key: RowKey
    cells: tuple[Cell, ...]
    found_by: tuple[Ask, ...]
    """The asks for new rows (discoveries) whose reports name this row, sorted by `Ask.rank`."""
    aliases: tuple[RowKey, ...] = ()
    """Other keys under which asks and reports name this row."""
    given: bool = False
    """True if the client gave the row."""
    checks: tuple[Check, ...] = ()
    """The result of each condition, in the order of the table's conditions."""

    @property
    def excluded(self) -> bool:
        """True if the row is left out of the table. It is left out if it contradicts a condition.
        It is also left out if a condition could not be checked, and neither the client nor the
        report on a discovery (a question for rows) named the row.
        """
        states = {check.state for check in self.checks}
        return "contradicted" in states or (
            "not_checked" in states and not (self.given or self.found_by)
        )
