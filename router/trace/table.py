"""The values of a table: its columns, what is asked to fill it, and its rows."""

from typing import Any, Literal, get_args

import msgspec

from router.trace.citation import Citation

ColumnType = Literal["text", "integer", "number", "date", "url", "boolean", "choice"]
AskKind = Literal["discover", "fill", "settle"]
RowKey = tuple[str, ...]
"""The canonical values of a row's key columns, in the order of the columns."""


class Column(msgspec.Struct, frozen=True, gc=False):
    """A column of a table."""

    name: str
    type: ColumnType = "text"
    key: bool = False
    """True where its values, together with those of the other key columns, tell the rows apart."""
    about: str = ""
    """The meaning of its values, for models."""
    ask: str = ""
    """The question for one cell, with the names of key columns in braces: "When was {city}
    founded?"; empty for a plain one made of the names.
    """
    choices: tuple[str, ...] = ()
    """All its values, where `type` is `choice`."""
    unit: str = ""


class Schema(msgspec.Struct, frozen=True):
    """The columns of a table, in order; `router.table.schema` checks them."""

    columns: tuple[Column, ...]

    @property
    def keys(self) -> tuple[Column, ...]:
        """The key columns."""
        return tuple(column for column in self.columns if column.key)


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One piece of work for one executor; equal asks are the same ask, whenever they are made."""

    kind: AskKind
    """`discover` finds rows, `fill` looks up cells of a row, `settle` gets a second opinion on
    some.
    """
    columns: tuple[str, ...]
    """Names of the columns whose values are wanted."""
    row: RowKey | None = None
    """None for a discovery, and, where a model writes the table, for all that its executors are
    asked.
    """
    discovery: int = 0
    """The number of a discovery in the order in which the delegator wrote them, from 1; 0 for the
    other kinds, and for a table that a model wrote.
    """
    attempt: int = 1
    """From 1; counted for each discovery, and for the cells of a row."""
    manager: str = ""
    """The manager that it goes to; empty where there is one way only."""

    @property
    def rank(self) -> tuple[Any, ...]:
        """Its place among all, which depends on nothing but itself: discoveries as they were
        written, each with all of its attempts; fills, settling, first attempts before others.
        """
        kind = get_args(AskKind).index(self.kind)
        return kind, self.discovery, self.attempt, self.row or (), self.columns, self.manager


TableTopologyName = Literal["wide", "wide_written", "wide_single"]
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
"""`filled`: nothing was left to ask for, as far as the delegator can tell; of the others, the limit
that ended the run, or the reason why there was no search.
"""
CellState = Literal["missing", "given", "single", "agreed", "conflict", "not_found"]
Support = Literal["stated", "value_only", "unsupported"]


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A value that a report gives for a cell."""

    value: str
    canonical: str
    ask: Ask
    """The ask whose report it is."""
    support: Support
    citations: tuple[Citation, ...]
    """A sentence of each passage that gives the value."""


class Cell(msgspec.Struct, frozen=True, gc=False):
    """A cell with all that is claimed of it."""

    value: str
    state: CellState
    """`agreed`: two reports by different documents; `conflict`: two values are supported equally
    well; `not_found`: it was looked for often enough.
    """
    claims: tuple[Claim, ...] = ()
    """Those of the value first, then its rivals, the best first. A given value stands, whatever
    is claimed.
    """


class Row(msgspec.Struct, frozen=True, gc=False):
    """A row with its cells, one for each column."""

    key: RowKey
    cells: tuple[Cell, ...]
    found_by: tuple[Ask, ...]
    """The discoveries that name it, by rank."""
    aliases: tuple[RowKey, ...] = ()
    """Other keys that asks and reports know it by."""
    given: bool = False
