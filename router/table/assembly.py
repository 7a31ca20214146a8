"""The fold of reports to a table: the same, whatever came first. No model writes any of it."""

from bisect import insort
from collections.abc import Iterable, Sequence
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
    """True where it was looked for, and not named by a discovery; executors that failed did not look."""


class Reading(NamedTuple):
    """One report as it is read, with the names that its passages tie together."""

    found: tuple[Found, ...]
    ties: tuple[Tie, ...]
    lost: int
    """Rows that it knows of and does not hold: to be asked for again."""


def read_report(schema: Schema, ask: Ask, execution: Execution) -> Reading:
    """The rows and values in the report of an ask, each with its support. Depends on nothing else."""
    answer = "" if execution.failed and not execution.report.evidence else execution.report.answer
    shown = Shown(passage for search in execution.every_search for passage in search.shown)
    columns = [column for column in schema.columns if column.name in ask.columns or (column.key and ask.row is None)]
    if ask.row is None:
        listed, lost = read_rows(answer, columns)
        rows = [(row_key(Schema(tuple(columns)), row), row) for row in listed]
    else:
        rows, lost = [(ask.row, read_values(answer, schema, columns, ask.row))], 0
    looked = ask.row is not None and execution.looked
    found = list[Found]()
    for key, row in rows:
        names, claims = shown.also_named(names_of(schema, key)), dict[str, Claim]()
        for column, value in zip(columns, map(plain, row), strict=True):
            if not is_blank(value, column):
                form = canonical(column, value)
                claims[column.name] = Claim(value, form, ask, *shown.support(column, value, form, names))
        found.append(Found(ask, key, tuple(claims.get(column.name) for column in schema.columns), looked))
    return Reading(tuple(found), shown.ties, lost + execution.report.lost_lines)


def names_of(schema: Schema, key: RowKey) -> list[str]:
    """The parts of a key that are names, folded; all of them where none is."""
    texts = [sought(part) for column, part in zip(schema.keys, key, strict=True) if column.type == "text"]
    return [name for name in texts or map(sought, key) if name.strip()]


class Assembly:
    """A table as its reports come; what one costs goes by the rows that it is about. `table` may be asked for at any
    time, and tells rows that are the same by `is`.
    """

    def __init__(self, schema: Schema, given: Iterable[Sequence[str]] = (), *, asks_per_cell: int = 2) -> None:
        """`given`: rows with a value for each column, empty where one is wanted. `asks_per_cell`: after so many
        executors that looked for a cell, nothing is to be found.
        """
        self._schema, self._asks_per_cell = schema, asks_per_cell
        self._given = {row_key(schema, values): tuple(values) for values in given}
        self._found: dict[RowKey, list[tuple[_Place, Found]]] = {key: [] for key in self._given}
        """By keys, and then by rank."""
        self._parts: dict[RowKey, tuple[str, ...]] = {}
        """Folded parts of keys."""
        self._names, self._ties = set[str](), set[Tie]()
        self._groups: dict[RowKey, list[RowKey]] = {}
        """The keys of each row, by the first of them, its home, in the order of rows."""
        self._homes: dict[RowKey, RowKey] = {}
        self._rows: dict[RowKey, Row] = {}
        self._changed = set[RowKey]()
        """Homes of rows that are to be made anew."""
        self._group()

    def add(self, ask: Ask, execution: Execution) -> Reading:
        """Take the report of an ask, as it is read; of each ask one."""
        reading, moved = read_report(self._schema, ask, execution), False
        for at, each in enumerate(reading.found):
            insort(found := self._found.setdefault(each.key, []), ((ask.rank, at), each), key=itemgetter(0))
            moved |= found[0][1] is each and each.key not in self._given
        ties = {*reading.ties} - self._ties
        self._ties |= ties
        if moved or any(tied(ties, self._names, 1)):
            self._group()
        self._changed.update(self._homes[each.key] for each in reading.found)
        return reading

    def table(self) -> Table:
        """The table by the reports there are."""
        for home in self._changed & self._groups.keys():
            found = chain.from_iterable(self._found[key] for key in self._groups[home])
            self._rows[home] = self._row(home, [each for _, each in sorted(found, key=itemgetter(0))])
        self._changed.clear()
        return Table(self._schema, tuple(self._rows[home] for home in self._groups))

    def _group(self) -> None:
        """Put each key to the first one that is the same, or that two documents tie to it; given ones stay."""
        for key in self._found.keys() - self._parts.keys():
            self._parts[key] = tuple(map(sought, key))
            self._names.update(names_of(self._schema, key))
        same: dict[str, frozenset[str]] = {}
        for one, other in tied(self._ties, self._names):
            if other not in (names := same.get(one, frozenset((one,)))):
                names |= same.get(other, {other})
                same |= dict.fromkeys(names, names)
        before, first = self._groups, dict[tuple[str | frozenset[str], ...], RowKey]()
        self._groups = {key: [] for key in self._given}
        others = [key for key in self._found if key not in self._given]
        for key in (*self._given, *sorted(others, key=lambda key: self._found[key][0][0])):
            form = tuple(same.get(name, part) for name, part in zip(self._parts[key], key, strict=True))
            self._homes[key] = home = key if key in self._given else first.get(form, key)
            first.setdefault(form, key)
            self._groups.setdefault(home, []).append(key)
        self._changed.update(home for home, keys in self._groups.items() if before.get(home) != keys)

    def _row(self, home: RowKey, members: Sequence[Found]) -> Row:
        given, cells, parts = self._given.get(home), list[Cell](), iter(home)
        for at, column in enumerate(self._schema.columns):
            claims: dict[tuple[Ask, str], Claim] = {}
            for claim in sorted(filter(None, (each.claims[at] for each in members)), key=_grade):
                claims.setdefault((claim.ask, claim.canonical), claim)
            looked = sum(each.looked and column.name in each.ask.columns for each in members)
            value = given[at] if given else ""
            cell = _cell(column, value, list(claims.values()), looked >= self._asks_per_cell)
            part = next(parts) if column.key else ""  # all there is of a row that was asked for and not yet found
            cells.append(cell if cell.value else Cell(part, cell.state))
        asks = dict.fromkeys(each.ask for each in members if each.ask.row is None)
        aliases = dict.fromkeys(each.key for each in members if each.key != home)
        return Row(home, tuple(cells), tuple(asks), tuple(aliases), given is not None)


def assemble(
    schema: Schema, given: Iterable[Sequence[str]], reports: Iterable[tuple[Ask, Execution]], *, asks_per_cell: int = 2
) -> Table:
    """The table that reports make, in whatever order they are, each ask once."""
    assembly = Assembly(schema, given, asks_per_cell=asks_per_cell)
    for ask, execution in reports:
        assembly.add(ask, execution)
    return assembly.table()


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
    """Smaller for the better of two values: by support, then type, different documents and reports; else the first."""
    return _grade(claims[0]), is_mistyped(column, claims[0].canonical), -len(_documents(claims)), -len(claims)


def _documents(claims: Iterable[Claim]) -> set[str]:
    return {each.document or each.passage_id for claim in claims for each in claim.citations}


def _finer(forms: Iterable[str]) -> dict[str, str]:
    """For each date that is stated less precisely than another: that one, if there is one only."""
    dates, finer = sorted((form for form in forms if len(form) in (4, 7, 10)), key=len), dict[str, str]()
    for form in dates:
        longer = [other for other in dates if other.startswith(f"{form}-")]
        if longer and all(longer[-1].startswith(other) for other in longer):
            finer[form] = longer[-1]
    return finer
