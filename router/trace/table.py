"""The values of a table: its columns, its rows, and the asks that fill it. An ask is one piece of
work for one executor: to find rows, or to look up cells of a row.
"""

from typing import Any, Literal, get_args

import msgspec

from router.trace.citation import Citation

ColumnType = Literal["text", "integer", "number", "date", "url", "boolean", "choice"]
AskKind = Literal["discover", "fill", "settle"]
RowKey = tuple[str, ...]
"""Canonical values of a row's key columns, in the order of the columns."""


class Column(msgspec.Struct, frozen=True, gc=False):
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


class Schema(msgspec.Struct, frozen=True):
    """The columns of a table, in order. `router.table.schema` checks that they are valid."""

    columns: tuple[Column, ...]

    @property
    def keys(self) -> tuple[Column, ...]:
        """The key columns."""
        return tuple(column for column in self.columns if column.key)


class Ask(msgspec.Struct, frozen=True, gc=False):
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
    """For a discovery, its number in the order in which the delegator wrote them, from 1. 0 for
    other kinds, and for a table that a model wrote itself.
    """
    attempt: int = 1
    """The number of the attempt, from 1. Attempts are counted per discovery, and per cell of a row.
    """
    manager: str = ""
    """Name of the manager that works on the ask; empty if there are no managers."""

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sort key of asks, which depends on the ask alone. Discoveries come first, in the order in
        which they were written, then fills, then settling. Of two equal asks, the earlier attempt
        comes first.
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
"""Why the filling of a table ended. `filled`: the delegator wanted no more rows, and nothing was
left to look up. The other outcomes name the limit or the failure that ended the run.
"""
CellState = Literal["missing", "given", "single", "agreed", "conflict", "not_found"]
Support = Literal["stated", "value_only", "unsupported"]


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A value that a report states for a cell."""

    value: str
    canonical: str
    """The value's canonical form. Claims with the same form state the same value."""
    ask: Ask
    """The ask that led to the report."""
    support: Support
    """How well the passages that the executor was shown support the value."""
    citations: tuple[Citation, ...]
    """One sentence of each passage that contains the value."""


class Cell(msgspec.Struct, frozen=True, gc=False):
    """A cell of a table: its value, and all claims about it."""

    value: str
    state: CellState
    """State of the value. `missing`: there is none yet, or only values without support. `given`:
    the client gave it. `single`: one report, or one document, states it. `agreed`: at least two
    reports state it, from different documents. `conflict`: another value is supported equally well.
    `not_found`: the allowed number of executors found none.
    """
    claims: tuple[Claim, ...] = ()
    """All claims, best supported first: those of the cell's value, then those of other values. If
    the client gave the value, claims do not change it.
    """


class Row(msgspec.Struct, frozen=True, gc=False):
    """A row of a table, with one cell for each column."""

    key: RowKey
    cells: tuple[Cell, ...]
    found_by: tuple[Ask, ...]
    """The discoveries whose reports name the row, by rank."""
    aliases: tuple[RowKey, ...] = ()
    """Other keys under which asks and reports name this row."""
    given: bool = False
    """Whether the client gave the row."""
