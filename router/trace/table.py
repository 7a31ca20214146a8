"""The values of a table: its columns, the asks that fill it, and its rows."""

from typing import Any, Literal, get_args

import msgspec

from router.trace.citation import Citation

ColumnType = Literal["text", "integer", "number", "date", "url", "boolean", "choice"]
AskKind = Literal["discover", "fill", "settle"]
RowKey = tuple[str, ...]
"""Canonical values of a row's key columns, in the order of the columns."""


class Column(msgspec.Struct, frozen=True, gc=False):
    """A column of a table."""

    name: str
    type: ColumnType = "text"
    key: bool = False
    """True if it is one of the columns whose values together identify a row."""
    about: str = ""
    """The meaning of its values, for models."""
    ask: str = ""
    """The question for one cell, with names of key columns in braces: "When was {city} founded?";
    empty for a plain one made of the names.
    """
    choices: tuple[str, ...] = ()
    """All possible values, if `type` is `choice`."""
    unit: str = ""


class Schema(msgspec.Struct, frozen=True):
    """The columns of a table in order; `router.table.schema` checks them."""

    columns: tuple[Column, ...]

    @property
    def keys(self) -> tuple[Column, ...]:
        """The key columns."""
        return tuple(column for column in self.columns if column.key)


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One task for one executor. Equal asks are the same ask, whenever they are made."""

    kind: AskKind
    """`discover` finds rows, `fill` looks up cells of a row, `settle` gets a second opinion on
    cells.
    """
    columns: tuple[str, ...]
    """Names of the wanted columns."""
    row: RowKey | None = None
    """None for a discovery, and for all asks of a table that a model writes."""
    discovery: int = 0
    """The number of a discovery in the order in which the delegator wrote them, from 1; 0 for other
    kinds, and for a table that a model wrote.
    """
    attempt: int = 1
    """From 1; counted per discovery, and per cell of a row."""
    manager: str = ""
    """The manager that it goes to; empty if there are no managers."""

    @property
    def rank(self) -> tuple[Any, ...]:
        """Its position among all asks, which depends on nothing else: discoveries in written order
        with their attempts, then fills, then settling; first attempts before others.
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
"""`filled`: nothing was left to ask for, according to the delegator. The others name the limit that
ended the run, or why there was no search.
"""
CellState = Literal["missing", "given", "single", "agreed", "conflict", "not_found"]
Support = Literal["stated", "value_only", "unsupported"]


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A report's value for a cell."""

    value: str
    canonical: str
    ask: Ask
    """The ask that led to the report."""
    support: Support
    citations: tuple[Citation, ...]
    """One sentence of each passage that states the value."""


class Cell(msgspec.Struct, frozen=True, gc=False):
    """A cell with all claims about it."""

    value: str
    state: CellState
    """`agreed`: two reports by different documents; `conflict`: two values are supported equally
    well; `not_found`: it was asked for often enough.
    """
    claims: tuple[Claim, ...] = ()
    """First the claims of the value, then of its rivals, best first. A given value stands against
    all claims.
    """


class Row(msgspec.Struct, frozen=True, gc=False):
    """A row with one cell per column."""

    key: RowKey
    cells: tuple[Cell, ...]
    found_by: tuple[Ask, ...]
    """The discoveries that name it, by rank."""
    aliases: tuple[RowKey, ...] = ()
    """Other keys of this row in asks and reports."""
    given: bool = False
