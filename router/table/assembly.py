"""The fold of reports to a table: the same, whatever came first. No model writes any of it."""

from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from typing import NamedTuple, get_args

import msgspec

from router.table.asking import rank
from router.table.cell_value import canonical, is_blank, plain, row_key
from router.table.support import Shown, Tie, comparable, tied
from router.table.table_text import read_rows, read_values
from router.trace import Execution
from router.trace.table import Ask, Cell, Claim, Column, Row, RowKey, Schema, Support

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
    answer = "" if execution.failed else execution.report.answer
    shown = Shown(passage for search in execution.searches for passage in search.shown)
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
            if not is_blank(value):
                form = canonical(column, value)
                claims[column.name] = Claim(value, form, ask, *shown.support(column, value, form, names))
        found.append(Found(ask, key, tuple(claims.get(column.name) for column in schema.columns), looked))
    return Reading(tuple(found), shown.ties, lost + execution.report.lost_lines)


def names_of(schema: Schema, key: RowKey) -> list[str]:
    """The parts of a key that are names, comparable; all of them where none is."""
    texts = [comparable(part) for column, part in zip(schema.keys, key, strict=True) if column.type == "text"]
    return [name for name in texts or map(comparable, key) if name.strip()]


class Assembly:
    """A table as its reports come; `table` may be asked for at any time, and tells rows that are the same by `is`."""

    def __init__(self, schema: Schema, given: Iterable[Sequence[str]] = (), *, asks_per_cell: int = 2) -> None:
        """`given`: rows with a value for each column, empty where one is wanted. `asks_per_cell`: after so many
        executors that looked for a cell, nothing is to be found.
        """
        self._schema, self._asks_per_cell = schema, asks_per_cell
        self._given = {row_key(schema, values): tuple(values) for values in given}
        self._readings: dict[Ask, Reading] = {}
        self._ties = set[Tie]()
        self._made: dict[RowKey, tuple[Sequence[Found], Row]] = {}

    def add(self, ask: Ask, execution: Execution) -> Reading:
        """Take the report of an ask, as it is read."""
        reading = self._readings[ask] = read_report(self._schema, ask, execution)
        self._ties.update(reading.ties)
        return reading

    def table(self) -> Table:
        """The table by the reports there are."""
        found = [each for ask in sorted(self._readings, key=rank) for each in self._readings[ask].found]
        homes = self._homes(dict.fromkeys([*self._given, *(each.key for each in found)]))
        groups: dict[RowKey, list[Found]] = {key: [] for key in self._given}
        for each in found:
            groups.setdefault(homes[each.key], []).append(each)
        for home, members in groups.items():
            known = self._made.get(home)
            if known is None or len(known[0]) != len(members) or not all(map(is_, known[0], members)):
                self._made[home] = members, self._row(home, members)
        return Table(self._schema, tuple(self._made[home][1] for home in groups))

    def _homes(self, keys: Iterable[RowKey]) -> Mapping[RowKey, RowKey]:
        """For each key that of its row: the first one that is the same, or whose names passages tie to its own."""
        names = {name for key in keys for name in names_of(self._schema, key)}
        same: dict[str, str] = {}

        def root(name: str) -> str:
            while name in same:
                name = same[name]
            return name

        for pair in tied(self._ties, names):
            low, high = sorted(map(root, pair))
            if low != high:
                same[high] = low
        several, homes, first = {*same, *same.values()}, dict[RowKey, RowKey](), dict[tuple[str, ...], RowKey]()
        for key in keys:
            form = tuple(root(name) if (name := comparable(part)) in several else part for part in key)
            homes[key] = key if key in self._given else first.get(form, key)
            first.setdefault(form, key)
        return homes

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
    values = sorted(groups.values(), key=_worth)
    shown = tuple(claim for members in values for claim in members)
    if given or not shown:
        return Cell(given, "given" if given else "not_found" if exhausted else "missing", shown)
    if len(values) > 1 and values[0][0].support == values[1][0].support:
        return Cell(shown[0].value, "conflict", shown)
    agreed = len({claim.ask for claim in values[0]}) > 1 and len(_documents(values[0])) > 1
    return Cell(shown[0].value, "agreed" if agreed else "single", shown)


def _grade(claim: Claim) -> int:
    return _SUPPORTS.index(claim.support)


def _worth(claims: Sequence[Claim]) -> tuple[int, int, int]:
    """Smaller for the better of two values: by support, then different documents, then reports; else the first one."""
    return _grade(claims[0]), -len(_documents(claims)), -len(claims)


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
