"""The fold of reports to a table: the same, whatever came first. No model writes any of it."""

import sys
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, get_args

import msgspec

from router.folding import sought
from router.table.cell_value import canonical, is_blank, is_mistyped, row_key
from router.table.plain_text import plain
from router.table.support import Shown, Tie, tied
from router.table.table_text import read_rows, read_values
from router.trace import Execution
from router.trace.table import Ask, Cell, Claim, Column, Row, RowKey, Schema, Support

_Place = tuple[tuple[Any, ...], int]
"""The rank of an ask, and the number of a row in its report."""
_SUPPORTS: tuple[Support, ...] = get_args(Support)


class Table(msgspec.Struct, frozen=True):
    """Given rows as given, then the others in the order in which discoveries name them, by rank."""

    schema: Schema
    rows: tuple[Row, ...]


class Found(NamedTuple):
    """The part of one report that is about one row."""

    ask: Ask
    key: RowKey
    claims: tuple[Claim | None, ...]
    """For each column."""
    looked: bool
    """True where it was looked for, and not named by a discovery; executors that failed did not
    look.
    """


class Reading(NamedTuple):
    """One report as it is read, with the names that its passages tie together."""

    found: tuple[Found, ...]
    ties: tuple[Tie, ...]
    lost: int
    """Rows that it knows of and does not hold: to be asked for again."""


def read_report(
    schema: Schema, ask: Ask, execution: Execution, max_rows: int = sys.maxsize
) -> Reading:
    """Return the rows and values in the report of an ask, each with its support. Depends on nothing
    else.

    `max_rows`: of a table. A discovery's rows beyond it are dropped, but for one, which tells that
    there are more.
    """
    answer = "" if execution.failed and not execution.report.evidence else execution.report.answer
    shown = Shown(passage for search in execution.every_search for passage in search.shown)
    columns = [
        column
        for column in schema.columns
        if column.name in ask.columns or (column.key and ask.row is None)
    ]
    if ask.row is None:
        listed, lost = read_rows(answer, columns)
        rows = []
        keys = set[RowKey]()
        for row in listed:
            key = row_key(Schema(tuple(columns)), row)
            if key in keys or len(keys) <= max_rows:
                keys.add(key)
                rows.append((key, row))
    else:
        rows = [(ask.row, read_values(answer, schema, columns, ask.row))]
        lost = 0
    looked = ask.row is not None and execution.looked
    found = list[Found]()
    for key, row in rows:
        names = shown.also_named(names_of(schema, key))
        claims = dict[str, Claim]()
        for column, value in zip(columns, map(plain, row), strict=True):
            if not is_blank(value, column):
                form = canonical(column, value)
                claims[column.name] = Claim(
                    value, form, ask, *shown.support(column, value, form, names)
                )
        found.append(
            Found(ask, key, tuple(claims.get(column.name) for column in schema.columns), looked)
        )
    return Reading(tuple(found), shown.ties, lost + execution.report.lost_lines)


def names_of(schema: Schema, key: RowKey) -> list[str]:
    """The parts of a key that are names, folded; all of them where none is."""
    texts = [
        sought(part) for column, part in zip(schema.keys, key, strict=True) if column.type == "text"
    ]
    return [name for name in texts or map(sought, key) if name.strip()]


class Assembly:
    """A table as its reports come.

    Rows stand in the order of their places: given rows first, then each by the first ask that names
    it. A report costs what its own rows cost: a key that no tie is about is a row of its own, which
    is put to its place. Only a report that brings a tie of known names, or a key that a tie may be
    about, has all keys grouped again. Rows beyond `max_rows` keep their places, but are not made.
    """

    def __init__(
        self,
        schema: Schema,
        given: Iterable[Sequence[str]] = (),
        *,
        asks_per_cell: int = 2,
        max_rows: int = sys.maxsize,
    ) -> None:
        """`given`: rows with a value for each column, empty where one is wanted. `asks_per_cell`:
        after so many executors that looked for a cell, nothing is to be found. `max_rows`: rows of
        the table.
        """
        self._schema = schema
        self._asks_per_cell = asks_per_cell
        self._max_rows = max_rows
        self._given = {row_key(schema, values): tuple(values) for values in given}
        self._places: dict[RowKey, _Place] = {
            key: ((-1,), number) for number, key in enumerate(self._given)
        }
        """The first place of each key."""
        self._order: list[tuple[_Place, RowKey]] = []
        """The home of each row with its place, in order."""
        self._found: dict[RowKey, list[tuple[_Place, Found]]] = {key: [] for key in self._given}
        """By keys, and then by rank."""
        self._parts: dict[RowKey, tuple[str, ...]] = {}
        """Folded parts of keys."""
        self._names = set[str]()
        self._ties = set[Tie]()
        self._groups: dict[RowKey, list[RowKey]] = {}
        """The keys of each row, by the first of them, its home."""
        self._homes: dict[RowKey, RowKey] = {}
        self._rows: dict[RowKey, Row] = {}
        self._changed: dict[RowKey, set[str]] = {}
        """Homes of rows that are to be made again, with the columns that reports were about."""
        self._know(self._given)
        self._group()

    @property
    def overflows(self) -> bool:
        """True where there are more rows than the table may have."""
        return len(self._order) > self._max_rows

    def add(self, ask: Ask, execution: Execution) -> Reading:
        """Take the report of an ask, as it is read; of each ask one."""
        reading = read_report(self._schema, ask, execution, self._max_rows)
        rank = ask.rank
        moved = dict[RowKey, _Place | None]()
        for at, each in enumerate(reading.found):
            insort(self._found.setdefault(each.key, []), ((rank, at), each), key=itemgetter(0))
            before = self._places.get(each.key)
            if before is None or (rank, at) < before:
                self._places[each.key] = rank, at
                moved[each.key] = before
        self._know(moved)
        ties = {*reading.ties} - self._ties
        self._ties |= ties
        parts = {part for key in moved for part in self._parts[key]}
        if any(tied(ties, self._names, 1)) or (
            parts and any(_is_about(tie, parts) for tie in self._ties)
        ):
            self._group()
        else:
            for key, before in moved.items():
                self._move(key, before)
        for each in reading.found:
            self._changed.setdefault(self._homes[each.key], set()).update(ask.columns)
        return reading

    def changed(self) -> Iterator[Row]:
        """Make the rows that have changed since the last time, one by one, in their order."""
        changed = self._changed
        self._changed = {}
        last = self._order[self._max_rows - 1][0] if self.overflows else None
        for home in sorted(changed.keys() & self._groups.keys(), key=self._places.__getitem__):
            before = self._rows.pop(home, None)
            if last is None or self._places[home] <= last:
                found = chain.from_iterable(self._found[key] for key in self._groups[home])
                members = [each for _, each in sorted(found, key=itemgetter(0))]
                self._rows[home] = row = self._row(home, members, before, changed[home])
                yield row

    def table(self) -> Table:
        """The table by the reports there are."""
        deque(self.changed(), 0)
        return Table(
            self._schema, tuple(self._rows[home] for _, home in self._order[: self._max_rows])
        )

    def _know(self, keys: Iterable[RowKey]) -> None:
        for key in keys:
            self._parts[key] = tuple(map(sought, key))
            self._names.update(names_of(self._schema, key))

    def _move(self, key: RowKey, before: _Place | None) -> None:
        """Put a row that no tie is about to its place; `before`: the one that it has had."""
        if before is not None:
            del self._order[bisect_left(self._order, (before, key))]
        insort(self._order, (self._places[key], key))
        self._homes[key] = key
        self._groups[key] = [key]

    def _group(self) -> None:
        """Put each key to the first one that is the same, or that two documents tie to it;
        given ones stay.
        """
        same: dict[str, frozenset[str]] = {}
        for one, other in tied(self._ties, self._names):
            if other not in (names := same.get(one, frozenset((one,)))):
                names |= same.get(other, {other})
                same |= dict.fromkeys(names, names)
        before = self._groups
        first = dict[tuple[str | frozenset[str], ...], RowKey]()
        self._groups = {}
        for key in sorted(self._places, key=self._places.__getitem__):
            form = tuple(
                same.get(name, part) for name, part in zip(self._parts[key], key, strict=True)
            )
            self._homes[key] = home = key if key in self._given else first.get(form, key)
            first.setdefault(form, key)
            self._groups.setdefault(home, []).append(key)
        self._order = [(self._places[home], home) for home in self._groups]
        for home, keys in self._groups.items():
            if before.get(home) != keys:
                self._rows.pop(home, None)
            if home not in self._rows:
                self._changed.setdefault(home, set())

    def _row(
        self, home: RowKey, members: Sequence[Found], before: Row | None, columns: Collection[str]
    ) -> Row:
        """Make a row. `before`: the same, where reports have come for `columns` alone since it
        was made.
        """
        given = self._given.get(home)
        cells = list[Cell]()
        parts = iter(home)
        for at, column in enumerate(self._schema.columns):
            if before and not column.key and column.name not in columns:
                cells.append(before.cells[at])
                continue
            claims: dict[tuple[Ask, str], Claim] = {}
            for claim in sorted(filter(None, (each.claims[at] for each in members)), key=_grade):
                claims.setdefault((claim.ask, claim.canonical), claim)
            looked = sum(each.looked and column.name in each.ask.columns for each in members)
            value = given[at] if given else ""
            cell = _cell(column, value, list(claims.values()), looked >= self._asks_per_cell)
            # All there is of a row that was asked for and not yet found
            part = next(parts) if column.key else ""
            cells.append(cell if cell.value else Cell(part, cell.state))
        asks = dict.fromkeys(each.ask for each in members if each.ask.row is None)
        aliases = dict.fromkeys(each.key for each in members if each.key != home)
        return Row(home, tuple(cells), tuple(asks), tuple(aliases), given is not None)


def assemble(
    schema: Schema,
    given: Iterable[Sequence[str]],
    reports: Iterable[tuple[Ask, Execution]],
    **limits: int,
) -> Table:
    """The table that reports make, in whatever order they are, each ask once. `limits`: as for
    `Assembly`.
    """
    assembly = Assembly(schema, given, **limits)
    for ask, execution in reports:
        assembly.add(ask, execution)
    return assembly.table()


def _is_about(tie: Tie, parts: set[str]) -> bool:
    """True for a tie that one of these may be a name in."""
    return not parts.isdisjoint(tie.before + tie.after)


def _cell(column: Column, given: str, claims: Sequence[Claim], exhausted: bool) -> Cell:
    """A cell by its claims, the best supported first, and then by the ranks of their asks."""
    finer = _finer({claim.canonical for claim in claims}) if column.type == "date" else {}
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        form = finer.get(claim.canonical, claim.canonical)
        groups.setdefault("" if column.key else form, []).append(claim)
    for members in groups.values():
        members.sort(key=lambda claim: (_grade(claim), claim.canonical in finer))
    values = sorted(groups.values(), key=lambda members: _worth(column, members))
    shown = tuple(claim for members in values for claim in members)
    if given or not shown:
        return Cell(given, "given" if given else "not_found" if exhausted else "missing", shown)
    if len(values) > 1 and values[0][0].support == values[1][0].support:
        return Cell(shown[0].value, "conflict", shown)
    agreed = len({claim.ask for claim in values[0]}) > 1 and len(_documents(values[0])) > 1
    return Cell(shown[0].value, "agreed" if agreed else "single", shown)


def _grade(claim: Claim) -> int:
    return _SUPPORTS.index(claim.support)


def _worth(column: Column, claims: Sequence[Claim]) -> tuple[int, bool, int, int]:
    """Smaller for the better of two values: by support, then type, different documents and
    reports; else the first.
    """
    return (
        _grade(claims[0]),
        is_mistyped(column, claims[0].canonical),
        -len(_documents(claims)),
        -len(claims),
    )


def _documents(claims: Iterable[Claim]) -> set[str]:
    return {each.document or each.passage_id for claim in claims for each in claim.citations}


def _finer(forms: Iterable[str]) -> dict[str, str]:
    """For each date that is stated less precisely than another: that one, if there is one only."""
    dates = sorted((form for form in forms if len(form) in (4, 7, 10)), key=len)
    finer = dict[str, str]()
    for form in dates:
        longer = [other for other in dates if other.startswith(f"{form}-")]
        if longer and all(longer[-1].startswith(other) for other in longer):
            finer[form] = longer[-1]
    return finer
